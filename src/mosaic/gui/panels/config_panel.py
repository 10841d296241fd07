"""The Config tab: the whole config of a run, or what differs from the defaults; to copy, and to edit and resubmit."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QWidget

from mosaic.client import TrainerClient
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.options import OPTIONS
from mosaic.gui.models.draft import draft_from_payload, to_command_line
from mosaic.gui.models.form_layout import get_layout
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.tables import ReadOnlyTable
from mosaic.gui.views.text_views import JsonView
from mosaic.gui.workbench import Workbench
from mosaic.statistics.comparison import format_value
from mosaic.submission.algorithm_schema import load_algorithms
from mosaic.submission.run_payloads import FORM_STATE_PREFIX, flatten_settings


@dataclass(frozen=True)
class ConfigDetails:
    """A payload, with its description by the schema."""

    payload: dict[str, Any]
    changed_settings: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """By setting: what it is, and what it would be by default (None where it is unknown)."""
    command: str = ""
    """The same run as a command; empty where no command can express it."""


def read_config(trainer: TrainerClient, run_id: str) -> ConfigDetails:
    payload = trainer.config(run_id)
    return ConfigDetails(payload, changed_settings(payload), _build_command(payload))


def changed_settings(payload: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings that differ from the algorithm's defaults. Reads the workers' schemas."""
    algorithm = load_algorithms().get(str(payload["metadata"]["worker"]["config"].get("algo", "")))
    defaults = {field.name: field.default for field in algorithm.fields} if algorithm else {}
    option_defaults = {name: option.default for name, option in OPTIONS.items()}
    option_defaults["metadata.worker.id"] = payload["metadata"]["worker"]["id"]
    changed = {}
    for name, value in flatten_settings(payload).items():
        default = defaults.get(name, option_defaults.get(name))
        if value != default and not name.startswith(FORM_STATE_PREFIX):
            changed[name] = (value, default)
    return changed


def _build_command(payload: dict[str, Any]) -> str:
    try:
        draft = draft_from_payload(payload)
        return to_command_line(get_layout(draft.worker, draft.algorithm), draft)
    except MosaicError:
        return ""


class ConfigTab(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._total: Any = None
        self._details: ConfigDetails | None = None
        self._json = ui.with_object_name(JsonView(), "config.json")
        self._table = ReadOnlyTable("config.changed", text_columns=(0, 1, 2))
        self._same = ui.EmptyState("Nothing differs from the defaults", "Every setting has the algorithm's default.")
        self._unreadable = ui.EmptyState("The config cannot be read")
        self._only_changed = ui.check_box(
            "Only what differs from the defaults", "config.only", self._on_only_changed_toggled
        )
        self._only_changed.setChecked(bool(workbench.settings.get("config.only", False)))
        self._copy_json = ui.button("Copy as JSON", "config.copy_json", self._copy_as_json)
        self._copy_command = ui.button(
            "Copy as command",
            "config.copy_command",
            self._copy_as_command,
            "The command that starts the same run from a terminal",
        )
        self._edit = ui.button(
            "Edit and resubmit…", "config.edit", self._open_form, "Open the train form, filled from this run"
        )
        buttons = (self._copy_json, self._copy_command, self._edit)
        for widget in buttons:
            widget.setEnabled(False)
        self._stack = ui.stack(self._json, self._table, self._same, self._unreadable)
        ui.column(
            ui.row(self._only_changed, ui.Stretch(), *buttons), (self._stack, 1), parent=self, margins=ui.TAB_MARGINS
        )
        workbench.runs.changed.connect(self._on_runs_changed)

    # --- what is shown

    def show_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            self._run_id = run_id
            self._load_config()

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        """A run that was extended has another config."""
        view = self._workbench.runs.get(self._run_id)
        if self._run_id in run_ids and view is not None and view.total_timesteps != self._total:
            self._load_config()

    def _load_config(self) -> None:
        run_id = self._run_id
        self._total = self._workbench.runs.get_or_placeholder(run_id).total_timesteps

        def then(details: ConfigDetails) -> None:
            if run_id == self._run_id:
                self._show(details)

        def failed(error: Exception) -> None:
            if run_id == self._run_id:
                self._unreadable.set_text("The config cannot be read", str(error))
                self._stack.setCurrentWidget(self._unreadable)

        self._workbench.bridge.ask(lambda trainer: read_config(trainer, run_id), then, failed, self)

    def _show(self, details: ConfigDetails) -> None:
        self._details = details
        self._json.show_json(details.payload)
        rows = [(name, *map(format_value, values)) for name, values in details.changed_settings.items()]
        self._table.show_rows(("Setting", "Value", "Default"), rows)
        self._copy_json.setEnabled(True)
        self._edit.setEnabled(True)
        self._copy_command.setEnabled(bool(details.command))
        self._update_page()

    def _on_only_changed_toggled(self, is_on: bool) -> None:
        self._workbench.settings.put("config.only", is_on)
        self._update_page()

    def _update_page(self) -> None:
        if self._details is None:
            return
        page: QWidget = self._json
        if self._only_changed.isChecked():
            page = self._table if self._details.changed_settings else self._same
        self._stack.setCurrentWidget(page)

    # --- actions

    def _copy_as_json(self) -> None:
        if self._details is not None:
            QGuiApplication.clipboard().setText(json.dumps(self._details.payload, indent=2, ensure_ascii=False))
            self._workbench.show_message("Copied the config as JSON. Start it: mosaic submit FILE")

    def _copy_as_command(self) -> None:
        if self._details is not None:
            QGuiApplication.clipboard().setText(self._details.command)
            self._workbench.show_message(f"Copied: {self._details.command[:200]}")

    def _open_form(self) -> None:
        if self._details is not None:
            self._workbench.form_requested.emit(self._details.payload)
