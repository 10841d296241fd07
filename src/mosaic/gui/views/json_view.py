"""JSON for people: indented, in monospace, with keys and values in different colors."""

from __future__ import annotations

import json
import re
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QSyntaxHighlighter, QTextCharFormat, QTextDocument
from PySide6.QtWidgets import QPlainTextEdit

from mosaic.gui import theme

_TEXT = r'"(?:[^"\\]|\\.)*"'
_TOKEN = re.compile(rf"(?P<key>{_TEXT}(?=\s*:))|(?P<text>{_TEXT})|(?P<plain>-?\d[\d.eE+-]*|true|false|null)")


class JsonHighlighter(QSyntaxHighlighter):
    def __init__(self, document: QTextDocument) -> None:
        super().__init__(document)
        self.restyle()

    def restyle(self) -> None:
        t = theme.tokens()
        self._styles = {"key": _format(t.accent), "text": _format(t.good), "plain": _format(t.warning)}
        self.rehighlight()

    def highlightBlock(self, text: str) -> None:
        for match in _TOKEN.finditer(text):
            self.setFormat(match.start(), match.end() - match.start(), self._styles[str(match.lastgroup)])


def _format(colour: str) -> QTextCharFormat:
    text_format = QTextCharFormat()
    text_format.setForeground(QColor(colour))
    return text_format


class JsonView(QPlainTextEdit):
    def __init__(self) -> None:
        super().__init__()
        self.setReadOnly(True)
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self._highlighter = JsonHighlighter(self.document())
        self.restyle()

    def restyle(self) -> None:
        self.setFont(theme.monospace_font())
        self._highlighter.restyle()

    def show_json(self, data: Any) -> None:
        text = json.dumps(data, indent=2, ensure_ascii=False)
        if text != self.toPlainText():
            self.setPlainText(text)
