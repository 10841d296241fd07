"""The note of the selected run, and a scratch page; both are saved automatically."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QSignalBlocker, QSize
from PySide6.QtGui import QHideEvent
from PySide6.QtWidgets import QPlainTextEdit, QTabWidget, QWidget

from mosaic.formatting import run_title
from mosaic.gui import theme
from mosaic.gui.models.runs_model import SCRATCH_ID
from mosaic.gui.views import widgets as ui
from mosaic.gui.workbench import Workbench

SAVE_DELAY_MS = 1200
"""Time without typing after which a note is saved."""
NO_RUN_TEXT = "Choose a run to write its note."
NOTE_PLACEHOLDER = "Notes on this run. They are saved automatically."
SCRATCH_PLACEHOLDER = "Notes that belong to no run. Results of dry runs are added here."


class NotesPanel(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._saved = ""
        self._note = ui.with_object_name(QPlainTextEdit(), "notes.run")
        self._scratch = ui.with_object_name(QPlainTextEdit(), "notes.scratch")
        self._scratch.setPlaceholderText(SCRATCH_PLACEHOLDER)
        self._tabs = ui.with_object_name(QTabWidget(), "notes.tabs")
        self._tabs.setDocumentMode(True)
        self._tabs.addTab(self._note, "Run")
        self._tabs.addTab(self._scratch, "Scratch")
        ui.column(self._tabs, parent=self, margins=(theme.MARGIN, 0, 0, theme.GAP))
        notes = workbench.notes
        if not notes.scratch:
            notes.scratch = str(workbench.settings.get_for_workspace("scratch", ""))
        self._scratch.setPlainText(notes.scratch)
        self._save_timer = ui.create_timer(self, SAVE_DELAY_MS, self.save, is_single_shot=True)
        self._note.textChanged.connect(self._save_timer.start)
        self._scratch.textChanged.connect(self._on_scratch_edited)
        for field in (self._note, self._scratch):
            field.installEventFilter(self)
        notes.changed.connect(self._on_note_changed)
        workbench.selection_changed.connect(self._show)
        workbench.closing.connect(self.save)
        workbench.runs.changed.connect(self._on_runs_changed)
        workbench.runs.reset.connect(lambda: self._show(workbench.selection))
        self._show(workbench.selection)

    # --- the run's note

    def _show(self, run_id: str | None) -> None:
        self.save()
        view = self._workbench.runs.get(run_id) if run_id else None
        self._run_id = run_id if run_id and view is not None else ""
        self._note.setEnabled(view is not None)
        self._note.setPlaceholderText(NOTE_PLACEHOLDER if view is not None else NO_RUN_TEXT)
        self._tabs.setTabToolTip(0, run_title(view) if view is not None else NO_RUN_TEXT)
        self._set_note((view.notes or "") if view is not None else "")

    def _set_note(self, text: str) -> None:
        self._saved = text
        if text != self._note.toPlainText():
            with QSignalBlocker(self._note):
                self._note.setPlainText(text)
        self._save_timer.stop()

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        """Shows a note that another client wrote, unless there is unsaved text here."""
        if self._workbench.selection in run_ids and not self._run_id:
            self._show(self._workbench.selection)
        elif self._run_id in run_ids and self._note.toPlainText() == self._saved:
            view = self._workbench.runs.get(self._run_id)
            self._set_note((view.notes or "") if view is not None else "")

    def save(self) -> None:
        self._save_timer.stop()
        text = self._note.toPlainText()
        if self._run_id and text != self._saved:
            self._saved = text
            self._workbench.notes.save(self._run_id, text)

    # --- the scratch page

    def _on_scratch_edited(self) -> None:
        self._workbench.notes.scratch = self._scratch.toPlainText()
        self._workbench.settings.put_for_workspace("scratch", self._workbench.notes.scratch)

    def _on_note_changed(self, run_id: str) -> None:
        text = self._workbench.notes.scratch
        if run_id != SCRATCH_ID or text == self._scratch.toPlainText():
            return
        with QSignalBlocker(self._scratch):
            self._scratch.setPlainText(text)
        self._workbench.settings.put_for_workspace("scratch", text)
        self._scratch.verticalScrollBar().setValue(self._scratch.verticalScrollBar().maximum())
        self._tabs.setCurrentWidget(self._scratch)

    def sizeHint(self) -> QSize:
        return QSize(360, 150)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.FocusOut:
            self.save()
        return False

    def hideEvent(self, event: QHideEvent) -> None:
        self.save()
        super().hideEvent(event)
