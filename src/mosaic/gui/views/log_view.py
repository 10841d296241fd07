"""Text that grows at its end: coloured, followed, searched, and bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QColor, QFont, QTextCharFormat, QTextCursor, QTextDocument
from PySide6.QtWidgets import QPlainTextEdit

from mosaic.gui import theme
from mosaic.gui.models.log_text import parse_spans

MAX_LINES = 20_000
LINES_PER_BATCH = 400
"""Lines that are put in without letting the window breathe."""


class LogView(QPlainTextEdit):
    following_changed = Signal(bool)
    """Whether it stays at the end; it stops when the user scrolls up."""
    search_finished = Signal(bool)

    def __init__(self) -> None:
        super().__init__()
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setMaximumBlockCount(MAX_LINES)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self._pending_lines: deque[str] = deque(maxlen=MAX_LINES)
        self._partial_line = ""
        self._has_partial_line = False
        """Whether the last block is a line that is not whole yet."""
        self._is_following = True
        self._is_updating = False
        self._batch_timer = QTimer(self, singleShot=True, interval=0)
        self._batch_timer.timeout.connect(self._insert_batch)
        self.verticalScrollBar().valueChanged.connect(self._on_scrolled)
        self.restyle()

    def restyle(self) -> None:
        self.setFont(theme.monospace_font())
        self._formats: dict[tuple[str, bool], QTextCharFormat] = {}

    # --- what comes in

    def reset(self) -> None:
        self._batch_timer.stop()
        self._pending_lines.clear()
        self._partial_line, self._has_partial_line = "", False
        self.setMaximumBlockCount(MAX_LINES)
        self.clear()
        self.follow(True)

    def append_lines(self, lines: Iterable[str], partial_line: str = "") -> None:
        """Append lines, and the one that is still being written."""
        self._pending_lines.extend(lines)
        self._partial_line = partial_line
        if not self._batch_timer.isActive():
            self._insert_batch()

    def prepend_lines(self, lines: list[str]) -> None:
        """Earlier lines, above what is there; what is read stays where it is."""
        bar = self.verticalScrollBar()
        place = bar.value()
        self.setMaximumBlockCount(self.maximumBlockCount() + len(lines))
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.Start)
        self._is_updating = True
        cursor.beginEditBlock()
        for line in lines:
            self._insert_line(cursor, line)
            cursor.insertBlock()
        cursor.endEditBlock()
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
            self._insert_line(cursor, self._pending_lines.popleft())
            cursor.insertBlock()
        if self._partial_line and not self._pending_lines:
            self._insert_line(cursor, self._partial_line)
            self._has_partial_line = True
        cursor.endEditBlock()
        if self._is_following:
            self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())
        self._is_updating = False
        if self._pending_lines:
            self._batch_timer.start()

    def _insert_line(self, cursor: QTextCursor, line: str) -> None:
        for span in parse_spans(line):
            cursor.insertText(span.text, self._format(span.colour, span.is_bold))

    def _format(self, colour: str, is_bold: bool) -> QTextCharFormat:
        text_format = self._formats.get((colour, is_bold))
        if text_format is None:
            text_format = QTextCharFormat()
            if colour:
                text_format.setForeground(QColor(theme.terminal_colour(colour)))
            if is_bold:
                text_format.setFontWeight(QFont.Weight.Bold)
            self._formats[colour, is_bold] = text_format
        return text_format

    # --- where it stands

    def follow(self, is_following: bool) -> None:
        if is_following != self._is_following:
            self._is_following = is_following
            self.following_changed.emit(is_following)
        if is_following:
            self._is_updating = True
            self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())
            self._is_updating = False

    def _on_scrolled(self, value: int) -> None:
        if not self._is_updating:
            self.follow(value >= self.verticalScrollBar().maximum())

    # --- searching

    def search(self, text: str, is_backwards: bool = False, from_selection_start: bool = False) -> None:
        """Goes to the next place, round the end if need be. `is_fresh`: from where the last one began."""
        if not text:
            self.search_finished.emit(True)
            return
        flags = QTextDocument.FindFlag.FindBackward if is_backwards else QTextDocument.FindFlag(0)
        cursor = self.textCursor()
        if from_selection_start:
            cursor.setPosition(cursor.selectionStart())
            self.setTextCursor(cursor)
        is_there = self.find(text, flags)
        if not is_there:
            around = QTextCursor(self.document())
            around.movePosition(QTextCursor.MoveOperation.End if is_backwards else QTextCursor.MoveOperation.Start)
            found = self.document().find(text, around, flags)
            is_there = not found.isNull()
            if is_there:
                self.setTextCursor(found)
        self.search_finished.emit(is_there)
