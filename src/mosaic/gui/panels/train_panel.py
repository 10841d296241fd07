"""The train page: the form, the help next to it, and its actions."""

from __future__ import annotations

import json
from typing import Any

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QGuiApplication, QHideEvent, QKeyEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QWidget

from mosaic.contracts.errors import BadInput
from mosaic.gui.actions import find_action
from mosaic.gui.forms.help_panel import HelpPanel
from mosaic.gui.forms.presets_menu import PresetsMenu
from mosaic.gui.forms.submit_controller import SubmitController
from mosaic.gui.forms.train_form import TrainForm
from mosaic.gui.models.draft import find_field_error, summary_line, to_command_line
from mosaic.gui.models.form_layout import field_label
from mosaic.gui.models.policy_form import is_evaluation
from mosaic.gui.models.training import PartlySubmitted
from mosaic.gui.views import widgets as ui
from mosaic.gui.workbench import Workbench

HELP_WIDTH = 380
MIN_WIDTH_WITH_HELP = 1100
"""Wide enough for the help to be open unless it was closed."""


class TrainPage(QWidget):
    """Creates its form when it is first shown, so that the window opens without waiting for it."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._column = ui.column(parent=self)
        workbench.form_requested.connect(self._on_form_requested)

    def _on_form_requested(self, payload: dict[str, Any] | None) -> None:
        if payload is not None:
            if is_evaluation(payload):
                return  # the policy form takes it
            try:
                self._workbench.training.load_payload(payload)
            except BadInput as error:
                self._workbench.show_error(error)
                return
        self._workbench.page_requested.emit("train")

    def showEvent(self, event: QShowEvent) -> None:
        if self._column.count() == 0:
            try:
                self._column.addWidget(TrainView(self._workbench))
            except BadInput as error:
                self._column.addWidget(ui.EmptyState("Nothing to train with", str(error)))
        super().showEvent(event)


class TrainView(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._training = workbench.training
        self.columns = TrainForm(self._training, workbench.environments)
        self.help = HelpPanel()
        self._inquiry = SubmitController(
            workbench, self, "train", "Submit", "Start it", "Ask the worker to check the settings; nothing is started"
        )
        self._split = ui.splitter(
            Qt.Orientation.Horizontal, self.columns, self.help, sizes=[], stretch=0, name="train.split"
        )
        self._split.setCollapsible(1, True)
        ui.column(
            self._build_header(),
            (self._split, 1),
            self._inquiry.line,
            self._build_bottom_bar(),
            parent=self,
            margins=ui.PAGE_MARGINS,
        )
        self._inquiry.dry_run_button.clicked.connect(self.dry_run)
        self._inquiry.submit_button.clicked.connect(self.submit)
        self._inquiry.rejected.connect(self._on_rejected)
        self._training.draft_edited.connect(self._on_draft_edited)
        self._training.draft_replaced.connect(self._on_draft_replaced)
        workbench.theme_changed.connect(self.columns.refresh)
        workbench.theme_changed.connect(self.help.restyle)
        self._on_draft_replaced()

    # --- building

    def _build_header(self) -> QHBoxLayout:
        action = find_action("agent.script")
        script = ui.tool_button(
            "train.script",
            action.icon,
            action.tooltip(action.shortcut),
            lambda: action.trigger(self._workbench),
            action.title,
        )
        script.setEnabled(action.is_enabled(self._workbench))
        presets = ui.tool_button(
            "train.presets", "mdi6.bookmark-outline", "Save this configuration by name, or load one", text="Presets"
        )
        PresetsMenu(presets, self._workbench)
        reset = ui.tool_button(
            "train.reset",
            "mdi6.backup-restore",
            "Reset every setting to its default",
            self._training.reset,
            "Reset all",
        )
        self._help_button = ui.tool_button(
            "train.help",
            "mdi6.help-circle-outline",
            "What this algorithm is and how to set it (F1)",
            text="Help",
            is_checkable=True,
        )
        self._help_button.clicked.connect(self._set_help_visible)
        return ui.row(ui.heading_label("Train an agent"), ui.Stretch(), script, presets, reset, self._help_button)

    def _build_bottom_bar(self) -> QHBoxLayout:
        copy_command = ui.button("Copy as CLI command", "train.copy_cli", self._copy_command)
        copy_json = ui.button("Copy as JSON", "train.copy_json", self._copy_json)
        self._count = ui.muted_label("", "train.count")
        self._count.setWordWrap(False)
        submit = (self._inquiry.dry_run_button, self._inquiry.submit_button)
        return ui.row(copy_command, copy_json, ui.Stretch(), self._count, *submit)

    # --- following the draft

    def _on_draft_edited(self) -> None:
        self._inquiry.line.clear()
        self._update_count()

    def _on_draft_replaced(self) -> None:
        self._inquiry.line.clear()
        self.help.show_algorithm(self._training.layout.algorithm)
        self._update_count()

    def _update_count(self) -> None:
        problems = len(self.columns.problems())
        changed = len(self._training.draft.texts)
        if problems:
            text = f"{problems} setting{'s' if problems > 1 else ''} to correct"
        else:
            text = f"{changed} changed" if changed else "all defaults"
        self._count.setText(text)

    # --- help

    def show_help(self, is_visible: bool) -> None:
        self.help.setVisible(is_visible)
        self._help_button.setChecked(is_visible)
        if is_visible and self._split.sizes()[1] < 2:
            self._split.setSizes([max(1, self.width() - HELP_WIDTH), HELP_WIDTH])

    def _set_help_visible(self, is_visible: bool) -> None:
        self._workbench.settings.put("train_help", is_visible)
        self.show_help(is_visible)

    def event(self, event: QEvent) -> bool:
        """F1 is a shortcut of the window; within the form it shows the help of the focused setting."""
        is_override = event.type() is QEvent.Type.ShortcutOverride
        if is_override and isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_F1:
            event.accept()
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() != Qt.Key.Key_F1:
            super().keyPressEvent(event)
            return
        setting = self.columns.focused_field()
        self._set_help_visible(bool(setting) or self.help.isHidden())
        self.help.scroll_to(setting)

    # --- actions

    def _validate(self) -> bool:
        """Focus the first invalid setting."""
        problems = self.columns.problems()
        if problems:
            name, problem = next(iter(problems.items()))
            self._inquiry.line.show_text(f"{field_label(self._training.layout.fields[name])}: {problem}", "bad")
            self.columns.focus_field(name)
        return not problems and not self._inquiry.is_busy

    def dry_run(self) -> None:
        if self._validate():
            title = summary_line(self._training.draft, self._training.layout)
            self._inquiry.dry_run(title, self._training.payloads()[0], self._training.layout.algorithm)

    def submit(self) -> None:
        if self._validate():
            self._training.save()
            self._inquiry.submit_runs(self._training.payloads())

    def _on_rejected(self, error: Exception) -> None:
        if isinstance(error, PartlySubmitted):
            self._workbench.runs.update(error.views)
        field_error = find_field_error(error, self._training.layout.fields, self._training.draft.texts)
        if field_error is not None:
            self.columns.show_field_error(*field_error)

    def _copy_command(self) -> None:
        if self._validate():
            QGuiApplication.clipboard().setText(to_command_line(self._training.layout, self._training.draft))
            self._workbench.show_message("The command is in the clipboard.", "good")

    def _copy_json(self) -> None:
        if self._validate():
            payloads = self._training.payloads()
            QGuiApplication.clipboard().setText(json.dumps(payloads[0] if len(payloads) == 1 else payloads, indent=2))
            self._workbench.show_message("The config is in the clipboard.", "good")

    # --- events

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        is_roomy = self.window().width() >= MIN_WIDTH_WITH_HELP + HELP_WIDTH
        self.show_help(bool(self._workbench.settings.get("train_help", is_roomy)))

    def hideEvent(self, event: QHideEvent) -> None:
        self._training.save()
        super().hideEvent(event)
