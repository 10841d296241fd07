"""Turns key events into the state of the keyboard, for as long as someone plays."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence
from PySide6.QtWidgets import QWidget

from mosaic.contracts.play_commands import Keys

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
