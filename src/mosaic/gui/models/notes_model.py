"""The note of each run, edited here and kept by the daemon; and a scratch page for what belongs to no run yet."""

from __future__ import annotations

import time
from typing import Any

from PySide6.QtCore import QObject, Signal

from mosaic.gui.bridge import Bridge

SCRATCH_ID = ""


class Notes(QObject):
    changed = Signal(str)
    """The run whose note has changed; empty for the scratch page."""

    def __init__(self, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self.scratch = ""

    def append_scratch(self, text: str) -> None:
        """Adds a paragraph with its time, such as the verdict of a dry run."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self.scratch = f"{self.scratch}[{stamp}] {text}\n"
        self.changed.emit(SCRATCH_ID)

    def save(self, run_id: str, text: str) -> None:
        def call(trainer: Any) -> Any:
            return trainer.annotate(run_id, notes=text)

        self._bridge.ask(call, lambda _: self.changed.emit(run_id), None, self)
