"""What was changed last in the window and how to take it back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal

MAX_CHANGES = 20


@dataclass(frozen=True, eq=False)
class Change:
    """Something that can be taken back."""

    title: str
    """As in `Undo: delete 3 runs`."""
    undo: Callable[[], None]
    key: str = ""
    """Of a change in several steps, such as a note that is saved while it is typed; empty: it has one step."""


class UndoStack(QObject):
    changed = Signal()
    """What would be taken back next has changed."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._changes: list[Change] = []

    @property
    def title(self) -> str:
        """Of the last change; empty where there is none."""
        return self._changes[-1].title if self._changes else ""

    def push(self, title: str, undo: Callable[[], None], key: str = "") -> Change:
        """Add a change; a further step of the last one is taken back together with it."""
        last = self._changes[-1] if self._changes else None
        if last is not None and key and last.key == key:
            return last
        change = Change(title, undo, key)
        self._changes = [*self._changes[1 - MAX_CHANGES :], change]
        self.changed.emit()
        return change

    def take_back(self, change: Change) -> None:
        """Take a change back, once."""
        if change in self._changes:
            self._changes.remove(change)
            self.changed.emit()
            change.undo()

    def undo(self) -> None:
        """Take the last change back."""
        if self._changes:
            self.take_back(self._changes[-1])
