"""Turns key events into the state of the keyboard, for as long as someone plays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from PySide6.QtCore import QEvent, QObject, QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence, QResizeEvent
from PySide6.QtWidgets import QGridLayout, QPushButton, QWidget

from mosaic.contracts.key_binding import KeyBinding
from mosaic.contracts.play import Keys
from mosaic.window.widgets import button, clear_layout, muted_label

MAX_KEYS = 16
MAX_NAME = 20
_COMMAND_MODIFIERS = (
    Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier | Qt.KeyboardModifier.MetaModifier
)
_MODIFIER_KEYS = {
    Qt.Key.Key_Shift: "Shift",
    Qt.Key.Key_Control: "",
    Qt.Key.Key_Alt: "",
    Qt.Key.Key_AltGr: "",
    Qt.Key.Key_Meta: "",
}


def key_name(key: int) -> str:
    """Return the name of a key as the catalog writes it; empty for one that is not played with."""
    if (known := _MODIFIER_KEYS.get(Qt.Key(key))) is not None:
        return known
    name = QKeySequence(key).toString(QKeySequence.SequenceFormat.PortableText)
    return name if len(name) <= MAX_NAME and name.isprintable() else ""


class KeyCapture(QObject):
    """Watches widgets. While it is active, keys in them are for the session and do nothing else.

    Shortcuts with Ctrl or Alt still work, and so do Tab and the function keys unless they are in the key map.
    """

    keys_changed = Signal(object)
    """The `Keys` to send."""
    left = Signal()
    """Escape was pressed."""
    focus_changed = Signal()
    """One of the widgets has got or lost the focus."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.is_active = False
        self.mapped: frozenset[str] = frozenset()
        """The keys of the key map."""
        self._held: dict[int, str] = {}
        """By scan code: a key may have another name when it is released, because of Shift."""

    def watch(self, *widgets: QWidget) -> None:
        for widget in widgets:
            widget.installEventFilter(self)

    def set_active(self, is_active: bool) -> None:
        if self.is_active and not is_active:
            self.release_all()
        self.is_active = is_active

    def release_all(self) -> None:
        if self._held:
            self._held.clear()
            self.keys_changed.emit(Keys())

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        kind = event.type()
        if kind in (QEvent.Type.FocusOut, QEvent.Type.WindowDeactivate, QEvent.Type.Hide):
            self.release_all()
            self.focus_changed.emit()
        elif kind == QEvent.Type.FocusIn:
            self.focus_changed.emit()
        elif isinstance(event, QKeyEvent) and self.is_active:
            if kind == QEvent.Type.ShortcutOverride:
                if self._is_for_session(event):
                    event.accept()  # it is a key then, not a shortcut
                    return True
            elif kind == QEvent.Type.KeyPress:
                return self._press(event)
            elif kind == QEvent.Type.KeyRelease:
                return self._release(event)
        return False

    def _is_for_session(self, event: QKeyEvent) -> bool:
        if event.modifiers() & _COMMAND_MODIFIERS:
            return False
        if event.key() == Qt.Key.Key_Escape:
            return True
        name = key_name(event.key())
        is_navigation = event.key() in (Qt.Key.Key_Tab, Qt.Key.Key_Backtab) or Qt.Key.Key_F1 <= event.key() <= (
            Qt.Key.Key_F35
        )
        return bool(name) and (name in self.mapped or not is_navigation)

    def _press(self, event: QKeyEvent) -> bool:
        if not self._is_for_session(event):
            return False
        if event.key() == Qt.Key.Key_Escape:
            self.release_all()
            self.left.emit()
        elif not event.isAutoRepeat():
            name = key_name(event.key())
            self._held[_identify(event)] = name
            self.keys_changed.emit(Keys(down=self._down(), pressed=(name,)))
        return True

    def _release(self, event: QKeyEvent) -> bool:
        if event.isAutoRepeat():
            return _identify(event) in self._held
        if self._held.pop(_identify(event), None) is None:
            return False
        self.keys_changed.emit(Keys(down=self._down()))
        return True

    def _down(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._held.values()))[:MAX_KEYS]


def _identify(event: QKeyEvent) -> int:
    return event.nativeScanCode() or -event.key()


# --- Buttons for the actions of a human, with the keys that mean them.


MAX_BUTTONS = 24
"""More actions than this are chosen by keys, or not at all."""
_SYMBOLS = {"Left": "←", "Right": "→", "Up": "↑", "Down": "↓", "Return": "⏎"}


def format_keys(keys: Sequence[str]) -> str:
    """`↑ + Space`."""
    return " + ".join(_SYMBOLS.get(key, key) for key in keys)


def format_key_map(bindings: Sequence[KeyBinding]) -> str:
    """`← push left, → push right`."""
    return "    ".join(f"{format_keys(binding.keys)} {binding.text}" for binding in bindings)


class ActionButtons(QWidget):
    """One button per discrete action; only the keys, where actions are continuous or too many."""

    pressed = Signal(int)
    """The number of the action."""

    def __init__(self) -> None:
        super().__init__()
        self._layout = QGridLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(4)
        self._buttons: list[QPushButton] = []
        self._shown: tuple[tuple[str, ...], tuple[KeyBinding, ...]] | None = None
        self._columns = 0

    @property
    def buttons(self) -> Sequence[QPushButton]:
        return self._buttons

    def show_actions(self, names: Sequence[str], bindings: Sequence[KeyBinding]) -> bool:
        """Make the buttons; return whether they are others than before."""
        shown = (tuple(names), tuple(bindings))
        if shown == self._shown:
            return False
        self._shown = shown
        clear_layout(self._layout)
        self._buttons = []
        if not names or len(names) > MAX_BUTTONS:
            text = format_key_map(bindings) if bindings else "These actions have no keys: let another actor act."
            self._layout.addWidget(muted_label(text, "play.keys"), 0, 0)
            return True
        keys = {binding.action: format_keys(binding.keys) for binding in reversed(bindings)}
        for number, name in enumerate(names):
            title = name.replace("_", " ")
            text = f"{title}  {keys[name]}" if name in keys else title
            tip = f"{title} ({keys[name]})" if name in keys else title
            one = button(text, f"play.action.{number}", partial(self.pressed.emit, number), tip)
            one.setFocusPolicy(Qt.FocusPolicy.NoFocus)
            self._buttons.append(one)
        self._columns = 0
        self._arrange()
        return True

    def enable_actions(self, is_enabled: bool, legal: Sequence[int] | None) -> None:
        for number, one in enumerate(self._buttons):
            one.setEnabled(is_enabled and (legal is None or number in legal))

    def _arrange(self) -> None:
        if not self._buttons:
            return
        widest = max(one.sizeHint().width() for one in self._buttons)
        columns = min(len(self._buttons), max(1, (self.width() + 4) // (widest + 4)))
        rows = -(-len(self._buttons) // columns)
        columns = -(-len(self._buttons) // rows)  # rows of about the same length
        if columns == self._columns:
            return
        for column in range(self._layout.columnCount()):
            self._layout.setColumnStretch(column, 0)
        self._columns = columns
        for number, one in enumerate(self._buttons):
            self._layout.addWidget(one, number // columns, number % columns)
        self._layout.setColumnStretch(columns, 1)

    def minimumSizeHint(self) -> QSize:
        size = super().minimumSizeHint()
        return QSize(min(size.width(), 80), size.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()
