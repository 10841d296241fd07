"""The train page: the form, the help next to it, and its actions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QGuiApplication, QHideEvent, QKeyEvent, QShowEvent
from PySide6.QtWidgets import QWidget

from mosaic.client import TrainerClient
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.views import RunView
from mosaic.formatting import count_noun, join_words, run_title, short_id
from mosaic.gui.actions import find_action
from mosaic.gui.forms.help_panel import HelpPanel
from mosaic.gui.forms.presets_menu import PresetsMenu
from mosaic.gui.forms.submit_controller import Expectation, SubmitController
from mosaic.gui.forms.train_form import TrainForm
from mosaic.gui.models.draft import (
    changed_fields,
    field_text,
    find_field_errors,
    parse_value,
    summary_line,
    to_command_line,
)
from mosaic.gui.models.form_layout import field_label
from mosaic.gui.models.policy_form import is_evaluation
from mosaic.gui.models.training import PartlySubmitted
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.wrapping_row import WrappingRow
from mosaic.gui.workbench import Workbench
from mosaic.submission.run_estimate import earlier_runs, estimate_run

HELP_WIDTH = 330  # the form needs the rest of a page of a window of 1366 pixels
MIN_WIDTH_WITH_HELP = 1100
"""Wide enough for the help to be open unless it was closed."""
WARNING_DELAY_MS = 300
"""After the last key."""


class TrainPage(QWidget):
    """Creates its form when it is first shown, so that the window opens without waiting for it."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._column = ui.column(parent=self)
        workbench.form_requested.connect(self._on_form_requested)
        workbench.edit_requested.connect(lambda run_id, payload: self._on_form_requested(payload, run_id))

    def _on_form_requested(self, payload: dict[str, Any] | None, run_id: str = "") -> None:
        """`run_id`: the run whose payload it is."""
        if payload is not None:
            if is_evaluation(payload):
                return  # the policy form takes it
            try:
                self._workbench.replace_form(
                    "The form shows the settings of a run.",
                    "fill the form from a run",
                    partial(self._workbench.training.load_payload, payload, run_id),
                )
            except BadInput as error:
                self._workbench.show_error(error)
                return
        self._workbench.page_requested.emit("train")
        if (view := self.findChild(TrainView)) is not None:
            view.columns.begin()

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
        self.columns = TrainForm(self._training, workbench.environments, not workbench.is_remote)
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
            self._build_source_line(),
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
        self._warning_timer = ui.create_timer(self, WARNING_DELAY_MS, self._warn_of_steps, is_single_shot=True)
        self._on_draft_replaced()

    # --- building

    def _build_header(self) -> QWidget:
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
            self._reset,
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
        tools = ui.row(script, presets, reset, self._help_button)
        return WrappingRow([ui.heading_label("Train an agent"), ui.Stretch(), tools])

    def _build_source_line(self) -> QWidget:
        """The run that the settings come from, with a button that shows it."""
        self._source_label = ui.ElidedLabel("")
        self._source_label.setObjectName("train.source")
        ui.set_properties(self._source_label, muted=True)
        self._source_button = ui.flat_button("Show", "train.source.show", self._show_source, icon="mdi6.arrow-right")
        self._source_line = QWidget()
        ui.row(self._source_label, self._source_button, ui.Stretch(), parent=self._source_line)
        return self._source_line

    def _show_source(self) -> None:
        self._workbench.select(self._training.draft.source)
        self._workbench.page_requested.emit("run")

    def _show_source_line(self) -> None:
        source = self._training.draft.source
        view = self._workbench.runs.get(source)
        self._source_label.setText(f"From {run_title(view) if view else f'run {short_id(source)}'}")
        self._source_button.setEnabled(view is not None)
        self._source_line.setVisible(bool(source))

    def _build_bottom_bar(self) -> QWidget:
        copy_command = ui.button("Copy as CLI command", "train.copy_cli", self._copy_command)
        copy_json = ui.button("Copy as JSON", "train.copy_json", self._copy_json)
        self._count = ui.muted_label("", "train.count")
        self._count.setWordWrap(False)
        submit = (self._inquiry.dry_run_button, self._inquiry.submit_button)
        return WrappingRow([ui.row(copy_command, copy_json), ui.Stretch(), ui.row(ui.Stretch(), self._count, *submit)])

    def _reset(self) -> None:
        self._workbench.replace_form("Every setting has its default again.", "reset the form", self._training.reset)

    # --- following the draft

    def _on_draft_edited(self) -> None:
        self._inquiry.line.clear()
        self._update_count()
        self._warning_timer.start()

    def _warn_of_steps(self) -> None:
        """Say at once that a run would hardly end, not only in the dry run."""
        draft, fields = self._training.draft, self._training.layout.fields
        if self._inquiry.line.isVisible() or "total_timesteps" not in draft.texts:
            return
        with suppress(BadInput):
            steps = parse_value(fields["total_timesteps"], draft.texts["total_timesteps"])
            env_id = field_text(draft, fields["env_id"]).strip()
            runs = earlier_runs(self._workbench.runs.all(), draft.algorithm, env_id)
            if warning := estimate_run(runs, env_id, int(steps or 0)).warning:
                self._inquiry.line.show_text(warning, "warning")

    def _on_draft_replaced(self) -> None:
        self._inquiry.line.clear()
        self.help.show_algorithm(self._training.layout.algorithm)
        self._show_source_line()
        self._update_count()

    def _update_count(self) -> None:
        problems = len(self.columns.problems())
        changed = len(changed_fields(self._training.layout, self._training.draft))
        if problems:
            text = f"{count_noun(problems, 'setting')} to correct"
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
            payloads = self._training.payloads()
            config = payloads[0]["metadata"]["worker"]["config"]
            env_id, steps = str(config.get("env_id", "")), int(config.get("total_timesteps") or 0)
            runs = earlier_runs(self._workbench.runs.all(), self._training.draft.algorithm, env_id)

            def estimate(trainer: TrainerClient) -> Expectation:
                found = estimate_run(runs, env_id, steps, _mean_size(trainer, runs))
                return Expectation(found.format(len(payloads)), found.warning)

            self._inquiry.dry_run(title, payloads[0], self._training.layout.algorithm, estimate if steps else None)

    def submit(self) -> None:
        if self._validate():
            self._training.save()
            self._inquiry.submit_runs(self._training.payloads())

    def _on_rejected(self, error: Exception) -> None:
        if isinstance(error, PartlySubmitted):
            self._workbench.runs.update(error.views)
        fields = self._training.layout.fields
        field_errors = find_field_errors(error, fields, self._training.draft.texts)
        if not field_errors or not isinstance(error, MosaicError):
            return
        self.columns.show_field_errors(field_errors)
        has_all = all(problem.setting in fields for problem in error.problems)
        if has_all and not isinstance(error, PartlySubmitted):  # the reasons are at the fields: none is repeated
            labels = join_words([field_label(fields[name]) for name in field_errors])
            self._inquiry.line.show_text(f"Refused. See {labels}.", "bad")

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


def _mean_size(trainer: TrainerClient, runs: Sequence[RunView]) -> float | None:
    """Of these runs on the disk, in bytes."""
    if not runs:
        return None
    *_, usage = trainer.read_disk_usage([view.run_id for view in runs])  # the last one covers all of them
    return usage.total_bytes / usage.run_count if usage.run_count else None
