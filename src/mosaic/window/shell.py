"""Parts of the main window: its banner, its messages, and the bar with the pages and the trainer's button."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtCore import QEvent, QModelIndex, QObject, QSignalBlocker, QSize, Qt, QTimer
from PySide6.QtGui import QHideEvent, QResizeEvent, QShowEvent, QTextCursor
from PySide6.QtWidgets import (
    QAbstractButton,
    QFrame,
    QPlainTextEdit,
    QPushButton,
    QSizePolicy,
    QToolBar,
    QToolButton,
    QWidget,
)

from mosaic.base.formatting import run_title, short_id
from mosaic.base.worker_registry import policy_workers
from mosaic.contracts import names as semconv
from mosaic.contracts.errors import BadInput
from mosaic.contracts.views import DaemonStatus
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.actions import find_action
from mosaic.window.events import EventFilter
from mosaic.window.runs import SCRATCH_ID
from mosaic.window.tables import CellDelegate, RowTable, row_height
from mosaic.window.widgets import IconLabel, PlainLabel, button, row, with_object_name
from mosaic.window.workbench import Workbench

MESSAGE_KINDS = {
    "info": ("mdi6.information", "accent", 5000),
    "good": ("mdi6.check-circle", "good", 5000),
    "warning": ("mdi6.alert", "warning", 9000),
    "bad": ("mdi6.close-circle", "bad", 15000),
}
"""By kind: icon, color, and how long a message is shown, in milliseconds."""
MESSAGE_PADDING = 4


class Banner(QFrame):
    """Shown above the page as long as its state lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("banner", True)
        icon = IconLabel(18)
        icon.set_icon(theme.icon("mdi6.alert", "warning"))
        self.label = PlainLabel(name="banner")
        self.label.setWordWrap(True)
        self._act: Callable[[], object] = lambda: None
        self._button = button("", "banner.button", lambda: self._act())
        row(icon, (self.label, 1), self._button, parent=self, margins=(theme.MARGIN, 6, theme.MARGIN, 6))
        self.hide()

    def show_text(self, text: str, tooltip: str = "", title: str = "", act: Callable[[], object] = bool) -> None:
        """`title` is that of a button, which calls `act`; empty: there is none."""
        self.label.setText(text)
        self.label.setToolTip(tooltip)
        self._button.setText(title)
        self._button.setVisible(bool(title))
        self._act = act
        self.show()


class Messages(QObject):
    """One message at a time over the menus and page buttons, where nothing is edited; it disappears by itself.

    Clicks pass through it to what it covers. Only its button, which is not a child of the frame, takes them.
    """

    def __init__(self, window: QWidget, bar: QWidget) -> None:
        """`bar` is at the top of the window; messages are placed over it."""
        super().__init__(window)
        self._window = window
        self._bar = bar
        self._frame = with_object_name(QFrame(window), "message")
        self._frame.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self._icon = IconLabel(18)
        self.label = PlainLabel()
        self.label.setWordWrap(True)
        self._button = button("", "message.button", self._run_action)
        self._button.setParent(window)
        self._action: Callable[[], None] | None = None
        self._request: Callable[[], str] | None = None
        """Returns the text of now of a message that follows the runs."""
        self._kind = "info"
        self._layout = row(self._icon, (self.label, 1), parent=self._frame)
        self._hide()
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._hide)
        # Its parts have the new size of the text only after the window.
        self._place_timer = QTimer(self, singleShot=True)
        self._place_timer.timeout.connect(self._place)
        window.installEventFilter(self)

    def show_action(self, text: str, title: str, action: Callable[[], None]) -> None:
        """Show a message with a button; it stays as long as a warning."""
        self._action = action
        self._button.setText(title)
        self._button.show()
        self._request = None
        self._show(text, "info")
        self._timer.start(MESSAGE_KINDS["warning"][2])

    def show_message(self, text: str, kind: str = "info") -> None:
        self._button.hide()
        self._request = None
        self._show(text, kind)

    def show_request(self, request: Callable[[], str]) -> None:
        """Show what was requested of runs, until they have done it."""
        if text := request():
            self.show_message(text)
            self._request = request

    def update_request(self) -> None:
        """Show the text of now of a request that is shown; runs have changed."""
        if self._request is None or not self._frame.isVisible():
            return
        text = self._request()
        if not text:
            self._hide()
        elif text != self.label.text():
            self._show(text, self._kind)

    def _run_action(self) -> None:
        self._hide()
        if self._action is not None:
            self._action()

    def _hide(self) -> None:
        self._frame.hide()
        self._button.hide()

    def _show(self, text: str, kind: str) -> None:
        self._kind = kind
        self._apply_colors()
        self.label.setText(text)
        self._place()
        self._frame.show()
        self._frame.raise_()
        self._button.raise_()
        self._timer.start(MESSAGE_KINDS[kind][2])

    def _apply_colors(self) -> None:
        icon, color, _ = MESSAGE_KINDS[self._kind]
        t = theme.tokens()
        self._frame.setStyleSheet(
            f"#message {{ background: {t.raised}; border: 1px solid {getattr(t, color)}; border-radius: 4px; }}"
        )
        self._icon.set_icon(theme.icon(icon, color))

    def _place(self) -> None:
        """As wide as its text in one line; only a text that is wider than the window takes more lines."""
        has_button = not self._button.isHidden()
        self._button.adjustSize()
        button_width = self._button.width() + theme.GAP if has_button else 0
        margins = theme.MARGIN, MESSAGE_PADDING, theme.MARGIN + button_width, MESSAGE_PADDING
        self._layout.setContentsMargins(*margins)
        room = self._window.width() - 2 * theme.GAP
        line = self.label.fontMetrics().size(0, self.label.text())
        wanted = line.width() + self._icon.minimumWidth() + self._layout.spacing() + margins[0] + margins[2] + 4
        width = min(wanted, room)
        # With a button or without, so that all messages of one line are equally high.
        line_height = max(self._button.sizeHint().height(), self._icon.minimumHeight()) + 2 * MESSAGE_PADDING
        height = max(self._layout.heightForWidth(width), line_height)
        top, bottom = 3, self._bar.geometry().bottom() - 3
        left, top = (self._window.width() - width) // 2, max(top, (top + bottom - height) // 2)
        self._frame.setGeometry(left, top, width, height)
        right, middle = left + width - theme.MARGIN, top + height // 2
        self._button.move(right - self._button.width(), middle - self._button.height() // 2)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Resize and self._frame.isVisible():
            self._place()
        elif event.type() is QEvent.Type.StyleChange and self._frame.isVisible():
            self._apply_colors()  # the theme was switched
            self._place_timer.start()
        return False


class TrainerStatusButton(QToolButton):
    """Shows whether the trainer is connected and how busy it is; a click opens its page."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self.setObjectName("trainer")
        self.setProperty("flat", True)
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self._texts = ("", "")
        self.is_short = False
        self._show_texts("trainer: connecting…", "connecting…")
        self.setIcon(theme.icon("mdi6.circle-outline", "muted"))
        self.clicked.connect(lambda: workbench.page_requested.emit("trainer"))
        workbench.bridge.connected.connect(self._show_status)
        workbench.bridge.status_polled.connect(lambda _, status: self._show_status(status))
        workbench.bridge.connection_lost.connect(self._on_lost)

    def _show_status(self, status: DaemonStatus) -> None:
        slots = status.slots
        where = self._workbench.trainer_name or "remote" if self._workbench.is_remote else "local"
        state = ", draining" if status.is_draining else ", paused" if status.paused else ""
        self.setIcon(theme.icon("mdi6.circle", "good"))
        busy = f"{slots.busy}/{slots.runs} busy"
        text = f"trainer: {where}, {busy}, queue {slots.queued}{state}"
        self._show_texts(text, busy + state)
        place = f"{status.address}, pid {status.pid}\n{status.workspace}"
        self.setToolTip(f"{text}\n{place}\nClick for its queue and log")

    def _on_lost(self, reason: str) -> None:
        self.setIcon(theme.icon("mdi6.circle-outline", "bad"))
        state = "drained" if self._workbench.bridge.is_suspended else "lost"
        self._show_texts(f"trainer: {state}", state)
        self.setToolTip(reason)

    def _show_texts(self, text: str, short: str) -> None:
        self._texts = (text, short)
        self.setText(self._texts[self.is_short])

    @property
    def saved_width(self) -> int:
        """By how much the short text is narrower."""
        text, short = map(self.fontMetrics().horizontalAdvance, self._texts)
        return text - short

    def set_short(self, is_short: bool) -> None:
        if is_short != self.is_short:
            self.is_short = is_short
            self.setText(self._texts[is_short])


class PagesBar(QToolBar):
    """The buttons of the pages, the search and the trainer's state; the last two are short where there is no room."""

    def __init__(self, buttons: Sequence[QAbstractButton], search: QToolButton, trainer: TrainerStatusButton) -> None:
        super().__init__("Pages")
        self.setObjectName("bar")
        self.setMovable(False)
        self.setIconSize(QSize(16, 16))
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.PreventContextMenu)  # it would offer to hide the bar for good
        self._search, self._trainer = search, trainer
        self._parts = (*buttons, search, trainer)
        self._widths: tuple[int, ...] = ()
        """Of the parts, when they were placed."""
        gap = QWidget()
        gap.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        for widget in (*buttons, gap, search, trainer):
            self.addWidget(widget)

    def minimumSizeHint(self) -> QSize:
        return QSize(0, super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        self.fit()
        super().resizeEvent(event)

    def fit(self) -> None:
        """Shorten the search first, then the trainer's state."""
        layout = self.layout()
        spacing = layout.spacing() if layout is not None else theme.GAP
        room = self.width() - 2 * theme.GAP - sum(part.sizeHint().width() + spacing for part in self._parts)
        # What is short now would take more in full.
        is_short = self._search.toolButtonStyle() is Qt.ToolButtonStyle.ToolButtonIconOnly
        search_width = self._search.fontMetrics().horizontalAdvance(self._search.text()) + theme.GAP
        room -= search_width * is_short + self._trainer.saved_width * self._trainer.is_short
        self._search.setToolButtonStyle(
            Qt.ToolButtonStyle.ToolButtonIconOnly if room < 0 else Qt.ToolButtonStyle.ToolButtonTextBesideIcon
        )
        self._trainer.set_short(room + search_width < 0)
        widths = tuple(part.sizeHint().width() for part in self._parts)
        if layout is not None and widths != self._widths:
            # With another size of the text, a tool bar keeps the places of its widgets.
            self._widths = widths
            layout.invalidate()
            layout.activate()


# --- The docks of the window: control, notes and log.


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
