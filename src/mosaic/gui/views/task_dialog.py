"""A dialog with the progress of a task; it appears only when the task takes long."""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QProgressDialog, QWidget

from mosaic.client.exports import ExportTask
from mosaic.gui.views.widgets import with_object_name

SHOW_DELAY_MS = 300
POLL_MS = 100
PROGRESS_STEPS = 1000


class TaskDialog(QProgressDialog):
    def __init__(self, task: ExportTask, parent: QWidget | None) -> None:
        super().__init__(task.title, "Cancel", 0, 0, parent)
        with_object_name(self, "task")
        self._task = task
        self.setWindowTitle("MOSAIC")
        self.setWindowModality(Qt.WindowModality.NonModal)
        self.setAutoClose(False)
        self.setAutoReset(False)
        self.setMinimumWidth(360)
        # Qt would show it by its own guess of how long the task takes.
        self.setMinimumDuration(3_600_000)
        self.canceled.connect(self._cancel_task)
        self._poll_timer = QTimer(self, interval=POLL_MS)
        self._poll_timer.timeout.connect(self._update_progress)
        self._poll_timer.start()
        self._show_timer = QTimer(self, singleShot=True, interval=SHOW_DELAY_MS)
        self._show_timer.timeout.connect(self.show)
        self._show_timer.start()

    def _update_progress(self) -> None:
        if self._task.total:
            self.setMaximum(PROGRESS_STEPS)
            self.setValue(min(PROGRESS_STEPS, PROGRESS_STEPS * self._task.done // self._task.total))

    def _cancel_task(self) -> None:
        self._task.is_cancelled = True

    def finish(self) -> None:
        self._poll_timer.stop()
        self._show_timer.stop()
        self.hide()
        self.deleteLater()
