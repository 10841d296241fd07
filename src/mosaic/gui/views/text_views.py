"""Read-only text in monospace: a log that grows at its end, and JSON."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QColor, QFont, QSyntaxHighlighter, QTextCharFormat, QTextCursor, QTextDocument
from PySide6.QtWidgets import QPlainTextEdit

from mosaic.gui import theme
from mosaic.gui.models.log_text import parse_spans
from mosaic.gui.views.widgets import create_timer

MAX_LINES = 20_000
LINES_PER_BATCH = 400
"""Lines that are inserted without a turn of the event loop."""
_TEXT = r'"(?:[^"\\]|\\.)*"'
_TOKEN = re.compile(rf"(?P<key>{_TEXT}(?=\s*:))|(?P<text>{_TEXT})|(?P<plain>-?\d[\d.eE+-]*|true|false|null)")


class MonospaceView(QPlainTextEdit):
    """Text that can be selected and not edited. Its font and colors follow the theme."""

    def __init__(self) -> None:
        super().__init__()
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.StyleChange:
            self._apply_theme()

    def _apply_theme(self) -> None:
        self.setFont(theme.monospace_font())


@lru_cache(maxsize=64)
def _text_format(color: str, is_bold: bool = False) -> QTextCharFormat:
    text_format = QTextCharFormat()
    if color:
        text_format.setForeground(QColor(color))
    if is_bold:
        text_format.setFontWeight(QFont.Weight.Bold)
    return text_format


class JsonHighlighter(QSyntaxHighlighter):
    def highlightBlock(self, text: str) -> None:
        t = theme.tokens()
        colors = {"key": t.accent, "text": t.good, "plain": t.warning}
        for match in _TOKEN.finditer(text):
            self.setFormat(match.start(), match.end() - match.start(), _text_format(colors[str(match.lastgroup)]))


class JsonView(MonospaceView):
    """Indented JSON, with keys and values in different colors."""

    def __init__(self) -> None:
        super().__init__()
        self._highlighter = JsonHighlighter(self.document())
        self._apply_theme()

    def _apply_theme(self) -> None:
        super()._apply_theme()
        self._highlighter.rehighlight()

    def show_json(self, data: Any) -> None:
        text = json.dumps(data, indent=2, ensure_ascii=False)
        if text != self.toPlainText():
            self.setPlainText(text)


class LogView(MonospaceView):
    """Text that grows at its end: colored, followed, searched, and bounded."""

    following_changed = Signal(bool)
    """Whether it stays at the end; it stops when the user scrolls up."""
    search_finished = Signal(bool)

    def __init__(self) -> None:
        super().__init__()
        self.setMaximumBlockCount(MAX_LINES)
        self._pending_lines: deque[str] = deque(maxlen=MAX_LINES)
        self._partial_line = ""
        self._has_partial_line = False
        """Whether the last block is an incomplete line."""
        self._is_following = True
        self._is_updating = False
        self._batch_timer = create_timer(self, 0, self._insert_batch, is_single_shot=True)
        self.verticalScrollBar().valueChanged.connect(self._on_scrolled)
        self._apply_theme()

    # --- contents

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
        """Insert earlier lines at the top; the visible part stays where it is."""
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
            color = theme.terminal_color(span.color) if span.color else ""
            cursor.insertText(span.text, _text_format(color, span.is_bold))

    # --- following

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
        """Select the next match, continuing at the other end. `from_selection_start`: the current one counts again."""
        if not text:
            self.search_finished.emit(True)
            return
        flags = QTextDocument.FindFlag.FindBackward if is_backwards else QTextDocument.FindFlag(0)
        cursor = self.textCursor()
        if from_selection_start:
            cursor.setPosition(cursor.selectionStart())
        match = self.document().find(text, cursor, flags)
        if match.isNull():
            cursor.movePosition(QTextCursor.MoveOperation.End if is_backwards else QTextCursor.MoveOperation.Start)
            match = self.document().find(text, cursor, flags)
        if not match.isNull():
            self.setTextCursor(match)
        self.search_finished.emit(not match.isNull())
