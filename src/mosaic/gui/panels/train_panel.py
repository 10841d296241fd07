"""The train page: the form, the help next to it, and its actions."""

from __future__ import annotations

import json
import time
from typing import Any

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QGuiApplication, QHideEvent, QKeyEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QSplitter, QToolButton, QVBoxLayout, QWidget

from mosaic.contracts.errors import BadInput
from mosaic.gui import theme
from mosaic.gui.forms.help_panel import HelpPanel
from mosaic.gui.forms.presets_menu import PresetsMenu
from mosaic.gui.forms.submit_controller import SubmitController, show_submitted_runs
from mosaic.gui.forms.train_form import TrainForm
from mosaic.gui.models.draft import (
    build_payloads,
    find_field_error,
    summary_line,
    to_command_line,
)
from mosaic.gui.models.form_layout import field_label
from mosaic.gui.models.policy_form import is_evaluation
from mosaic.gui.models.training import PartlySubmitted
from mosaic.gui.views.empty_state import EmptyState
from mosaic.gui.views.widgets import with_object_name
from mosaic.gui.workbench import Json, Workbench

HELP_WIDTH = 380
MIN_WIDTH_WITH_HELP = 1100
"""Wide enough for the help to be open unless it was closed."""


class TrainPage(QWidget):
    """Creates its form when it is first shown, so that the window opens without waiting for it."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._view: TrainView | None = None
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        workbench.form_requested.connect(self._on_form_requested)

    def _on_form_requested(self, payload: Json | None) -> None:
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
        if self._view is None and self._column.count() == 0:
            try:
                self._view = TrainView(self._workbench)
            except BadInput as error:  # nothing to train with
                self._column.addWidget(EmptyState("Nothing to train with", str(error)))
            else:
                self._column.addWidget(self._view)
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
        self._split = with_object_name(QSplitter(Qt.Orientation.Horizontal), "train.split")
        self._split.addWidget(self.columns)
        self._split.addWidget(self.help)
        self._split.setStretchFactor(0, 1)
        self._split.setCollapsible(0, False)
        column = QVBoxLayout(self)
        column.setContentsMargins(theme.MARGIN, theme.GAP, theme.MARGIN, theme.GAP)
        column.setSpacing(theme.GAP)
        column.addLayout(self._build_header())
        column.addWidget(self._split, 1)
        column.addWidget(self._inquiry.line)
        column.addLayout(self._build_bottom_bar())
        self._inquiry.dry_run_button.clicked.connect(self.dry_run)
        self._inquiry.submit_button.clicked.connect(self.submit)
        self._inquiry.rejected.connect(self._on_rejected)
        self._training.draft_edited.connect(self._on_draft_edited)
        self._training.draft_replaced.connect(self._on_draft_replaced)
        workbench.theme_changed.connect(self._apply_theme)
        self._on_draft_replaced()
        self._apply_theme()

    # --- building

    def _build_header(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(theme.GAP)
        self._title = QLabel("Train an agent")
        self._title.setFont(theme.heading_font())
        row.addWidget(self._title)
        row.addStretch(1)
        self._presets = self._create_tool_button(
            "Presets", "train.presets", "Save this configuration by name, or load one"
        )
        PresetsMenu(self._presets, self._training, self._workbench)
        self._reset = self._create_tool_button("Reset all", "train.reset", "Reset every setting to its default")
        self._reset.clicked.connect(self._training.reset)
        self._help_button = self._create_tool_button(
            "Help", "train.help", "What this algorithm is and how to set it (F1)"
        )
        self._help_button.setCheckable(True)
        self._help_button.clicked.connect(self._set_help_visible)
        for button in (self._presets, self._reset, self._help_button):
            row.addWidget(button)
        return row

    def _create_tool_button(self, text: str, name: str, tip: str) -> QToolButton:
        button = with_object_name(QToolButton(), name)
        button.setText(text)
        button.setToolTip(tip)
        button.setProperty("flat", True)
        button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        return button

    def _build_bottom_bar(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(theme.GAP)
        copy_command = with_object_name(QPushButton("Copy as CLI command"), "train.copy_cli")
        copy_command.clicked.connect(self._copy_command)
        copy_json = with_object_name(QPushButton("Copy as JSON"), "train.copy_json")
        copy_json.clicked.connect(self._copy_json)
        self._count = with_object_name(QLabel(), "train.count")
        self._count.setProperty("muted", True)
        row.addWidget(copy_command)
        row.addWidget(copy_json)
        row.addStretch(1)
        for widget in (self._count, self._inquiry.dry_run_button, self._inquiry.submit_button):
            row.addWidget(widget)
        return row

    # --- following the draft

    def _on_draft_edited(self) -> None:
        self._inquiry.line.clear()
        self._update_count()

    def _on_draft_replaced(self) -> None:
        self._inquiry.line.clear()
        self.help.show_algorithm(self._training.layout.algorithm)
        self._update_count()

    def _update_count(self) -> None:
        wrong = len(self.columns.problems())
        changed = len(self._training.draft.texts)
        if wrong:
            text = f"{wrong} setting{'s' if wrong > 1 else ''} to correct"
        else:
            text = f"{changed} changed" if changed else "all defaults"
        self._count.setText(text)

    def _apply_theme(self) -> None:
        self._title.setFont(theme.heading_font())
        self._presets.setIcon(theme.icon("mdi6.bookmark-outline"))
        self._reset.setIcon(theme.icon("mdi6.backup-restore"))
        self._help_button.setIcon(theme.icon("mdi6.help-circle-outline"))
        self.columns.restyle()
        self.help.restyle()
        self._inquiry.line.restyle()

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
        """F1 is the window's own; within the form it is about the setting that has the focus."""
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

    # --- doing

    def _validate(self) -> bool:
        """Focus the first invalid setting."""
        wrong = self.columns.problems()
        if wrong:
            name, problem = next(iter(wrong.items()))
            self._inquiry.line.show_text(f"{field_label(self._training.layout.fields[name])}: {problem}", "bad")
            self.columns.focus_field(name)
        return not wrong and not self._inquiry.is_busy

    def dry_run(self) -> None:
        if self._validate():
            what = summary_line(self._training.draft, self._training.layout)
            self._inquiry.dry_run(what, self._training.check, self._training.layout.algorithm)

    def submit(self) -> None:
        if self._validate():
            self._inquiry.submit_runs(self._training.submit)

    def _on_rejected(self, error: Exception) -> None:
        if isinstance(error, PartlySubmitted):
            self._workbench.runs.update(error.views)
        found = find_field_error(error, self._training.layout.fields, self._training.draft.texts)
        if found is not None:
            self.columns.show_field_error(*found)

    def _copy_command(self) -> None:
        if self._validate():
            QGuiApplication.clipboard().setText(to_command_line(self._training.layout, self._training.draft))
            self._workbench.show_message("The command is in the clipboard.", "good")

    def _copy_json(self) -> None:
        if self._validate():
            payloads: Any = build_payloads(self._training.layout, self._training.draft, time.time())
            QGuiApplication.clipboard().setText(json.dumps(payloads[0] if len(payloads) == 1 else payloads, indent=2))
            self._workbench.show_message("The config is in the clipboard.", "good")

    # --- being looked at

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        is_roomy = self.window().width() >= MIN_WIDTH_WITH_HELP + HELP_WIDTH
        self.show_help(bool(self._workbench.settings.get("train_help", is_roomy)))

    def hideEvent(self, event: QHideEvent) -> None:
        self._training.save()
        super().hideEvent(event)


def train_now(workbench: Workbench) -> None:
    """ "Train Agent": submits what the form holds, as it was left."""
    try:
        workbench.training.submit(
            lambda views: show_submitted_runs(workbench, views),
            lambda error: _back_to_form(workbench, error),
            workbench,
        )
    except BadInput as error:
        _back_to_form(workbench, error)


def _back_to_form(workbench: Workbench, error: Exception) -> None:
    workbench.show_error(error)
    workbench.form_requested.emit(None)
