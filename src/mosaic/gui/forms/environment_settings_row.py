"""The row of an environment's settings in the train form: one row each, and a line for other arguments."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtWidgets import QLineEdit, QWidget

from mosaic.contracts.setting_field import SettingField
from mosaic.gui import theme
from mosaic.gui.forms.field_rows import FieldRows
from mosaic.gui.forms.form_rows import FieldRow
from mosaic.gui.models.env_settings_text import (
    object_problem,
    others_text,
    setting_texts,
    settings_problems,
    with_others,
    with_setting,
)
from mosaic.gui.views.widgets import widget_column


class EnvironmentSettingsRow(FieldRow):
    """Its text is a JSON object. What the catalog knows of the environment has rows; the rest is written as JSON."""

    def _create_editor(self, prefix: str) -> QWidget:
        self._settings: tuple[SettingField, ...] = ()
        self._text = ""
        self._valid_text = ""
        """The last text that was an object: while other arguments are typed, they often are not."""
        self._rows = FieldRows(f"{prefix}.env")
        self._rows.edited.connect(self._on_setting_edited)
        self._others = QLineEdit()
        self._others.textEdited.connect(self._on_others_edited)
        self.input = self._others
        return widget_column(self._rows, self._others, spacing=theme.GAP // 2)

    def _add_editor(self, editor: QWidget, is_wide: bool) -> None:
        super()._add_editor(editor, is_wide)
        for part in (self._mark, self.label):  # next to the first of its rows, not to their middle
            self._grid.setAlignment(part, Qt.AlignmentFlag.AlignTop)
            part.setMinimumHeight(editor.fontMetrics().height() + theme.GAP)

    def show_settings(self, settings: Sequence[SettingField]) -> None:
        """Show rows for these settings of the chosen environment."""
        if tuple(settings) != self._settings:
            self._settings = tuple(settings)
            self._rows.set_fields(settings)
            self.show_text(self._text)
        name = self._settings[0].name if self._settings else "name"
        self._others.setPlaceholderText("other arguments as JSON" if self._settings else f'{{"{name}": value}}')

    def show_text(self, text: str) -> None:
        self._text = text
        if not object_problem(text):
            self._valid_text = text
        valid = self._valid_text
        self._rows.show_texts(setting_texts(self._settings, valid), settings_problems(self._settings, valid))
        others = others_text(self._settings, text)
        if self._others.text() != others and not self._others.hasFocus():
            with QSignalBlocker(self._others):
                self._others.setText(others)
                self._others.setCursorPosition(0)

    def _on_reset(self) -> None:
        self._others.clear()
        super()._on_reset()

    def _on_setting_edited(self, name: str, text: str) -> None:
        setting = next(one for one in self._settings if one.name == name)
        self._emit_edited(with_setting(self._valid_text, setting, text))

    def _on_others_edited(self, others: str) -> None:
        self._emit_edited(with_others(self._valid_text, self._settings, others))
