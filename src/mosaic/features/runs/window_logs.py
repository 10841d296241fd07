"""The Logs tab: what a run wrote to its console, and what the daemon logged about it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QTextBlock, QTextCursor, QTextFormat
from PySide6.QtWidgets import QButtonGroup, QHBoxLayout, QTextEdit, QWidget

from mosaic.base.formatting import BAD_OUTCOMES
from mosaic.contracts.options import OPTIONS, value_at
from mosaic.contracts.views import RunView
from mosaic.features.runs.window_log_text import (
    LogLine,
    LogLines,
    LogSlice,
    LogSource,
    LogStream,
    MatchCursor,
    parse_spans,
)
from mosaic.trainer.client.trainer_client import LogMatches, TrainerClient
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.labels import MonospaceView, text_format
from mosaic.window.runs import empty_text
from mosaic.window.widgets import create_timer
from mosaic.window.workbench import Workbench

# --- A part of a log: colored, bounded, followed while it grows, and with any of its lines to jump to.


MAX_LINES = 20_000
LINES_PER_BATCH = 400
"""Lines that are inserted without a turn of the event loop."""


class LogView(MonospaceView):
    following_changed = Signal(bool)
    """Whether it stays at the end; it stops when the user scrolls up."""
    bottom_reached = Signal()
    """The user has scrolled to the end of a part that is not the end of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.setMaximumBlockCount(MAX_LINES)
        self._pending_lines: deque[LogLine] = deque()
        self._partial_line: LogLine | None = None
        self._has_partial_line = False
        """Whether the last block is an incomplete line."""
        self._offsets: deque[int] = deque()
        """Where each complete line that is shown begins in the log."""
        self._target: tuple[int, str] | None = None
        """The offset and the text to jump to as soon as that line is inserted."""
        self._is_following = True
        self._is_at_end = True
        """Whether the part that is shown ends where the log does."""
        self._is_updating = False
        self._batch_timer = create_timer(self, 0, self._insert_batch, is_single_shot=True)
        self.verticalScrollBar().valueChanged.connect(self._on_scrolled)
        self._apply_theme()

    # --- contents

    def reset(self, is_at_end: bool = True) -> None:
        """Remove everything. `is_at_end`: the part that will be shown ends where the log does."""
        self._batch_timer.stop()
        self._is_at_end = is_at_end
        self._pending_lines.clear()
        self._partial_line, self._has_partial_line = None, False
        self._offsets.clear()
        self._target = None
        self.setExtraSelections([])
        # A part from the middle grows by what the user asks for only, and must not lose the line that was jumped to.
        self.setMaximumBlockCount(MAX_LINES if is_at_end else 0)
        self._is_updating = True
        self.clear()
        self._is_updating = False
        self.follow(is_at_end)

    def append_lines(self, lines: Iterable[LogLine], partial_line: LogLine | None = None) -> None:
        """Append lines, and the one that is still being written."""
        self._pending_lines.extend(lines)
        while self._is_at_end and len(self._pending_lines) > MAX_LINES:
            self._pending_lines.popleft()
        self._partial_line = partial_line
        if not self._batch_timer.isActive():
            self._insert_batch()

    def prepend_lines(self, lines: list[LogLine]) -> None:
        """Insert earlier lines at the top; the visible part stays where it is."""
        bar = self.verticalScrollBar()
        place = bar.value()
        if self.maximumBlockCount():
            self.setMaximumBlockCount(self.maximumBlockCount() + len(lines))
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.Start)
        self._is_updating = True
        cursor.beginEditBlock()
        for line in lines:
            self._insert_line(cursor, line)
            cursor.insertBlock()
        cursor.endEditBlock()
        self._offsets.extendleft(line.offset for line in reversed(lines))
        bar.setValue(place + len(lines))
        self._is_updating = False

    def _insert_batch(self) -> None:
        cursor = QTextCursor(self.document())
        self._is_updating = True
        cursor.beginEditBlock()
        cursor.movePosition(QTextCursor.MoveOperation.End)
        if self._has_partial_line:
            cursor.movePosition(QTextCursor.MoveOperation.StartOfBlock, QTextCursor.MoveMode.KeepAnchor)
            cursor.removeSelectedText()
            self._has_partial_line = False
        for _ in range(min(LINES_PER_BATCH, len(self._pending_lines))):
            line = self._pending_lines.popleft()
            self._insert_line(cursor, line)
            cursor.insertBlock()
            self._offsets.append(line.offset)
        if self._partial_line is not None and not self._pending_lines:
            self._insert_line(cursor, self._partial_line)
            self._has_partial_line = True
        cursor.endEditBlock()
        while len(self._offsets) >= self.blockCount():  # the oldest lines have been removed
            self._offsets.popleft()
        if self._is_following:
            self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())
        self._is_updating = False
        if self._target is not None:
            self._jump()
        if self._pending_lines:
            self._batch_timer.start()

    def _insert_line(self, cursor: QTextCursor, line: LogLine) -> None:
        own_color = theme.tokens().warning if line.is_stderr else ""
        for span in parse_spans(line.text):
            color = theme.terminal_color(span.color) if span.color else own_color
            cursor.insertText(span.text, text_format(color, span.is_bold))

    # --- places in the log

    @property
    def first_offset(self) -> int | None:
        """Where the first line that is shown begins; None where none is."""
        return self._offsets[0] if self._offsets else None

    @property
    def visible_offset(self) -> int:
        """Where the first line begins that can be seen now."""
        index = self.firstVisibleBlock().blockNumber()
        return self._offsets[index] if index < len(self._offsets) else self._offsets[-1] if self._offsets else 0

    def has_line_at(self, offset: int) -> bool:
        return offset in self._offsets or any(line.offset == offset for line in self._pending_lines)

    def jump_to(self, offset: int, text: str = "") -> None:
        """Select a text in the line that begins at an offset, or the whole line; now, or when it is inserted."""
        self.follow(False)
        self._target = (offset, text)
        self._jump()

    def _jump(self) -> None:
        assert self._target is not None
        offset, text = self._target
        if not self._offsets or (self._offsets[-1] < offset and self._pending_lines):
            return
        self._target = None
        # Lines of two streams may overlap, so their order is only almost that of their offsets.
        index = self._offsets.index(offset) if offset in self._offsets else bisect_right(self._offsets, offset) - 1
        block = self.document().findBlockByNumber(max(0, index))
        cursor = _select_in_block(block, text)
        self._is_updating = True
        self.setTextCursor(cursor)
        self.centerCursor()
        if not text:
            self.horizontalScrollBar().setValue(0)
        self._is_updating = False
        self._mark_line(cursor)

    def _mark_line(self, cursor: QTextCursor) -> None:
        """Mark the whole line: a selection of a few characters is hard to find."""
        mark = QTextEdit.ExtraSelection()
        mark.cursor = QTextCursor(cursor)
        mark.cursor.clearSelection()
        color = QColor(theme.tokens().accent)
        color.setAlpha(48)
        mark.format.setBackground(color)
        mark.format.setProperty(QTextFormat.Property.FullWidthSelection, True)
        self.setExtraSelections([mark])

    # --- following

    def follow(self, is_following: bool) -> None:
        if is_following != self._is_following:
            self._is_following = is_following
            self.following_changed.emit(is_following)
        if is_following:
            self._is_updating = True
            self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())
            self._is_updating = False

    def set_at_end(self) -> None:
        """The part that is shown has grown to the end of the log."""
        self._is_at_end = True
        self.setMaximumBlockCount(max(MAX_LINES, self.blockCount()))

    def _on_scrolled(self, value: int) -> None:
        if self._is_updating:
            return
        is_at_bottom = value >= self.verticalScrollBar().maximum()
        if self._is_at_end:
            self.follow(is_at_bottom)
        elif is_at_bottom:
            self.bottom_reached.emit()


def _select_in_block(block: QTextBlock, text: str) -> QTextCursor:
    """Select the first occurrence of a text; the line, where it is not in what is shown of it."""
    cursor = QTextCursor(block)
    at = block.text().lower().find(text.lower()) if text else -1
    if at >= 0:
        cursor.setPosition(block.position() + at)
        cursor.setPosition(block.position() + at + len(text), QTextCursor.MoveMode.KeepAnchor)
    return cursor


# --- The Logs tab: what a run wrote to its console, and what the daemon logged about it.


PAGE_BYTES = 256 * 1024
"""Read from the end of a log at first, and more with each click."""
CONTEXT_BYTES = 64 * 1024
"""Read before and after a line that is jumped to."""
POLL_INTERVAL_MS = 500
SEARCH_DELAY_MS = 150
"""After the last key."""
STREAMS = (
    (LogStream.BOTH, "All", "What the run wrote to stdout and, in another color, to stderr, in this order"),
    (LogStream.STDOUT, "stdout", "What the run wrote to stdout"),
    (LogStream.STDERR, "stderr", "What the run wrote to stderr"),
    (LogStream.DAEMON, "", "What the daemon logged about the run"),
)
STREAM_NAMES = {LogStream.BOTH: "stdout or stderr", LogStream.STDOUT: "stdout", LogStream.STDERR: "stderr"}


class LogsTab(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._stream = _read_stream(workbench.settings.get("logs.stream", LogStream.BOTH))
        self._request_id = 0
        """Counts what is shown: answers to earlier requests are skipped."""
        self._is_loading = False
        self._lines = LogLines()
        self._start = 0
        """Where the first line that is shown begins."""
        self._is_complete = False
        """Whether there is nothing more to read."""
        self._is_at_end = True
        """Whether the part that is shown ends where the log does."""
        self._matches = MatchCursor()
        self._view = ui.with_object_name(LogView(), "logs.text")
        self._search = ui.search_field(
            "logs.search",
            "Search the whole log",
            "Search (Ctrl+F); Enter: next match, Shift+Enter: previous match",
            max_width=240,
        )
        self._search.setMinimumWidth(110)
        self._search_timer = ui.create_timer(self, SEARCH_DELAY_MS, self._start_text_search, is_single_shot=True)
        self._search.textChanged.connect(self._search_timer.start)
        self._earlier = ui.button("Load earlier lines", "logs.earlier", self._read_earlier)
        self._earlier.hide()
        self._later = ui.button("Load later lines", "logs.later", self._read_later)
        self._later.hide()
        self._found = ui.muted_label("", "logs.found")
        self._found.setWordWrap(False)
        self._empty = ui.EmptyState("")
        earlier, later = (ui.row(widget, ui.Stretch()) for widget in (self._earlier, self._later))
        content = ui.widget_column(earlier, (self._view, 1), later, spacing=4)
        self._stack = ui.stack(content, self._empty)
        self._follow = ui.tool_button("logs.follow", "mdi6.arrow-collapse-down", "Stay at the end", is_checkable=True)
        self._follow.setChecked(True)
        self._follow.clicked.connect(self._on_follow_clicked)
        ui.column(self._build_toolbar(), (self._stack, 1), parent=self, margins=ui.TAB_MARGINS)
        self._poll_timer = ui.VisibleTimer(self, POLL_INTERVAL_MS, self._poll)
        self._view.following_changed.connect(self._follow.setChecked)
        self._view.bottom_reached.connect(self._read_later)
        workbench.theme_changed.connect(self._reload)

    def _build_toolbar(self) -> QHBoxLayout:
        group = QButtonGroup(self)
        self._stream_buttons = {}
        for stream, title, tip in STREAMS:
            choice = ui.tool_button(
                f"logs.{stream}",
                "" if title else "mdi6.server",
                tip,
                partial(self._choose_stream, stream),
                title,
                is_flat=False,
                is_checkable=True,
            )
            group.addButton(choice)
            self._stream_buttons[stream] = choice
        self._stream_buttons[self._stream].setChecked(True)
        errors = ui.tool_button(
            "logs.errors",
            "mdi6.alert-circle-outline",
            "Jump to the first error",
            self._find_errors,
        )
        previous = ui.tool_button(
            "logs.previous", "mdi6.chevron-up", "Previous match (Shift+Enter)", lambda: self._step(-1)
        )
        following = ui.tool_button("logs.next", "mdi6.chevron-down", "Next match (Enter)", lambda: self._step(1))
        wrap = ui.tool_button("logs.wrap", "mdi6.wrap", "Break long lines", is_checkable=True)
        wrap.toggled.connect(self._set_wrap)
        return ui.row(
            *self._stream_buttons.values(),
            theme.GAP,
            ui.Stretch(),
            self._found,
            (self._search, 1),
            previous,
            following,
            errors,
            wrap,
            self._follow,
            spacing=4,
        )

    # --- which log

    def show_run(self, run_id: str) -> None:
        if run_id == self._run_id:
            return
        self._run_id = run_id
        view = self._workbench.runs.get(run_id)
        has_failed = view is not None and view.outcome in BAD_OUTCOMES
        stream = _read_stream(self._workbench.settings.get("logs.stream", LogStream.BOTH))
        # The reason of a failure may be on either stream.
        self._stream = LogStream.BOTH if has_failed else stream
        self._stream_buttons[self._stream].setChecked(True)
        self._reload()
        if has_failed and not self._search.text():
            self._find_errors(is_automatic=True)
        elif self._search.text():
            self._start_text_search()

    def _choose_stream(self, stream: LogStream) -> None:
        self._stream = stream
        self._workbench.settings.put("logs.stream", str(stream))
        self._reload()
        if self._search.text():
            self._start_text_search()

    @property
    def _source(self) -> LogSource:
        return LogSource(self._run_id, self._stream, self._workbench.workspace.daemon_log, self._workbench.is_remote)

    def _reload(self) -> None:
        """Show the end of the log."""
        if self._run_id:
            self._matches = MatchCursor()
            self._found.setText("")
            self._show_part(-PAGE_BYTES, None)

    # --- the part that is shown

    def _show_part(self, offset: int, until: int | None) -> None:
        """Replace what is shown by the part from `offset` on, to the end or up to `until`."""
        self._request_id += 1
        self._is_loading = False
        self._is_complete = False
        self._is_at_end = until is None
        self._view.reset(self._is_at_end)
        self._earlier.hide()
        self._later.setVisible(not self._is_at_end)
        self._stack.setCurrentIndex(0)
        self._request_slice(offset, until, partial(self._on_first_slice, until))
        if self.isVisible():
            self._poll_timer.start()

    def _request_slice(self, offset: int, until: int | None, then: Callable[[LogSlice], None]) -> None:
        source = self._source
        self._is_loading = True

        def answered(part: LogSlice) -> None:
            self._is_loading = False
            then(part)

        def failed(error: Exception) -> None:
            self._is_loading = False
            self._is_complete = True
            self._empty.set_text("The log cannot be read", str(error))
            self._stack.setCurrentWidget(self._empty)

        self._ask(lambda trainer: source.read(trainer, offset, until), answered, failed)

    def _ask(
        self, call: Callable[[TrainerClient], Any], then: Callable[[Any], None], failed: Callable[[Exception], None]
    ) -> None:
        """Like `bridge.ask`, but without answers about what is no longer shown."""
        request_id = self._request_id

        def is_current() -> bool:
            return request_id == self._request_id

        self._workbench.bridge.ask(
            call,
            lambda answer: then(answer) if is_current() else None,
            lambda error: failed(error) if is_current() else None,
            self,
        )

    def _on_first_slice(self, until: int | None, part: LogSlice) -> None:
        if until is not None and part.end < until:
            self._set_at_end()
        self._lines = LogLines(part.start, starts_mid_line=part.start > 0)
        self._append_slice(part)
        self._start = self._lines.first_offset
        self._earlier.setVisible(self._start > 0)

    def _append_slice(self, part: LogSlice) -> None:
        source = self._source
        lines = [line for chunk in part.parts for line in self._lines.add(*chunk)]
        view = self._workbench.runs.get(self._run_id)
        is_ended = view is not None and view.stage == "finished"
        if is_ended and self._is_at_end and not part.parts and self._stream is not LogStream.DAEMON:
            # This read began after the run's end and returned nothing: the log is complete.
            lines += self._lines.take_partial_lines()
            self._is_complete = True
            self._poll_timer.stop()
        incomplete = self._lines.partial_line if self._stream is not LogStream.DAEMON else None
        self._view.append_lines(source.visible_lines(lines), incomplete if self._is_at_end else None)
        if self._lines.end == 0 and view is not None:
            self._show_empty(view)
        else:
            self._stack.setCurrentIndex(0)

    def _show_empty(self, view: RunView) -> None:
        stream = "the daemon's log" if self._stream is LogStream.DAEMON else STREAM_NAMES[self._stream]
        self._empty.set_text(*empty_text("logs", view, stream))
        self._stack.setCurrentWidget(self._empty)
        if view.outcome == "succeeded" and self._stream is not LogStream.DAEMON:
            run_id = view.run_id
            self._ask(lambda trainer: trainer.config(run_id), self._on_config, lambda _: None)

    def _on_config(self, payload: dict[str, Any]) -> None:
        if value_at(payload, OPTIONS["persist_logs"].path) is False:
            self._empty.set_text("The logs were not kept", "The run has persist_logs off, and it has succeeded.")

    def _read_earlier(self) -> None:
        first = self._view.first_offset  # the oldest lines of a log that grows are removed
        self._start = self._start if first is None else max(self._start, first)
        if self._is_loading or self._start == 0:
            return
        self._earlier.setEnabled(False)
        self._request_slice(max(0, self._start - PAGE_BYTES), self._start, self._prepend_slice)

    def _prepend_slice(self, part: LogSlice) -> None:
        lines = LogLines(part.start, starts_mid_line=part.start > 0)
        found = [line for chunk in part.parts for line in lines.add(*chunk)]
        self._view.prepend_lines(self._source.visible_lines(found + lines.take_partial_lines()))
        self._start = lines.first_offset
        self._earlier.setEnabled(True)
        self._earlier.setVisible(self._start > 0)

    def _read_later(self) -> None:
        if not self._is_loading and not self._is_at_end:
            end = self._lines.end
            self._request_slice(end, end + PAGE_BYTES, lambda part: self._append_later(part, end + PAGE_BYTES))

    def _append_later(self, part: LogSlice, until: int) -> None:
        if part.end < until:
            self._set_at_end()
        self._append_slice(part)

    def _set_at_end(self) -> None:
        """What is shown includes the end of the log, which may be growing."""
        self._is_at_end = True
        self._later.hide()
        self._view.set_at_end()

    def _poll(self) -> None:
        if not self._is_loading and not self._is_complete and self._is_at_end:
            self._request_slice(self._lines.end, None, self._append_slice)

    def _on_follow_clicked(self, is_on: bool) -> None:
        if is_on and not self._is_at_end:
            self._show_part(-PAGE_BYTES, None)
        else:
            self._view.follow(is_on)

    # --- searching

    def start_search(self) -> None:
        self._search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self._search.selectAll()

    def _start_text_search(self) -> None:
        text = self._search.text()
        if text:
            source, after = self._source, self._view.visible_offset
            self._find(lambda trainer: source.search(trainer, text), MatchCursor(text, after=after))
        else:
            self._matches = MatchCursor()
            self._found.setText("")

    def _find_errors(self, is_automatic: bool = False) -> None:
        """`is_automatic`: nobody has asked, so that it is not worth a word where there is none."""
        self._find(self._source.find_errors, MatchCursor(is_errors=True, is_silent=is_automatic))

    def _find(self, call: Callable[[TrainerClient], LogMatches], cursor: MatchCursor) -> None:
        self._matches = cursor
        self._found.setText("searching…")

        def then(found: LogMatches) -> None:
            if cursor is self._matches:
                cursor.set_matches(found)
                self._show_match()

        def failed(error: Exception) -> None:
            if cursor is self._matches:
                self._found.setText("")
                self._workbench.show_error(error)

        # Not by `_ask`: what is shown may be replaced meanwhile.
        run_id, stream = self._run_id, self._stream
        self._workbench.bridge.ask(
            call, lambda found: then(found) if (run_id, stream) == (self._run_id, self._stream) else None, failed, self
        )

    def _step(self, direction: int) -> None:
        """Go to the next or the previous match; the search is repeated where the log has grown since."""
        if self._search_timer.isActive():
            self._search_timer.stop()
            self._start_text_search()
        elif self._matches.step(direction):
            self._show_match()
        elif self._search.text() and not self._matches.is_errors:
            self._start_text_search()

    def _show_match(self) -> None:
        self._found.setText(self._matches.describe())
        match = self._matches.current
        if match is None:
            return
        if not self._view.has_line_at(match.offset):
            self._show_part(max(0, match.offset - CONTEXT_BYTES), match.offset + CONTEXT_BYTES)
        self._view.jump_to(match.offset, self._matches.text)

    def _set_wrap(self, is_wrapped: bool) -> None:
        mode = LogView.LineWrapMode.WidgetWidth if is_wrapped else LogView.LineWrapMode.NoWrap
        self._view.setLineWrapMode(mode)

    # --- events

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if self._search.hasFocus() and event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._step(-1 if event.modifiers() & Qt.KeyboardModifier.ShiftModifier else 1)
        elif self._search.hasFocus() and event.key() == Qt.Key.Key_Escape:
            self._search.clear()
            self._view.setFocus()
        else:
            super().keyPressEvent(event)


def _read_stream(value: object) -> LogStream:
    """A stream as the settings have it."""
    return next((stream for stream in LogStream if stream == value), LogStream.BOTH)
