"""Which keys a widget keeps for itself, though they are a shortcut of the window's."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QAbstractButton, QAbstractItemView, QApplication, QComboBox

SPACE_SHORTCUT_WIDGETS = ("runs.table",)
"""Lists that do nothing with the space bar themselves."""


def overrides_shortcut(event: QEvent) -> bool:
    """The space bar presses the button and ticks the row that is in focus; elsewhere it may be a shortcut."""
    if event.type() is not QEvent.Type.ShortcutOverride or not isinstance(event, QKeyEvent):
        return False
    widget = QApplication.focusWidget()
    if not isinstance(widget, QAbstractButton | QComboBox | QAbstractItemView):
        return False
    return event.key() == Qt.Key.Key_Space and widget.objectName() not in SPACE_SHORTCUT_WIDGETS
