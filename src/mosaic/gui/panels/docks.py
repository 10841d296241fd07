"""The docks of the window: control, notes and log."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QEvent, QModelIndex, QObject, QSignalBlocker, QSize, Qt, QTimer
from PySide6.QtGui import QHideEvent, QShowEvent, QTextCursor
from PySide6.QtWidgets import QPlainTextEdit, QPushButton, QSizePolicy, QWidget

from mosaic.contracts import semconv
from mosaic.contracts.errors import BadInput
from mosaic.formatting import run_title, short_id
from mosaic.gui import theme
from mosaic.gui.actions import find_action
from mosaic.gui.models.event_log import EventFilter
from mosaic.gui.models.policy_form import policy_workers
from mosaic.gui.models.runs_model import SCRATCH_ID
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.delegates import CellDelegate, RowTable, row_height
from mosaic.gui.workbench import Workbench

SAVE_DELAY_MS = 1200
"""Time without typing after which a note is saved."""
NO_RUN_TEXT = "Choose a run to write its note."
NOTE_PLACEHOLDER = "Notes on this run. They are saved automatically."
SCRATCH_PLACEHOLDER = "Notes that belong to no run. Results of dry runs are added here."
FILTER_DELAY_MS = 150
COLUMN_SAMPLES = ("23:59:59", "ABC123", semconv.TRAINER_CONNECTED)
"""Texts as wide as the columns of the log."""


class ControlPanel(QWidget):
    """The actions that start a run or an evaluation."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        buttons = {name: self._create_button(name) for name in ("configure", "train", "policy")}
        self._train, self._policy = buttons["train"], buttons["policy"]
        self._policy.setVisible(False)
        self._last = ui.status_label("control.last")
        self._last.setProperty("muted", True)
        train_row = ui.row((buttons["configure"], 1), (self._train, 1))
        ui.column(train_row, self._policy, self._last, parent=self, margins=(theme.MARGIN, 4, theme.MARGIN, theme.GAP))
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        workbench.training.draft_edited.connect(self._refresh)
        workbench.training.draft_replaced.connect(self._refresh)
        # Looking for workers and reading their schemas can wait until the window is drawn.
        QTimer.singleShot(0, self, self._refresh)

    def _create_button(self, name: str) -> QPushButton:
        action = find_action(f"agent.{name}")
        tip = action.tooltip(action.shortcut)
        button = ui.button(action.title, f"control.{name}", lambda: action.run(self._workbench), tip, action.icon)
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        return button

    def _refresh(self) -> None:
        self._policy.setVisible(bool(policy_workers()))
        training = self._workbench.training
        try:
            summary = training.draft.summary()
        except BadInput as error:
            self._train.setEnabled(False)
            self._train.setToolTip(str(error))
            self._last.setText("")
            return
        self._train.setToolTip(f"Submit {summary} at once (Ctrl+Shift+Return)")
        self._last.setText(f"Next: {summary}")
        self._last.setToolTip(summary)


class NotesPanel(QWidget):
    """The note of the selected run, and a scratch page; both are saved automatically."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._saved = ""
        self._edit_number = 0
        """Counts how often a run was chosen."""
        self._note = ui.with_object_name(QPlainTextEdit(), "notes.run")
        self._scratch = ui.with_object_name(QPlainTextEdit(), "notes.scratch")
        self._scratch.setPlaceholderText(SCRATCH_PLACEHOLDER)
        self._tabs = ui.tabs("notes.tabs", ("Run", self._note), ("Scratch", self._scratch))
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
        self._edit_number += 1
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
            before, self._saved = self._saved, text
            self._workbench.notes.save(self._run_id, text)
            # Without a message, as it is saved while it is typed; everything since the run was chosen is one change.
            title = f"edit the note of run {short_id(self._run_id)}"
            undo = partial(self._put_back, self._run_id, before)
            self._workbench.undo.push(title, undo, f"note {self._run_id} {self._edit_number}")

    def _put_back(self, run_id: str, text: str) -> None:
        """Restore the note that a run had before."""
        if run_id == self._run_id:
            self._set_note(text)
        self._workbench.notes.save(run_id, text)
        self._workbench.show_message(f"Run {short_id(run_id)} has its earlier note again.", "good")

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
        self._show_last_entry()
        self._tabs.setCurrentWidget(self._scratch)

    def _show_last_entry(self) -> None:
        """Scroll to the first line of the newest entry, which says what it is about."""
        self._scratch.moveCursor(QTextCursor.MoveOperation.End)
        cursor = self._scratch.textCursor()
        cursor.setPosition(self._scratch.toPlainText().rfind("\n[") + 1)
        self._scratch.setTextCursor(cursor)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not self._scratch.hasFocus():
            self._show_last_entry()

    def sizeHint(self) -> QSize:
        return QSize(360, 150)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.FocusOut:
            self.save()
        return False

    def hideEvent(self, event: QHideEvent) -> None:
        self.save()
        super().hideEvent(event)


class LogPanel(QWidget):
    """The events of all runs as they arrive, with filters."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._model = EventFilter(workbench.events, self)
        self._search = ui.search_field("log.search", "Filter events")
        self._kind = ui.combo_box("log.kind", tip="Only events of this kind")
        self._only_selected_run = ui.tool_button(
            "log.only", "mdi6.filter-outline", "Only events of the selected run", is_flat=False, is_checkable=True
        )
        self._table = RowTable(self._model, "log.table")
        self._table.setItemDelegate(CellDelegate(self._table))
        self._table.horizontalHeader().setStretchLastSection(True)
        self._fit_columns()
        workbench.theme_changed.connect(self._fit_columns)
        self._is_at_end = True
        ui.column(
            ui.row((self._search, 1), self._kind, self._only_selected_run, spacing=4),
            (self._table, 1),
            parent=self,
            margins=(theme.MARGIN, 4, theme.MARGIN, theme.GAP),
            spacing=4,
        )
        self._list_kinds()
        self._search_timer = ui.create_timer(self, FILTER_DELAY_MS, self._apply_filter, is_single_shot=True)
        self._search.textChanged.connect(lambda _: self._search_timer.start())
        self._kind.currentIndexChanged.connect(lambda _: self._apply_filter())
        self._only_selected_run.toggled.connect(lambda _: self._apply_filter())
        self._table.doubleClicked.connect(self._open_run)
        self._table.verticalScrollBar().valueChanged.connect(self._on_scrolled)
        self._table.verticalScrollBar().rangeChanged.connect(lambda *_: self._scroll_to_end_if_following())
        workbench.events.kinds_changed.connect(self._list_kinds)
        workbench.selection_changed.connect(lambda _: self._apply_filter())

    def sizeHint(self) -> QSize:
        return QSize(560, 150)

    def _fit_columns(self) -> None:
        for number, sample in enumerate(COLUMN_SAMPLES):
            width = self._table.fontMetrics().horizontalAdvance(sample) + CellDelegate.EXTRA_WIDTH + 4
            self._table.setColumnWidth(number, width)

    def start_search(self) -> None:
        self._search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self._search.selectAll()

    def _list_kinds(self) -> None:
        kinds = sorted(self._workbench.events.kinds)
        rows = [("All kinds", ""), *((kind, kind) for kind in kinds)]
        ui.set_choices(self._kind, rows, self._kind.currentData() or "")

    def _apply_filter(self) -> None:
        run_id = (self._workbench.selection or "") if self._only_selected_run.isChecked() else ""
        self._model.filter(self._search.text(), str(self._kind.currentData() or ""), run_id)
        self._scroll_to_end_if_following()

    def _open_run(self, index: QModelIndex) -> None:
        run_id = self._model.line(index.row()).run_id
        if self._workbench.runs.get(run_id) is not None:
            self._workbench.select(run_id)

    def _on_scrolled(self, value: int) -> None:
        self._is_at_end = value >= self._table.verticalScrollBar().maximum() - row_height()

    def _scroll_to_end_if_following(self) -> None:
        if self._is_at_end:
            self._table.scrollToBottom()
