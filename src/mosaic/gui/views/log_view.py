"""A part of a log: colored, bounded, followed while it grows, and with any of its lines to jump to."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable

from PySide6.QtCore import Signal
from PySide6.QtGui import QColor, QTextBlock, QTextCursor, QTextFormat
from PySide6.QtWidgets import QTextEdit

from mosaic.gui import theme
from mosaic.gui.models.log_text import LogLine, parse_spans
from mosaic.gui.views.text_views import MonospaceView, text_format
from mosaic.gui.views.widgets import create_timer

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
