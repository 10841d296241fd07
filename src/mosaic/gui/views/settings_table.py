"""The settings of a run under the headings of their groups, with what differs from the defaults marked."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFont
from PySide6.QtWidgets import QHeaderView, QTableWidgetItem

from mosaic.gui import theme
from mosaic.gui.models.settings_rows import SettingRow
from mosaic.gui.views.tables import ReadOnlyTable

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
