"""The Config tab: every setting of a run and what it was started with; to copy, and to edit and resubmit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import shorten
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFont, QGuiApplication
from PySide6.QtWidgets import QHeaderView, QMenu, QTableWidgetItem, QToolButton, QWidget

from mosaic.contracts.run_settings import RunSettings
from mosaic.features.runs.window_model import (
    SettingRow,
    packages_text,
    setting_rows,
    surroundings_rows,
    to_command,
    to_python,
)
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.labels import JsonView
from mosaic.window.tables import ReadOnlyTable
from mosaic.window.workbench import Workbench

# --- The settings of a run under the headings of their groups, with what differs from the defaults marked.


MAX_COLUMN_WIDTH = 420


class SettingsTable(ReadOnlyTable):
    def __init__(self, name: str) -> None:
        super().__init__(name, text_columns=(0, 1, 2))
        self._rows: Sequence[SettingRow] = ()
        self.horizontalHeader().setMaximumSectionSize(MAX_COLUMN_WIDTH)
        self.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + 8)

    def show_settings(self, rows: Sequence[SettingRow]) -> None:
        self._rows = rows
        place = self.verticalScrollBar().value()
        lines: list[SettingRow | str] = []
        for row in rows:
            if not lines or self._group_of(lines[-1]) != row.group:
                lines.append(row.group)
            lines.append(row)
        texts = [(line, "", "") if isinstance(line, str) else (line.name, line.value, line.default) for line in lines]
        self.clearSpans()
        self.show_rows(("Setting", "Value", "Default"), texts)
        for number, line in enumerate(lines):
            if isinstance(line, str):
                self.setSpan(number, 0, 1, 3)
                self._style_heading(self.item(number, 0))
            else:
                self._style_row(number, line)
        self.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.verticalScrollBar().setValue(place)

    def update_theme(self) -> None:
        self.show_settings(self._rows)

    @staticmethod
    def _group_of(line: SettingRow | str) -> str:
        return line if isinstance(line, str) else line.group

    def _style_heading(self, item: QTableWidgetItem | None) -> None:
        assert item is not None
        item.setForeground(QColor(theme.tokens().muted))
        item.setFlags(Qt.ItemFlag.NoItemFlags)

    def _style_row(self, number: int, row: SettingRow) -> None:
        for column in range(3):
            item = self.item(number, column)
            assert item is not None
            if row.tooltip:
                item.setToolTip(row.tooltip)
            if column == 2:
                item.setForeground(QColor(theme.tokens().muted))
            elif row.is_changed:
                font = QFont(item.font())
                font.setWeight(QFont.Weight.DemiBold)
                item.setFont(font)
                item.setForeground(QColor(theme.tokens().accent))


# --- The Config tab: every setting of a run and what it was started with; to copy, and to edit and resubmit.


@dataclass(frozen=True)
class ConfigDetails:
    payload: dict[str, Any]
    settings: RunSettings
    command: str
    """The same run as a command; empty where no command can express it."""
    python: str
    """The same as a call of the Python API; empty where none can."""


def read_config(trainer: TrainerClient, run_id: str) -> ConfigDetails:
    payload = trainer.config(run_id)
    return ConfigDetails(payload, trainer.read_settings(run_id), to_command(payload), to_python(payload))


class ConfigTab(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._loaded_state: tuple[Any, ...] = ()
        """What of the run a new config or new facts would follow from."""
        self._details: ConfigDetails | None = None
        self._json = ui.with_object_name(JsonView(), "config.json")
        self._table = SettingsTable("config.settings")
        self._nothing = ui.EmptyState("")
        self._filter = ui.search_field("config.filter", "Filter", "Filter by name or value (Ctrl+F)", 200)
        self._filter.textChanged.connect(self._update_page)
        self._only_changed = ui.check_box(
            "Only what differs", "config.only", self._on_only_changed_toggled, "Only settings without their default"
        )
        self._only_changed.setChecked(bool(workbench.settings.get("config.only", False)))
        self._as_json = ui.tool_button(
            "config.as_json", "mdi6.code-json", "Show what was submitted, as JSON", is_checkable=True
        )
        self._as_json.toggled.connect(self._update_page)
        self._copy = ui.tool_button("config.copy", "mdi6.content-copy", "Copy", text="Copy", is_flat=False)
        self._copy.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self._copy.setMenu(self._build_menu())
        self._edit = ui.button(
            "Edit and resubmit…", "config.edit", self._open_form, "Open the train form, filled from this run"
        )
        self._buttons = (self._copy, self._edit)
        self._stack = ui.stack(self._table, self._json, self._nothing)
        toolbar = ui.row((self._filter, 1), self._only_changed, ui.Stretch(), self._as_json, *self._buttons)
        ui.column(toolbar, (self._stack, 1), parent=self, margins=ui.TAB_MARGINS)
        self._set_details(None)
        workbench.runs.changed.connect(self._on_runs_changed)
        workbench.theme_changed.connect(self._table.update_theme)

    def _build_menu(self) -> QMenu:
        menu = ui.with_object_name(QMenu(self), "config.copy.menu")
        copies: dict[str, Callable[[ConfigDetails], str]] = {
            "As a command": lambda details: details.command,
            "As Python": lambda details: details.python,
            "As JSON": lambda details: json.dumps(details.payload, indent=2, ensure_ascii=False) + "\n",
            "As a table": lambda _: self._table.to_tsv(),
            "List of packages": lambda details: packages_text(details.settings),
        }
        self._copies = {menu.addAction(title, partial(self._copy_text, text)): text for title, text in copies.items()}
        return menu

    def start_search(self) -> None:
        self._as_json.setChecked(False)
        self._filter.setFocus()
        self._filter.selectAll()

    # --- what is shown

    def show_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            self._run_id = run_id
            self._set_details(None)
            self._load_config()
        elif self._state() != self._loaded_state:
            self._load_config()

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        if self._run_id in run_ids and self.isVisible() and self._state() != self._loaded_state:
            self._load_config()

    def _state(self) -> tuple[Any, ...]:
        """A run that was extended has another config; one that runs has reported its settings, packages and machine."""
        view = self._workbench.runs.get_or_placeholder(self._run_id)
        return view.total_timesteps, view.stage, view.started_at, view.global_step is None, view.hardware is None

    def _load_config(self) -> None:
        run_id = self._run_id
        self._loaded_state = self._state()

        def then(details: ConfigDetails) -> None:
            if run_id == self._run_id:
                self._set_details(details)

        def failed(error: Exception) -> None:
            if run_id == self._run_id:
                self._nothing.set_text("The config cannot be read", str(error))
                self._stack.setCurrentWidget(self._nothing)

        self._workbench.bridge.ask(lambda trainer: read_config(trainer, run_id), then, failed, self)

    def _set_details(self, details: ConfigDetails | None) -> None:
        """None: they are loading."""
        self._details = details
        for widget in self._buttons:
            widget.setEnabled(details is not None)
        if details is None:
            self._nothing.set_text("Loading…")
            self._stack.setCurrentWidget(self._nothing)
            return
        for action, text in self._copies.items():
            action.setEnabled(bool(text(details)))
        self._json.show_json(details.payload)
        self._update_page()

    def _on_only_changed_toggled(self, is_on: bool) -> None:
        self._workbench.settings.put("config.only", is_on)
        self._update_page()

    def _update_page(self) -> None:
        details = self._details
        is_json = self._as_json.isChecked()
        self._filter.setEnabled(not is_json)
        self._only_changed.setEnabled(not is_json)
        if details is None:
            return
        if is_json:
            self._stack.setCurrentWidget(self._json)
            return
        rows = setting_rows(details.settings)
        if self._only_changed.isChecked():
            rows = [row for row in rows if row.is_changed]
        else:
            rows += surroundings_rows(details.settings)
        text = self._filter.text().strip()
        shown = [row for row in rows if row.contains(text)]
        if shown:
            self._table.show_settings(shown)
            self._stack.setCurrentWidget(self._table)
            return
        if rows:
            self._nothing.set_text("No setting matches", f"None contains “{text}” in its name or value.")
        else:
            self._nothing.set_text("Nothing differs from the defaults", "Every setting has its default.")
        self._stack.setCurrentWidget(self._nothing)

    # --- actions

    def _copy_text(self, get_text: Callable[[ConfigDetails], str]) -> None:
        if self._details is not None:
            text = get_text(self._details)
            QGuiApplication.clipboard().setText(text)
            self._workbench.show_message(f"Copied: {shorten(' '.join(text.split()), 120, placeholder=' …')}")

    def _open_form(self) -> None:
        if self._details is not None:
            self._workbench.edit_requested.emit(self._run_id, self._details.payload)
