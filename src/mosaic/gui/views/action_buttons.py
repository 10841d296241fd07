"""Buttons for the actions of a human, with the keys that mean them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QGridLayout, QPushButton, QWidget

from mosaic.contracts.key_binding import KeyBinding
from mosaic.gui.views.widgets import button, clear_layout, muted_label

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
