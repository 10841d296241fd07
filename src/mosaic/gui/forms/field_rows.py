"""One row of a form: its label, its editor, its sentence; whether it was changed, and what is wrong with it."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QGridLayout,
    QLabel,
    QLineEdit,
    QPlainTextEdit,
    QSizePolicy,
    QToolButton,
    QWidget,
)

from mosaic.contracts.setting_field import SettingField
from mosaic.gui import theme
from mosaic.gui.models.form_layout import field_label, field_tooltip, field_unit, format_default, format_value
from mosaic.gui.views.widgets import with_object_name

EDITOR_WIDTH = 150
RESET_WIDTH = 28
MARK_WIDTH = 12
"""Width of the gutter in which a changed field has its mark."""


class WheelGuard(QObject):
    """The wheel scrolls the form, not the value under the pointer, unless that has the focus."""

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Wheel and isinstance(watched, QWidget) and not watched.hasFocus():
            event.ignore()
            return True
        return False


def guard_wheel(combo: QComboBox) -> QComboBox:
    combo.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    combo.installEventFilter(WheelGuard(combo))
    return combo


def line_editor(field: SettingField) -> QLineEdit:
    edit = QLineEdit()
    edit.setPlaceholderText(format_default(field) if field.default is not None or field.is_optional else "")
    return edit


class FieldRow(QWidget):
    edited = Signal(str, str)
    """The field's name and its text, as typed."""

    def __init__(self, field: SettingField, prefix: str) -> None:
        super().__init__()
        self.field = field
        self.setObjectName(f"{prefix}.row.{field.name}")
        self._problem = ""
        self.label = QLabel(field_label(field).replace("&", "&&"))  # or the letter after it would be underlined
        self._changed_mark = QLabel()
        self._changed_mark.setFixedWidth(MARK_WIDTH)
        self._changed_mark.setProperty("accent", True)
        self._changed_mark.setToolTip("Changed")
        self._hint = QLabel()
        self._hint.setProperty("muted", True)
        self._reset = with_object_name(QToolButton(), f"{prefix}.reset.{field.name}")
        self._reset.setProperty("flat", True)
        self._reset.setFixedWidth(RESET_WIDTH)
        self._reset.setToolTip(f"Back to {format_default(field)}")
        self._reset.setAccessibleName(f"Reset {field_label(field)}")
        policy = self._reset.sizePolicy()
        policy.setRetainSizeWhenHidden(True)
        self._reset.setSizePolicy(policy)
        self._reset.hide()
        self._reset.clicked.connect(lambda: self.edited.emit(field.name, format_value(field.default)))
        self._help_label = with_object_name(QLabel(field.help), f"{prefix}.said.{field.name}")
        self._help_label.setWordWrap(True)
        self._help_label.setProperty("muted", True)
        self.input: QWidget = QWidget()
        """What takes the focus and the mark of a problem."""
        self.editor = self._make_editor()
        self.input.setObjectName(f"{prefix}.{field.name}")
        self.input.setToolTip(field_tooltip(field))
        self.input.setAccessibleName(field_label(field))
        self.input.setAccessibleDescription(field.help)
        self.label.setBuddy(self.input)
        self.label.setToolTip(field_tooltip(field))
        self._arrange()
        self.restyle()
        self.show_text(format_value(field.default))

    def _arrange(self) -> None:
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(theme.GAP // 2)
        grid.setVerticalSpacing(2)
        grid.addWidget(self._changed_mark, 0, 0)
        grid.addWidget(self.label, 0, 1)
        grid.addWidget(self.editor, 0, 2)
        grid.addWidget(self._hint, 0, 3)
        grid.addWidget(self._reset, 0, 4)
        grid.addWidget(self._help_label, 1, 1, 1, 4)
        is_narrow = self.field.type in ("int", "float", "bool", "choice")
        grid.setColumnStretch(3 if is_narrow else 2, 1)
        self._hint.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    def _make_editor(self) -> QWidget:
        field = self.field
        if field.type == "bool":
            box = QCheckBox()
            box.toggled.connect(lambda is_on: self._emit_edited(format_value(is_on)))
            self.input = box
        elif field.type == "choice":
            combo = guard_wheel(QComboBox())
            combo.addItems([str(choice) for choice in (field.constraints or {}).get("choices", ())])
            combo.setFixedWidth(EDITOR_WIDTH)
            combo.currentTextChanged.connect(self._emit_edited)
            self.input = combo
        elif field.type == "text":
            text = QPlainTextEdit()
            text.setTabChangesFocus(True)
            text.setFixedHeight(3 * text.fontMetrics().lineSpacing() + theme.MARGIN)
            text.setPlaceholderText(format_default(field))
            text.textChanged.connect(lambda: self._emit_edited(text.toPlainText()))
            self.input = text
        else:
            edit = line_editor(field)
            if field.type in ("int", "float"):
                edit.setFixedWidth(EDITOR_WIDTH)
            edit.textChanged.connect(self._emit_edited)
            self.input = edit
        return self.input

    def _emit_edited(self, text: str) -> None:
        self.edited.emit(self.field.name, text)

    def take_focus(self) -> None:
        self.input.setFocus()
        if isinstance(self.input, QLineEdit):
            self.input.selectAll()

    # --- what it shows

    def show_text(self, text: str) -> None:
        """Set the text without a signal; the cursor is not moved while typing."""
        editor = self.input
        editor.blockSignals(True)
        if isinstance(editor, QCheckBox):
            editor.setChecked(text == "true")
        elif isinstance(editor, QComboBox):
            editor.setCurrentText(text)
        elif isinstance(editor, QPlainTextEdit):
            if editor.toPlainText() != text:
                editor.setPlainText(text)
        elif isinstance(editor, QLineEdit) and editor.text() != text:
            editor.setText(text)
            editor.setCursorPosition(0)
        editor.blockSignals(False)

    def show_state(self, is_changed: bool, problem: str) -> None:
        field = self.field
        unit = field_unit(field)
        default = f"default {format_default(field)}" if is_changed else ""
        self._hint.setText(" · ".join(word for word in (unit, default) if word))
        self._hint.setMinimumWidth(self._hint.fontMetrics().horizontalAdvance(unit))
        self._changed_mark.setText("●" if is_changed else "")
        self._reset.setVisible(is_changed)
        if problem != self._problem:
            self._problem = problem
            self._help_label.setText(problem or field.help)
            for widget, name, value in (
                (self._help_label, "error", bool(problem)),
                (self._help_label, "muted", not problem),
                (self.input, "invalid", bool(problem)),
            ):
                widget.setProperty(name, value)
                widget.style().unpolish(widget)
                widget.style().polish(widget)

    def restyle(self) -> None:
        """After a change of theme."""
        self._reset.setIcon(theme.icon("mdi6.undo-variant", "muted"))
        self._help_label.setFont(theme.note_font())
