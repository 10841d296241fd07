"""The rows that are more than one editor: the environment with its family, and the seed or seeds."""

from __future__ import annotations

from PySide6.QtCore import QStringListModel, Qt, Signal
from PySide6.QtGui import QStandardItem, QStandardItemModel
from PySide6.QtWidgets import QCheckBox, QComboBox, QCompleter, QGridLayout, QHBoxLayout, QLabel, QLineEdit, QWidget

from mosaic.contracts.errors import BadInput
from mosaic.contracts.setting_field import SettingField
from mosaic.gui import theme
from mosaic.gui.forms.field_rows import EDITOR_WIDTH, MARK_WIDTH, RESET_WIDTH, FieldRow, guard_wheel
from mosaic.gui.models.environment_choices import ALL_FAMILIES, EnvironmentChoice, families, family_title
from mosaic.gui.views.widgets import with_object_name
from mosaic.submission.run_payloads import parse_seeds


class LabelledRow(QWidget):
    """A label and an editor that is not a field of the schema, aligned with those that are."""

    def __init__(self, text: str, editor: QWidget, is_wide: bool = False) -> None:
        super().__init__()
        self.label = QLabel(text)
        self.label.setBuddy(editor)
        self.note_label = QLabel()
        self.note_label.setWordWrap(True)
        self.note_label.setProperty("muted", True)
        self.note_label.setFont(theme.note_font())
        self.note_label.hide()
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(theme.GAP // 2)
        grid.setVerticalSpacing(2)
        gutter = QWidget()
        gutter.setFixedWidth(MARK_WIDTH)
        grid.addWidget(gutter, 0, 0)
        grid.addWidget(self.label, 0, 1)
        grid.addWidget(editor, 0, 2)
        grid.addWidget(self.note_label, 1, 1, 1, 3)
        grid.setColumnStretch(2 if is_wide else 3, 1)
        if is_wide:  # ends where the editors of fields end
            grid.setContentsMargins(0, 0, RESET_WIDTH + theme.GAP, 0)
        editor.setMinimumWidth(EDITOR_WIDTH + theme.GAP + EDITOR_WIDTH // 2)

    def set_note(self, text: str) -> None:
        self.note_label.setText(text)
        self.note_label.setVisible(bool(text))


class EnvironmentRow(FieldRow):
    """A family to narrow the list, and an id: chosen, searched for, or of one's own."""

    def _make_editor(self) -> QWidget:
        self._found: list[EnvironmentChoice] = []
        self._family = guard_wheel(QComboBox())
        self._family.setToolTip("Family of environments")
        self._family.setAccessibleName("Family")
        self._family.addItem(ALL_FAMILIES, None)
        self._family.currentIndexChanged.connect(self._fill_ids)
        self._ids = guard_wheel(QComboBox())
        self._ids.setEditable(True)
        self._ids.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self._ids.setMaxVisibleItems(16)
        self._ids.setMinimumContentsLength(12)
        self._ids.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self._model = QStandardItemModel(self)
        self._ids.setModel(self._model)
        self._names = QStringListModel(self)
        completer = QCompleter(self._names, self)
        completer.setFilterMode(Qt.MatchFlag.MatchContains)
        completer.setCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        self._ids.setCompleter(completer)
        self._ids.editTextChanged.connect(self._emit_edited)
        self.input = self._ids
        box = QWidget()
        row = QHBoxLayout(box)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(theme.GAP)
        row.addWidget(self._family)
        row.addWidget(self._ids, 1)
        return box

    def set_object_names(self, prefix: str) -> None:
        with_object_name(self._family, f"{prefix}.family")

    def show_choices(self, choices: list[EnvironmentChoice]) -> None:
        self._found = choices
        kept = self._family.currentData()
        self._family.blockSignals(True)
        self._family.clear()
        self._family.addItem(ALL_FAMILIES, None)
        for name, is_usable in families(choices):
            self._family.addItem(family_title(name) + ("" if is_usable else " (not installed)"), name)
        self._family.setCurrentIndex(max(0, self._family.findData(kept)))
        self._family.blockSignals(False)
        self._fill_ids()

    def _fill_ids(self) -> None:
        """Environments that are not installed are listed but disabled, with what to install."""
        text = self._ids.currentText()
        family = self._family.currentData()
        self._ids.blockSignals(True)
        self._model.clear()
        listed = [one for one in self._found if family in (None, one.family)]
        for one in listed:
            item = QStandardItem(one.id)
            if one.hint:
                item.setText(f"{one.id}   {one.hint}")
                item.setEnabled(False)
                item.setToolTip(one.hint)
            self._model.appendRow(item)
        view = self._ids.view()
        view.setMinimumWidth(view.sizeHintForColumn(0) + 2 * theme.MARGIN)
        self._names.setStringList([one.id for one in listed if one.is_installed])
        self._ids.setCurrentIndex(self._ids.findText(text))
        self._ids.setEditText(text)
        self._ids.blockSignals(False)

    def show_text(self, text: str) -> None:
        if self._ids.currentText() != text:
            self._ids.blockSignals(True)
            self._ids.setEditText(text)
            self._ids.blockSignals(False)


class SeedRow(FieldRow):
    """One seed; or several, each of which becomes a run of one group."""

    seeds_edited = Signal(object)
    """Several seeds as written; None: one again."""

    def _make_editor(self) -> QWidget:
        edit = QLineEdit()
        edit.setFixedWidth(EDITOR_WIDTH)
        edit.textChanged.connect(self._on_typed)
        self._edit = edit
        self.input = edit
        self._several = QCheckBox("Several seeds")
        self._several.setToolTip("One run for each seed, in one group: 1-5 or 1,3,7")
        self._several.toggled.connect(self._on_several_toggled)
        box = QWidget()
        row = QHBoxLayout(box)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(theme.GAP)
        row.addWidget(edit)
        row.addWidget(self._several)
        return box

    def set_object_names(self, prefix: str) -> None:
        with_object_name(self._several, f"{prefix}.several")
        self._reset.clicked.connect(lambda: self.seeds_edited.emit(None))

    def _on_typed(self, text: str) -> None:
        if self._several.isChecked():
            self.seeds_edited.emit(text)
        else:
            self._emit_edited(text)

    def _on_several_toggled(self, is_several: bool) -> None:
        self.seeds_edited.emit("1-5" if is_several else None)
        if is_several:
            self._edit.setFocus()
            self._edit.selectAll()

    def show_seeds(self, text: str, seeds: str | None) -> None:
        self._several.blockSignals(True)
        self._several.setChecked(seeds is not None)
        self._several.blockSignals(False)
        self._edit.setPlaceholderText("1-5 or 1,3,7" if seeds is not None else str(self.field.default))
        self.show_text(text if seeds is None else seeds)

    def show_count(self, seeds: str | None) -> None:
        """Show the number of runs, or the problem with the seeds."""
        try:
            count = len(parse_seeds(seeds)) if seeds is not None else 0
        except BadInput:
            return
        self._help_label.setText(f"{count} runs in one group, one for each seed." if count else self.field.help)


def create_row(field: SettingField, prefix: str) -> FieldRow:
    special = {"env_id": EnvironmentRow, "seed": SeedRow}.get(field.name, FieldRow)
    made: FieldRow = special(field, prefix)
    if isinstance(made, (EnvironmentRow, SeedRow)):
        made.set_object_names(prefix)
    return made
