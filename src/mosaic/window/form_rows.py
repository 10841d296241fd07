"""The rows of a form: a label, an editor and a sentence; whether the value was changed, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from PySide6.QtCore import QEvent, QObject, QSignalBlocker, QStringListModel, Qt, Signal
from PySide6.QtGui import QFocusEvent, QStandardItem, QStandardItemModel
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

from mosaic.base.formatting import count_noun
from mosaic.base.run_payloads import parse_seeds
from mosaic.contracts.errors import BadInput
from mosaic.contracts.setting_field import SettingField
from mosaic.contracts.views import EnvironmentListing
from mosaic.features.train.window_model import Draft
from mosaic.window import theme
from mosaic.window.environments import ALL_FAMILIES, EnvironmentFinding, families, family_title, unavailable_hint
from mosaic.window.form_model import (
    Form,
    field_label,
    field_tooltip,
    field_unit,
    format_default,
    format_object,
    format_setting,
    format_value,
    parse_object,
    read_object,
    write_object,
)
from mosaic.window.widgets import (
    ButtonRow,
    ElidedComboBox,
    ElidedLabel,
    Item,
    PlainLabel,
    button,
    clear_layout,
    column,
    muted_label,
    row,
    set_properties,
    tool_button,
    widget_column,
    with_object_name,
)

EDITOR_WIDTH = 150
"""Of a number, with text of the default size."""
RESET_WIDTH = 28
LABEL_WIDTH = 112
"""In narrow columns."""
MIN_NAME_LENGTH = 16
"""Characters of an algorithm's name that are visible at least."""
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

    def __init__(self, text: str, help: str = "") -> None:
        super().__init__()
        self.label = PlainLabel(text.replace("&", "&&"))  # or the letter after it would be underlined
        self._mark = PlainLabel()
        self._mark.setFixedWidth(theme.scale(MARK_WIDTH))
        self._mark.setProperty("accent", True)
        self._problem = ""
        self.note_label = muted_label("")
        self.note_label.setProperty("note", True)
        self.input: QWidget = QWidget()
        """The widget that takes the focus and is marked when its value is invalid."""
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(theme.GAP // 2)
        self._grid.setVerticalSpacing(2)
        self._grid.addWidget(self._mark, 0, 0)
        self._grid.addWidget(self.label, 0, 1)
        self._grid.addWidget(self.note_label, 1, 1, 1, 4)
        self.set_note(help)

    def _add_editor(self, editor: QWidget, is_wide: bool) -> None:
        self._grid.addWidget(editor, 0, 2)
        self._grid.setColumnStretch(2 if is_wide else 3, 1)

    def show_form(self, form: Form, problem: str) -> None:
        """Show what a form holds, and what is wrong with it here."""
        self.show_problem(problem)

    def show_problem(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            set_properties(self.note_label, error=bool(problem), muted=not problem)
            set_properties(self.input, invalid=bool(problem))
        self.set_note(self._help)

    def set_note(self, text: str) -> None:
        """What is said below it while nothing is wrong."""
        self._help = text
        self.note_label.setText(self._problem or text)
        self.note_label.setVisible(bool(self._problem or text))

    def take_focus(self) -> None:
        self.input.setFocus()
        if isinstance(self.input, QLineEdit):
            self.input.selectAll()

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
        self.input = editor
        self.label.setBuddy(editor)
        self._add_editor(editor, is_wide)
        if is_wide:  # ends where the editors of fields end
            self._grid.setContentsMargins(0, 0, RESET_WIDTH, 0)
        self._editor = editor
        self._fit_to_text()

    def _fit_to_text(self) -> None:
        self._editor.setMinimumWidth(theme.scale(EDITOR_WIDTH + theme.GAP + EDITOR_WIDTH // 2))


class FieldRow(FormRow):
    """A field of the schema."""

    edited = Signal(str, str)
    """The field's name and its text, as typed."""

    def __init__(self, field: SettingField, prefix: str, is_narrow: bool = False) -> None:
        """`is_narrow`: for a narrow column, in which labels are wrapped."""
        super().__init__(field_label(field), field.help)
        self.field = field
        self._is_narrow = is_narrow
        self._is_alone = False
        self.setObjectName(f"{prefix}.row.{field.name}")
        self._default_text = format_setting(field, field.default)
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
        self.show_text(self._default_text)

    def _add_alone(self, editor: QWidget) -> None:
        """Without a label and what is beside it."""
        self._is_alone = True
        for part in (self.label, self._mark):
            part.hide()
        self._grid.addWidget(editor, 0, 0, 1, 5)
        self._grid.addWidget(self.note_label, 1, 0, 1, 5)

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
        if self._is_narrow:
            self.label.setFixedWidth(theme.scale(LABEL_WIDTH))
            self.label.setWordWrap(True)
        if isinstance(self.input, QPlainTextEdit):
            self.input.setFixedHeight(3 * self.input.fontMetrics().lineSpacing() + theme.MARGIN)
        elif self.field.type in ("int", "float", "choice", "bool") and not isinstance(self.input, QCheckBox):
            self.input.setFixedWidth(theme.scale(EDITOR_WIDTH))

    def _emit_edited(self, text: str) -> None:
        self.edited.emit(self.field.name, text)

    def _on_reset(self) -> None:
        self._emit_edited(self._default_text)

    def show_text(self, text: str) -> None:
        """Set the text without a signal; the cursor is not moved while typing."""
        editor = self.input
        with QSignalBlocker(editor):
            if isinstance(editor, QCheckBox):
                editor.setChecked(text == "true")
            elif isinstance(editor, QComboBox):
                editor.setCurrentIndex(editor.findData(text))
                editor.setPlaceholderText(text)  # what is none of the choices
            elif isinstance(editor, QPlainTextEdit) and editor.toPlainText() != text:
                editor.setPlainText(text)
            elif isinstance(editor, QLineEdit) and editor.text() != text:
                editor.setText(text)
                editor.setCursorPosition(0)

    def show_form(self, form: Form, problem: str) -> None:
        name = self.field.name
        is_changed = form.is_changed(name) and not self._is_alone
        self._default_text = form.default_text(name)
        if not self.input.hasFocus():  # typing is not interrupted
            self.show_text(self._text_of(form))
        unit = field_unit(self.field)
        default = f"default {self._default_text or 'unset'}" if is_changed else ""
        self._hint.setText(" · ".join(word for word in (unit, default) if word))
        self._hint.setMinimumWidth(self._hint.fontMetrics().horizontalAdvance(unit) + 1)
        self._mark.setText("●" if is_changed else "")
        self._reset.setVisible(is_changed)
        super().show_form(form, problem)

    def _text_of(self, form: Form) -> str:
        return form.text(self.field.name)


class FieldRows(QWidget):
    """A column of rows for fields that are known only while the window runs: of an environment, of an actor."""

    edited = Signal(str, str)
    """A field's name and its text, as typed."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix
        self._fields: tuple[SettingField, ...] = ()
        self.rows: dict[str, FieldRow] = {}
        self._column = column(parent=self, spacing=theme.GAP // 2)

    def show_form(self, form: Form) -> None:
        """Show a form; its rows are built unless they are here already."""
        if tuple(form.fields.values()) != self._fields:
            self._fields = tuple(form.fields.values())
            clear_layout(self._column)
            self.rows = {field.name: FieldRow(field, self._prefix, is_narrow=True) for field in self._fields}
            for row in self.rows.values():
                row.edited.connect(self._on_edited)
                self._column.addWidget(row)
            if self.parentWidget() is not None:  # else it would be shown as a window
                self.setVisible(bool(self.rows))
        problems = form.problems()
        for name, row in self.rows.items():
            row.show_form(form, problems.get(name, ""))

    def _on_edited(self, name: str, text: str) -> None:
        self.rows[name].show_text(text)  # a reset, too, while the field has the focus
        self.edited.emit(name, text)


class EnvironmentSettingsRow(FieldRow):
    """Its text is an object. What the catalog knows of the environment has rows; the rest is written as JSON."""

    def _create_editor(self, prefix: str) -> QWidget:
        self._settings: tuple[SettingField, ...] = ()
        self._text = ""
        self._known, self._others = read_object((), "")
        """Of the last text that was an object: while other arguments are typed, they often are not."""
        self._kept = self._known
        """The settings that are not from what is being typed."""
        self._rows = FieldRows(f"{prefix}.env")
        self._rows.edited.connect(self._on_setting_edited)
        self.input = self._edit = QLineEdit()
        self._edit.textEdited.connect(self._on_others_edited)
        return widget_column(self._rows, self._edit, spacing=theme.GAP // 2)

    def _add_editor(self, editor: QWidget, is_wide: bool) -> None:
        if self._is_narrow:
            self._add_alone(editor)
            return
        super()._add_editor(editor, is_wide)
        for part in (self._mark, self.label):  # next to the first of its rows, not to their middle
            self._grid.setAlignment(part, Qt.AlignmentFlag.AlignTop)
            part.setMinimumHeight(editor.fontMetrics().height() + theme.GAP)

    def show_settings(self, settings: Sequence[SettingField]) -> None:
        """Show rows for these settings of the chosen environment."""
        if tuple(settings) != self._settings:
            self._settings = tuple(settings)
            self.show_text(self._text)
        self._edit.setPlaceholderText("other arguments as JSON" if settings else '{"name": value}')

    def show_text(self, text: str) -> None:
        self._text = others = text
        with suppress(BadInput):
            self._known, self._others = read_object(self._settings, text)
            others = format_object(self._others)
        self._rows.show_form(self._known)
        if not self._edit.hasFocus():
            self._kept = self._known
            if self._edit.text() != others:
                self._edit.setText(others)
                self._edit.setCursorPosition(0)

    def show_form(self, form: Form, problem: str) -> None:
        super().show_form(form, problem)
        self.show_text(form.text(self.field.name))

    def _on_reset(self) -> None:
        self._edit.clear()
        super()._on_reset()

    def _on_setting_edited(self, name: str, text: str) -> None:
        self._kept = self._known.with_text(name, text)
        self._emit_edited(write_object(self._kept, self._others))

    def _on_others_edited(self, text: str) -> None:
        with suppress(BadInput):
            text = write_object(self._kept, parse_object(text))
        self._emit_edited(text)


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
        if not self._is_narrow:
            return widget_row(self._family, (self._ids, 1))
        shrink_combo(self._ids)
        return widget_column(self._family, self._ids, spacing=theme.GAP // 2)

    def _add_editor(self, editor: QWidget, is_wide: bool) -> None:
        if self._is_narrow:
            self._add_alone(editor)
        else:
            super()._add_editor(editor, is_wide)

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

    def show_form(self, form: Form, problem: str) -> None:
        super().show_form(form, problem or self._finding.text)

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

    def show_form(self, form: Form, problem: str) -> None:
        assert isinstance(form, Draft)
        seeds, help = form.seeds, self.field.help
        with QSignalBlocker(self._several):
            self._several.setChecked(seeds is not None)
        self._edit.setPlaceholderText("1-5 or 1,3,7" if seeds is not None else str(self.field.default))
        if seeds is not None and not problem:
            help = f"{count_noun(len(parse_seeds(seeds)), 'run')} in one group, one for each seed."
        super().show_form(form, problem)
        self.set_note(help)

    def _text_of(self, form: Form) -> str:
        seeds = form.seeds if isinstance(form, Draft) else None
        return super()._text_of(form) if seeds is None else seeds


class AlgorithmBox(QComboBox):
    """What is typed is searched for in the names; only a name of the list is chosen, when Return or Tab ends typing."""

    name_chosen = Signal(str)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.installEventFilter(WheelGuard(self))
        self._model = QStandardItemModel(self)
        self.setModel(self._model)
        self._completions = make_searchable(self, MIN_NAME_LENGTH)
        self.setMaxVisibleItems(24)
        self._groups: list[tuple[str, list[str]]] = []
        self._chosen = ""
        self.setToolTip("Type a part of a name to search")
        edit = self.lineEdit()
        assert edit is not None
        edit.editingFinished.connect(self._take_text)
        self.activated.connect(lambda _: self._take_text())
        if (completer := self.completer()) is not None:
            completer.activated.connect(lambda _: self._take_text())

    def show_names(self, groups: Sequence[tuple[str, list[str]]], chosen: str) -> None:
        """List the names under the titles of their groups, without a signal."""
        shown = [(title, names) for title, names in groups if names]
        self._chosen = chosen
        with QSignalBlocker(self):
            if shown != self._groups:
                self._groups = shown
                self._fill()
            self.setCurrentIndex(self.findText(chosen))
            self.setEditText(chosen)

    def _fill(self) -> None:
        self._model.clear()
        for title, names in self._groups:
            heading = QStandardItem(title)
            heading.setEnabled(False)
            heading.setFont(theme.text_font(-1, is_bold=True))
            self._model.appendRow(heading)
            for name in names:
                self._model.appendRow(QStandardItem(name))
        self._completions.setStringList(sorted(self.names()))
        view = self.view()
        view.setMinimumWidth(view.sizeHintForColumn(0) + 2 * theme.MARGIN)

    def names(self) -> list[str]:
        return [name for _, names in self._groups for name in names]

    def _take_text(self) -> None:
        """Choose what was typed if it is a name, or if it is a part of one name alone; otherwise nothing changes."""
        text = self.currentText().strip()
        having = [name for name in self.names() if text.lower() in name.lower()] if text else []
        found = text if text in self.names() else having[0] if len(having) == 1 else self._chosen
        if found != text:
            self.setEditText(found)
        if found != self._chosen:
            self._chosen = found
            self.name_chosen.emit(found)

    def begin_typing(self) -> None:
        """Take the focus; typing replaces the name, also if the box has the focus already."""
        self.setFocus(Qt.FocusReason.ShortcutFocusReason)
        if (edit := self.lineEdit()) is not None:
            edit.selectAll()

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Typing replaces the name."""
        super().focusInEvent(event)
        if (edit := self.lineEdit()) is not None and event.reason() is not Qt.FocusReason.PopupFocusReason:
            edit.selectAll()


ROW_TYPES: dict[str, type[FieldRow]] = {"env_id": EnvironmentRow, "env_kwargs": EnvironmentSettingsRow}
"""Of fields that are more than a value."""
