"""The config that made a run: whole, or only what differs from the defaults; to copy, and to start from again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QAbstractItemView,
    QCheckBox,
    QHBoxLayout,
    QHeaderView,
    QPushButton,
    QStackedWidget,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from mosaic.client import Trainer
from mosaic.contracts.errors import MosaicError
from mosaic.gui import theme
from mosaic.gui.forms.draft import command_line, from_payload
from mosaic.gui.forms.layout import layout_of
from mosaic.gui.views.empty import Empty
from mosaic.gui.views.json_view import JsonView
from mosaic.gui.views.made import named
from mosaic.gui.workbench import Json, Workbench
from mosaic.plugins.payloads import flattened
from mosaic.plugins.schema import algorithms
from mosaic.plugins.settings import FORMS_OWN


@dataclass(frozen=True)
class Shown:
    """A payload, and what the schema says of it."""

    payload: Json
    changed: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """By setting: what it is, and what it would be by default (None where nobody knows)."""
    command: str = ""
    """The same run as a command; empty where no command line can say it."""


def read_config(trainer: Trainer, run_id: str) -> Shown:
    payload = trainer.config(run_id)
    return Shown(payload, changed_settings(payload), _command(payload))


def changed_settings(payload: Json) -> dict[str, tuple[Any, Any]]:
    """The settings that differ from the algorithm's defaults. Reads the workers' schemas."""
    algorithm = algorithms().get(str(payload["metadata"]["worker"]["config"].get("algo", "")))
    defaults = {one.name: one.default for one in algorithm.fields} if algorithm else {}
    quiet = {
        "artifacts.tensorboard.enabled": True,
        "artifacts.wandb.enabled": False,
        "schedule.priority": 0,
        "metadata.worker.id": payload["metadata"]["worker"]["id"],
    }
    found = {}
    for name, value in flattened(payload).items():
        default = defaults.get(name, quiet.get(name))
        if value != default and not name.startswith(FORMS_OWN):
            found[name] = (value, default)
    return found


def _command(payload: Json) -> str:
    try:
        draft = from_payload(payload)
        return command_line(layout_of(draft.worker, draft.algorithm), draft)
    except MosaicError:
        return ""


class ConfigTab(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._total: Any = None
        self._shown: Shown | None = None
        self._json = named(JsonView(), "config.json")
        self._table = named(QTableWidget(0, 3), "config.changed")
        self._same = Empty("Nothing differs from the defaults", "Every setting is as the algorithm has it.")
        self._unreadable = Empty("The config cannot be read")
        self._only = named(QCheckBox("Only what differs from the defaults"), "config.only")
        self._copy_json = named(QPushButton("Copy as JSON"), "config.copy_json")
        self._copy_command = named(QPushButton("Copy as command"), "config.copy_command")
        self._edit = named(QPushButton("Edit and resubmit…"), "config.edit")
        self._stack = QStackedWidget()
        self._build()
        workbench.theme_changed.connect(self._json.restyle)
        workbench.runs.changed.connect(self._changed)

    def _build(self) -> None:
        self._only.setChecked(bool(self._workbench.settings.get("config.only", False)))
        self._only.toggled.connect(self._switched)
        self._copy_json.clicked.connect(self._copy_as_json)
        self._copy_command.clicked.connect(self._copy_as_command)
        self._copy_command.setToolTip("The command that starts the same run from a terminal")
        self._edit.clicked.connect(self._open_form)
        self._edit.setToolTip("Open the train form, filled from this run")
        self._table.setHorizontalHeaderLabels(["Setting", "Value", "Default"])
        self._table.verticalHeader().hide()
        self._table.setShowGrid(False)
        self._table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self._table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        header = self._table.horizontalHeader()
        header.setHighlightSections(False)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.ResizeToContents)
        row = QHBoxLayout()
        row.setSpacing(theme.GAP)
        row.addWidget(self._only)
        row.addStretch(1)
        for button in (self._copy_json, self._copy_command, self._edit):
            button.setEnabled(False)
            row.addWidget(button)
        for page in (self._json, self._table, self._same, self._unreadable):
            self._stack.addWidget(page)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, theme.GAP)
        column.setSpacing(theme.GAP)
        column.addLayout(row)
        column.addWidget(self._stack, 1)

    # --- what is shown

    def show_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            self._run_id = run_id
            self._read()

    def _changed(self, run_ids: set[str]) -> None:
        """A run that was extended has another config."""
        view = self._workbench.runs.get(self._run_id)
        if self._run_id in run_ids and view is not None and view.get("total_timesteps") != self._total:
            self._read()

    def _read(self) -> None:
        run_id = self._run_id
        self._total = (self._workbench.runs.get(run_id) or {}).get("total_timesteps")

        def then(shown: Shown) -> None:
            if run_id == self._run_id:
                self._show(shown)

        def failed(error: Exception) -> None:
            if run_id == self._run_id:
                self._unreadable.say("The config cannot be read", str(error))
                self._stack.setCurrentWidget(self._unreadable)

        self._workbench.bridge.ask(lambda trainer: read_config(trainer, run_id), then, failed, self)

    def _show(self, shown: Shown) -> None:
        self._shown = shown
        self._json.show_json(shown.payload)
        self._table.setRowCount(len(shown.changed))
        for row, (name, values) in enumerate(shown.changed.items()):
            self._table.setItem(row, 0, QTableWidgetItem(name))
            for number, value in enumerate(values, 1):
                text = "–" if value is None else value if isinstance(value, str) else json.dumps(value)
                item = QTableWidgetItem(text)
                item.setFont(theme.monospace())
                item.setToolTip(text)
                self._table.setItem(row, number, item)
        self._copy_json.setEnabled(True)
        self._edit.setEnabled(True)
        self._copy_command.setEnabled(bool(shown.command))
        self._switch()

    def _switched(self, is_on: bool) -> None:
        self._workbench.settings.put("config.only", is_on)
        self._switch()

    def _switch(self) -> None:
        if self._shown is None:
            return
        page: QWidget = self._json
        if self._only.isChecked():
            page = self._table if self._shown.changed else self._same
        self._stack.setCurrentWidget(page)

    # --- what is done with it

    def _copy_as_json(self) -> None:
        if self._shown is not None:
            QGuiApplication.clipboard().setText(json.dumps(self._shown.payload, indent=2, ensure_ascii=False))
            self._workbench.say("Copied the config as JSON. Start it: mosaic submit FILE")

    def _copy_as_command(self) -> None:
        if self._shown is not None:
            QGuiApplication.clipboard().setText(self._shown.command)
            self._workbench.say(f"Copied: {self._shown.command[:200]}")

    def _open_form(self) -> None:
        if self._shown is not None:
            self._workbench.form_wanted.emit(self._shown.payload)
