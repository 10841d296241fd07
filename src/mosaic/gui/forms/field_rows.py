"""Rows for settings that are known only while the window runs: of an environment, of an actor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtCore import QEvent, Signal
from PySide6.QtWidgets import QWidget

from mosaic.contracts.setting_field import SettingField
from mosaic.gui import theme
from mosaic.gui.forms.form_rows import FieldRow
from mosaic.gui.models.game_draft import shown_text
from mosaic.gui.views.widgets import clear_layout, column

LABEL_WIDTH = 112
"""Longer labels are wrapped: these rows are in a narrow column."""


class FieldRows(QWidget):
    """A column of rows over texts that someone else holds."""

    edited = Signal(str, str)
    """A field's name and its text, as typed."""

    def __init__(self, prefix: str, fields: Sequence[SettingField] = ()) -> None:
        super().__init__()
        self._prefix = prefix
        self._fields: tuple[SettingField, ...] = ()
        self._rows: dict[str, FieldRow] = {}
        self._column = column(parent=self, spacing=theme.GAP // 2)
        self.set_fields(fields)

    def set_fields(self, fields: Sequence[SettingField]) -> None:
        """Build the rows of these fields, unless they are shown already."""
        if tuple(fields) == self._fields:
            return
        self._fields = tuple(fields)
        clear_layout(self._column)
        self._rows = {}
        for field in fields:
            row = FieldRow(field, self._prefix)
            row.label.setFixedWidth(theme.scale(LABEL_WIDTH))
            row.label.setWordWrap(True)
            row.edited.connect(self._on_edited)
            self._rows[field.name] = row
            self._column.addWidget(row)
        if self.parentWidget() is not None or not fields:  # without a parent it would be shown as a window
            self.setVisible(bool(fields))

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            for row in self._rows.values():
                row.label.setFixedWidth(theme.scale(LABEL_WIDTH))

    def _on_edited(self, name: str, text: str) -> None:
        self._rows[name].show_text(text)  # a reset, too, while the field has the focus
        self.edited.emit(name, text)

    def show_texts(self, texts: Mapping[str, str], problems: Mapping[str, str]) -> None:
        """Show these texts, and the defaults of all other fields; typing is not interrupted."""
        for name, row in self._rows.items():
            if not row.input.hasFocus():
                row.show_text(shown_text(texts, row.field))
            row.show_state(name in texts, problems.get(name, ""))

    def row(self, name: str) -> FieldRow | None:
        return self._rows.get(name)
