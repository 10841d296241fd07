"""The note of the run that is looked at, and a scratch page; both are saved by themselves."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QSize, QTimer
from PySide6.QtGui import QHideEvent
from PySide6.QtWidgets import QPlainTextEdit, QTabWidget, QVBoxLayout, QWidget

from mosaic.gui import theme
from mosaic.gui.models.notes import SCRATCH
from mosaic.gui.views.made import named
from mosaic.gui.views.words import run_title
from mosaic.gui.workbench import Workbench

PAUSE_MS = 1200
"""How long the keys must rest before a note is saved."""
NO_RUN = "Choose a run to write its note."
HINT = "What should be remembered of this run? It is saved by itself."
SCRATCH_HINT = "For what belongs to no run yet. Verdicts of dry runs are written here, too."


class NotesPanel(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._saved = ""
        self._note = named(QPlainTextEdit(), "notes.run")
        self._scratch = named(QPlainTextEdit(), "notes.scratch")
        self._scratch.setPlaceholderText(SCRATCH_HINT)
        self._tabs = named(QTabWidget(), "notes.tabs")
        self._tabs.setDocumentMode(True)
        self._tabs.addTab(self._note, "Run")
        self._tabs.addTab(self._scratch, "Scratch")
        column = QVBoxLayout(self)
        column.setContentsMargins(theme.MARGIN, 0, 0, theme.GAP)
        column.addWidget(self._tabs)
        notes = workbench.notes
        if not notes.scratch:
            notes.scratch = str(workbench.settings.get_here("scratch", ""))
        self._scratch.setPlainText(notes.scratch)
        self._pause = QTimer(self, singleShot=True, interval=PAUSE_MS)
        self._pause.timeout.connect(self.save)
        self._note.textChanged.connect(self._pause.start)
        self._scratch.textChanged.connect(self._scratch_typed)
        for field in (self._note, self._scratch):
            field.installEventFilter(self)
        notes.changed.connect(self._changed)
        workbench.selected.connect(self._show)
        workbench.closing.connect(self.save)
        workbench.runs.changed.connect(self._runs_changed)
        workbench.runs.reset.connect(lambda: self._show(workbench.selection))
        self._show(workbench.selection)

    # --- the run's note

    def _show(self, run_id: str | None) -> None:
        self.save()
        view = self._workbench.runs.get(run_id) if run_id else None
        self._run_id = run_id if run_id and view is not None else ""
        self._note.setEnabled(view is not None)
        self._note.setPlaceholderText(HINT if view is not None else NO_RUN)
        self._tabs.setTabToolTip(0, run_title(view) if view is not None else NO_RUN)
        self._put(str((view or {}).get("notes") or ""))

    def _put(self, text: str) -> None:
        self._saved = text
        if text != self._note.toPlainText():
            self._note.blockSignals(True)
            self._note.setPlainText(text)
            self._note.blockSignals(False)
        self._pause.stop()

    def _runs_changed(self, run_ids: set[str]) -> None:
        """Somebody else may have written; what is typed here and not saved yet wins."""
        if self._workbench.selection in run_ids and not self._run_id:
            self._show(self._workbench.selection)
        elif self._run_id in run_ids and self._note.toPlainText() == self._saved:
            view = self._workbench.runs.get(self._run_id)
            self._put(str((view or {}).get("notes") or ""))

    def save(self) -> None:
        self._pause.stop()
        text = self._note.toPlainText()
        if self._run_id and text != self._saved:
            self._saved = text
            self._workbench.notes.save(self._run_id, text)

    # --- the scratch page

    def _scratch_typed(self) -> None:
        self._workbench.notes.scratch = self._scratch.toPlainText()
        self._workbench.settings.put_here("scratch", self._workbench.notes.scratch)

    def _changed(self, run_id: str) -> None:
        text = self._workbench.notes.scratch
        if run_id != SCRATCH or text == self._scratch.toPlainText():
            return
        self._scratch.blockSignals(True)
        self._scratch.setPlainText(text)
        self._scratch.blockSignals(False)
        self._workbench.settings.put_here("scratch", text)
        self._scratch.verticalScrollBar().setValue(self._scratch.verticalScrollBar().maximum())
        self._tabs.setCurrentWidget(self._scratch)

    # --- Qt's calls

    def sizeHint(self) -> QSize:
        return QSize(360, 150)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.FocusOut:
            self.save()
        return False

    def hideEvent(self, event: QHideEvent) -> None:
        self.save()
        super().hideEvent(event)
