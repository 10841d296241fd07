"""A window that tells how far a task is; it appears only when the task takes its time."""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QProgressDialog, QWidget

from mosaic.gui.exports import Task
from mosaic.gui.views.made import named

PATIENCE_MS = 300
LOOK_MS = 100
PARTS = 1000


class TaskDialog(QProgressDialog):
    def __init__(self, task: Task, parent: QWidget | None) -> None:
        super().__init__(task.title, "Give up", 0, 0, parent)
        named(self, "task")
        self._task = task
        self.setWindowTitle("MOSAIC")
        self.setWindowModality(Qt.WindowModality.NonModal)
        self.setAutoClose(False)
        self.setAutoReset(False)
        self.setMinimumWidth(360)
        # Qt would show it by its own guess of how long the task takes.
        self.setMinimumDuration(3_600_000)
        self.canceled.connect(self._give_up)
        self._clock = QTimer(self, interval=LOOK_MS)
        self._clock.timeout.connect(self._look)
        self._clock.start()
        self._patience = QTimer(self, singleShot=True, interval=PATIENCE_MS)
        self._patience.timeout.connect(self.show)
        self._patience.start()

    def _look(self) -> None:
        if self._task.total:
            self.setMaximum(PARTS)
            self.setValue(min(PARTS, PARTS * self._task.done // self._task.total))

    def _give_up(self) -> None:
        self._task.is_given_up = True

    def end(self) -> None:
        self._clock.stop()
        self._patience.stop()
        self.hide()
        self.deleteLater()
