"""Text that grows at its end: coloured, followed, searched, and bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QColor, QFont, QTextCharFormat, QTextCursor, QTextDocument
from PySide6.QtWidgets import QPlainTextEdit

from mosaic.gui import theme
from mosaic.gui.models.log_text import spans

KEPT_LINES = 20_000
AT_ONCE = 400
"""Lines that are put in without letting the window breathe."""


class LogView(QPlainTextEdit):
    follows = Signal(bool)
    """Whether it stays at the end; it stops when the user scrolls up."""
    found = Signal(bool)

    def __init__(self) -> None:
        super().__init__()
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setMaximumBlockCount(KEPT_LINES)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self._waiting: deque[str] = deque(maxlen=KEPT_LINES)
        self._rest = ""
        self._has_rest = False
        """Whether the last block is a line that is not whole yet."""
        self._is_following = True
        self._is_ours = False
        self._breath = QTimer(self, singleShot=True, interval=0)
        self._breath.timeout.connect(self._put_some)
        self.verticalScrollBar().valueChanged.connect(self._scrolled)
        self.restyle()

    def restyle(self) -> None:
        self.setFont(theme.monospace())
        self._formats: dict[tuple[str, bool], QTextCharFormat] = {}

    # --- what comes in

    def start_anew(self) -> None:
        self._breath.stop()
        self._waiting.clear()
        self._rest, self._has_rest = "", False
        self.setMaximumBlockCount(KEPT_LINES)
        self.clear()
        self.follow(True)

    def append_lines(self, lines: Iterable[str], rest: str = "") -> None:
        """Lines behind the last, and the one that is still being written."""
        self._waiting.extend(lines)
        self._rest = rest
        if not self._breath.isActive():
            self._put_some()

    def put_before(self, lines: list[str]) -> None:
        """Earlier lines, above what is there; what is read stays where it is."""
        bar = self.verticalScrollBar()
        place = bar.value()
        self.setMaximumBlockCount(self.maximumBlockCount() + len(lines))
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.Start)
        self._is_ours = True
        cursor.beginEditBlock()
        for line in lines:
            self._insert(cursor, line)
            cursor.insertBlock()
        cursor.endEditBlock()
        bar.setValue(place + len(lines))
        self._is_ours = False

    def _put_some(self) -> None:
        cursor = QTextCursor(self.document())
        self._is_ours = True
        cursor.beginEditBlock()
        cursor.movePosition(QTextCursor.MoveOperation.End)
        if self._has_rest:
            cursor.movePosition(QTextCursor.MoveOperation.StartOfBlock, QTextCursor.MoveMode.KeepAnchor)
            cursor.removeSelectedText()
            self._has_rest = False
        for _ in range(min(AT_ONCE, len(self._waiting))):
            self._insert(cursor, self._waiting.popleft())
            cursor.insertBlock()
        if self._rest and not self._waiting:
            self._insert(cursor, self._rest)
            self._has_rest = True
        cursor.endEditBlock()
        if self._is_following:
            self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())
        self._is_ours = False
        if self._waiting:
            self._breath.start()

    def _insert(self, cursor: QTextCursor, line: str) -> None:
        for span in spans(line):
            cursor.insertText(span.text, self._format(span.colour, span.is_bold))

    def _format(self, colour: str, is_bold: bool) -> QTextCharFormat:
        made = self._formats.get((colour, is_bold))
        if made is None:
            made = QTextCharFormat()
            if colour:
                made.setForeground(QColor(theme.terminal_colour(colour)))
            if is_bold:
                made.setFontWeight(QFont.Weight.Bold)
            self._formats[colour, is_bold] = made
        return made

    # --- where it stands

    def follow(self, is_following: bool) -> None:
        if is_following != self._is_following:
            self._is_following = is_following
            self.follows.emit(is_following)
        if is_following:
            self._is_ours = True
            self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())
            self._is_ours = False

    def _scrolled(self, value: int) -> None:
        if not self._is_ours:
            self.follow(value >= self.verticalScrollBar().maximum())

    # --- searching

    def search(self, text: str, is_backwards: bool = False, is_fresh: bool = False) -> None:
        """Goes to the next place, round the end if need be. `is_fresh`: from where the last one began."""
        if not text:
            self.found.emit(True)
            return
        flags = QTextDocument.FindFlag.FindBackward if is_backwards else QTextDocument.FindFlag(0)
        cursor = self.textCursor()
        if is_fresh:
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
        self.found.emit(is_there)
