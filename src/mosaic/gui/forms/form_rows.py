"""The rows of a form: a label, an editor and a sentence; whether the value was changed, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from PySide6.QtCore import QEvent, QObject, QSignalBlocker, QStringListModel, Qt, Signal
from PySide6.QtGui import QStandardItem, QStandardItemModel
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QCompleter,
    QGridLayout,
    QLineEdit,
    QPlainTextEdit,
    QSizePolicy,
    QWidget,
)

from mosaic.contracts.errors import BadInput
from mosaic.contracts.setting_field import SettingField
from mosaic.contracts.views import EnvironmentListing
from mosaic.formatting import count_noun
from mosaic.gui import theme
from mosaic.gui.models.environment_check import EnvironmentFinding
from mosaic.gui.models.environment_choices import ALL_FAMILIES, families, family_title, unavailable_hint
from mosaic.gui.models.form_layout import field_label, field_tooltip, field_unit, format_default, format_value
from mosaic.gui.views.button_row import ButtonRow
from mosaic.gui.views.elided_combo_box import ElidedComboBox
from mosaic.gui.views.widgets import (
    ElidedLabel,
    Item,
    PlainLabel,
    button,
    clear_layout,
    muted_label,
    row,
    set_properties,
    tool_button,
    widget_column,
    with_object_name,
)
from mosaic.submission.run_payloads import parse_seeds

EDITOR_WIDTH = 150
"""Of a number, with text of the default size."""
RESET_WIDTH = 28
MARK_WIDTH = 12
"""Width of the column in which a changed field has its mark, with text of the default size."""


class WheelGuard(QObject):
    """The wheel scrolls the form, not the value under the pointer, unless that has the focus."""

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Wheel and isinstance(watched, QWidget) and not watched.hasFocus():
            event.ignore()
            return True
        return False


def form_combo(name: str = "") -> QComboBox:
    combo = with_object_name(ElidedComboBox(), name)
    combo.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    combo.installEventFilter(WheelGuard(combo))
    return combo


def shrink_combo(combo: QComboBox) -> None:
    """Let it be narrower than its longest entry."""
    combo.setMinimumContentsLength(10)
    combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)


def make_searchable(combo: QComboBox, min_length: int) -> QStringListModel:
    """Make it editable, and return the model of the texts that it completes.

    A model for the list is set before: later, the completer would get it, too, with titles and disabled rows.
    """
    combo.setEditable(True)
    combo.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
    combo.setMinimumContentsLength(min_length)
    combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
    texts = QStringListModel(combo)
    completer = QCompleter(texts, combo)
    completer.setFilterMode(Qt.MatchFlag.MatchContains)
    completer.setCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
    if (popup := completer.popup()) is not None:
        popup.setProperty("bordered", True)
    combo.setCompleter(completer)
    return texts


def widget_row(*items: Item) -> QWidget:
    """Several widgets as one editor."""
    editor = QWidget()
    row(*items, parent=editor)
    return editor


class FormRow(QWidget):
    """A label, an editor and a sentence below them, in the same columns in all rows of a form."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.label = PlainLabel(text.replace("&", "&&"))  # or the letter after it would be underlined
        self._mark = PlainLabel()
        self._mark.setFixedWidth(theme.scale(MARK_WIDTH))
        self._mark.setProperty("accent", True)
        self.note_label = muted_label("")
        self.note_label.setProperty("note", True)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(theme.GAP // 2)
        self._grid.setVerticalSpacing(2)
        self._grid.addWidget(self._mark, 0, 0)
        self._grid.addWidget(self.label, 0, 1)
        self._grid.addWidget(self.note_label, 1, 1, 1, 4)

    def _add_editor(self, editor: QWidget, is_wide: bool) -> None:
        self._grid.addWidget(editor, 0, 2)
        self._grid.setColumnStretch(2 if is_wide else 3, 1)

    def minimum_width(self) -> int:
        """What it needs now, without waiting for the layouts to be updated."""
        for widget in reversed([self, *self.findChildren(QWidget)]):
            widget.updateGeometry()
            if (layout := widget.layout()) is not None:
                layout.invalidate()
        return self._grid.minimumSize().width()

    def _fit_to_text(self) -> None:
        """Set the sizes that depend on the size of the text."""

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self._mark.setFixedWidth(theme.scale(MARK_WIDTH))
            self._fit_to_text()


def align_labels(rows: Iterable[FormRow]) -> None:
    """Make their labels equally wide, so that the editors are in one column."""
    labels = [row.label for row in rows]
    width = max(label.fontMetrics().horizontalAdvance(label.text().replace("&&", "&")) for label in labels)
    for label in labels:
        label.setFixedWidth(width + theme.GAP)


class LabelledRow(FormRow):
    """An editor that is not a field of the schema."""

    def __init__(self, text: str, editor: QWidget, is_wide: bool = False) -> None:
        super().__init__(text)
        self.label.setBuddy(editor)
        self._add_editor(editor, is_wide)
        if is_wide:  # ends where the editors of fields end
            self._grid.setContentsMargins(0, 0, RESET_WIDTH, 0)
        self._editor = editor
        self._fit_to_text()
        self.set_note("")

    def _fit_to_text(self) -> None:
        self._editor.setMinimumWidth(theme.scale(EDITOR_WIDTH + theme.GAP + EDITOR_WIDTH // 2))

    def set_note(self, text: str, is_problem: bool = False) -> None:
        self.note_label.setText(text)
        self.note_label.setVisible(bool(text))
        set_properties(self.note_label, error=is_problem, muted=not is_problem)


class FieldRow(FormRow):
    """A field of the schema."""

    edited = Signal(str, str)
    """The field's name and its text, as typed."""

    def __init__(self, field: SettingField, prefix: str) -> None:
        super().__init__(field_label(field))
        self.field = field
        self.setObjectName(f"{prefix}.row.{field.name}")
        self._problem = ""
        self._mark.setToolTip("Changed")
        self._hint = ElidedLabel()
        self._hint.setProperty("muted", True)
        self._hint.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        tip = f"Back to {format_default(field)}"
        self._reset = tool_button(f"{prefix}.reset.{field.name}", "", tip, self._on_reset)
        self._reset.setIcon(theme.icon("mdi6.undo-variant", "muted"))
        self._reset.setFixedWidth(RESET_WIDTH)
        self._reset.setAccessibleName(f"Reset {field_label(field)}")
        policy = self._reset.sizePolicy()
        policy.setRetainSizeWhenHidden(True)
        self._reset.setSizePolicy(policy)
        self._reset.hide()
        self.note_label.setObjectName(f"{prefix}.note.{field.name}")
        self.note_label.setText(field.help)
        self.input: QWidget = QWidget()
        """The widget that takes the focus and is marked when its value is invalid."""
        self._add_editor(self._create_editor(prefix), field.type not in ("int", "float", "bool", "choice"))
        self._fit_to_text()
        self._grid.addWidget(self._hint, 0, 3)
        self._grid.addWidget(self._reset, 0, 4)
        self.input.setObjectName(f"{prefix}.{field.name}")
        self.input.setAccessibleName(field_label(field))
        self.input.setAccessibleDescription(field.help)
        self.label.setBuddy(self.input)
        for widget in (self.label, self.input):
            widget.setToolTip(field_tooltip(field))
        self.show_text(format_value(field.default))

    def _create_editor(self, prefix: str) -> QWidget:
        """Create the editor and set `input`, which may be a part of it."""
        field = self.field
        if field.type == "bool" and not field.is_optional:
            box = QCheckBox()
            box.toggled.connect(lambda is_on: self._emit_edited(format_value(is_on)))
            self.input = box
        elif field.type in ("choice", "bool"):
            combo = form_combo()
            if field.is_optional:
                combo.addItem("unset", "")
            for choice in (field.constraints or {}).get("choices", ("true", "false")):
                combo.addItem(str(choice), str(choice))
            combo.currentIndexChanged.connect(lambda _: self._emit_edited(combo.currentData()))
            self.input = combo
        elif field.type == "text":
            text = QPlainTextEdit()
            text.setTabChangesFocus(True)
            text.setPlaceholderText(format_default(field))
            text.textChanged.connect(lambda: self._emit_edited(text.toPlainText()))
            self.input = text
        else:
            edit = QLineEdit()
            edit.setPlaceholderText(format_default(field) if field.default is not None or field.is_optional else "")
            edit.textChanged.connect(self._emit_edited)
            self.input = edit
        return self.input

    def _fit_to_text(self) -> None:
        if isinstance(self.input, QPlainTextEdit):
            self.input.setFixedHeight(3 * self.input.fontMetrics().lineSpacing() + theme.MARGIN)
        elif self.field.type in ("int", "float", "choice", "bool") and not isinstance(self.input, QCheckBox):
            self.input.setFixedWidth(theme.scale(EDITOR_WIDTH))

    def _emit_edited(self, text: str) -> None:
        self.edited.emit(self.field.name, text)

    def _on_reset(self) -> None:
        self._emit_edited(format_value(self.field.default))

    def take_focus(self) -> None:
        self.input.setFocus()
        if isinstance(self.input, QLineEdit):
            self.input.selectAll()

    def show_text(self, text: str) -> None:
        """Set the text without a signal; the cursor is not moved while typing."""
        editor = self.input
        with QSignalBlocker(editor):
            if isinstance(editor, QCheckBox):
                editor.setChecked(text == "true")
            elif isinstance(editor, QComboBox):
                editor.setCurrentIndex(max(0, editor.findData(text)))
            elif isinstance(editor, QPlainTextEdit) and editor.toPlainText() != text:
                editor.setPlainText(text)
            elif isinstance(editor, QLineEdit) and editor.text() != text:
                editor.setText(text)
                editor.setCursorPosition(0)

    def show_state(self, is_changed: bool, problem: str) -> None:
        unit = field_unit(self.field)
        default = f"default {format_default(self.field)}" if is_changed else ""
        self._hint.setText(" · ".join(word for word in (unit, default) if word))
        self._hint.setMinimumWidth(self._hint.fontMetrics().horizontalAdvance(unit) + 1)
        self._mark.setText("●" if is_changed else "")
        self._reset.setVisible(is_changed)
        if problem != self._problem:
            self._problem = problem
            self.note_label.setText(problem or self.field.help)
            set_properties(self.note_label, error=bool(problem), muted=not problem)
            set_properties(self.input, invalid=bool(problem))


class EnvironmentRow(FieldRow):
    """A family to narrow the list, and an id: chosen, searched for, or any other."""

    algorithm_chosen = Signal(str)
    """A button with an algorithm that suits the environment was clicked."""

    def _create_editor(self, prefix: str) -> QWidget:
        self._finding = EnvironmentFinding()
        self._suggestions = with_object_name(QWidget(), f"{prefix}.suggestions")
        self._suggestions_layout = row(parent=self._suggestions)
        self._suggestions.hide()
        self._grid.addWidget(self._suggestions, 2, 1, 1, 4)
        self._listings: list[EnvironmentListing] = []
        self._family = form_combo(f"{prefix}.family")
        self._family.setToolTip("Family of environments")
        self._family.setAccessibleName("Family")
        self._family.addItem(ALL_FAMILIES, None)
        self._family.currentIndexChanged.connect(self._fill_ids)
        shrink_combo(self._family)  # the id is longer
        self._ids = form_combo()
        self._model = QStandardItemModel(self)
        self._ids.setModel(self._model)
        self._completions = make_searchable(self._ids, 9)
        self._ids.setMaxVisibleItems(16)
        self._ids.editTextChanged.connect(self._emit_edited)
        self.input = self._ids
        return self._arrange(self._family, self._ids)

    def _arrange(self, family: QComboBox, ids: QComboBox) -> QWidget:
        return widget_row(family, (ids, 1))

    def show_finding(self, finding: EnvironmentFinding) -> None:
        """Show what is wrong with the environment, with buttons for what to do; the worker decides."""
        if finding == self._finding:
            return
        self._finding = finding
        clear_layout(self._suggestions_layout)
        buttons = [(name, partial(self._emit_edited, name)) for name in finding.environments]
        buttons += [(name, partial(self.algorithm_chosen.emit, name)) for name in finding.algorithms]
        if buttons:
            self._suggestions_layout.addWidget(
                ButtonRow([button(name, f"suggest.{name}", choose) for name, choose in buttons])
            )
        self._suggestions.setVisible(bool(buttons))

    def show_state(self, is_changed: bool, problem: str) -> None:
        super().show_state(is_changed, problem or self._finding.text)

    def show_choices(self, listings: list[EnvironmentListing]) -> None:
        self._listings = listings
        selected = self._family.currentData()
        with QSignalBlocker(self._family):
            self._family.clear()
            self._family.addItem(ALL_FAMILIES, None)
            for name, is_usable in families(listings):
                self._family.addItem(family_title(name) + ("" if is_usable else " (not installed)"), name)
            self._family.setCurrentIndex(max(0, self._family.findData(selected)))
        self._fill_ids()

    def _fill_ids(self) -> None:
        """Environments that are not installed are listed but disabled, with what to install."""
        text = self._ids.currentText()
        family = self._family.currentData()
        listings = [listing for listing in self._listings if family in (None, listing.family)]
        with QSignalBlocker(self._ids):
            self._model.clear()
            for listing in listings:
                hint = unavailable_hint(listing)
                item = QStandardItem(f"{listing.id}   {hint}" if hint else listing.id)
                item.setEnabled(not hint)
                item.setToolTip(hint)
                self._model.appendRow(item)
            view = self._ids.view()
            view.setMinimumWidth(view.sizeHintForColumn(0) + 2 * theme.MARGIN)
            self._completions.setStringList([listing.id for listing in listings if listing.is_installed])
            self._ids.setCurrentIndex(self._ids.findText(text))
            self._set_id(text)

    def show_text(self, text: str) -> None:
        if self._ids.currentText() != text:
            with QSignalBlocker(self._ids):
                self._set_id(text)

    def show_family_of(self, env_id: str) -> None:
        """Select the family of an environment; all families where it is not listed."""
        family = next((listing.family for listing in self._listings if listing.id == env_id), None)
        self._family.setCurrentIndex(max(0, self._family.findData(family)))

    def _set_id(self, text: str) -> None:
        """Show the beginning of an id that is longer than the box."""
        self._ids.setEditText(text)
        if (edit := self._ids.lineEdit()) is not None and not edit.hasFocus():
            edit.setCursorPosition(0)


class NarrowEnvironmentRow(EnvironmentRow):
    """The same in a narrow column: the family above the id, without a label."""

    def _arrange(self, family: QComboBox, ids: QComboBox) -> QWidget:
        for combo in (family, ids):
            shrink_combo(combo)
        return widget_column(family, ids, spacing=theme.GAP // 2)

    def _add_editor(self, editor: QWidget, is_wide: bool) -> None:
        self.label.hide()
        self._mark.hide()
        self._grid.addWidget(editor, 0, 0, 1, 5)
        self._grid.addWidget(self.note_label, 1, 0, 1, 5)


class SeedRow(FieldRow):
    """One seed; or several, each of which becomes a run of one group."""

    seeds_edited = Signal(object)
    """Several seeds as written; None: one again."""

    def _create_editor(self, prefix: str) -> QWidget:
        self._edit = QLineEdit()
        self._edit.textChanged.connect(self._on_typed)
        self.input = self._edit
        self._several = with_object_name(QCheckBox("Several seeds"), f"{prefix}.several")
        self._several.setToolTip("One run for each seed, in one group: 1-5 or 1,3,7")
        self._several.toggled.connect(self._on_several_toggled)
        return widget_row(self._edit, self._several)

    def _on_reset(self) -> None:
        super()._on_reset()
        self.seeds_edited.emit(None)

    def _on_typed(self, text: str) -> None:
        if self._several.isChecked():
            self.seeds_edited.emit(text)
        else:
            self._emit_edited(text)

    def _on_several_toggled(self, is_several: bool) -> None:
        self.seeds_edited.emit("1-5" if is_several else None)
        if is_several:
            self.take_focus()

    def show_seeds(self, text: str, seeds: str | None) -> None:
        with QSignalBlocker(self._several):
            self._several.setChecked(seeds is not None)
        self._edit.setPlaceholderText("1-5 or 1,3,7" if seeds is not None else str(self.field.default))
        self.show_text(text if seeds is None else seeds)

    def show_count(self, seeds: str | None) -> None:
        """Show the number of runs, or the problem with the seeds."""
        try:
            count = len(parse_seeds(seeds)) if seeds is not None else 0
        except BadInput:
            return
        self.note_label.setText(
            f"{count_noun(count, 'run')} in one group, one for each seed." if count else self.field.help
        )


def create_row(field: SettingField, prefix: str) -> FieldRow:
    return {"env_id": EnvironmentRow, "seed": SeedRow}.get(field.name, FieldRow)(field, prefix)
