"""JSON as people read it: indented, in monospace, keys and values told apart."""

from __future__ import annotations

import json
import re
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QSyntaxHighlighter, QTextCharFormat, QTextDocument
from PySide6.QtWidgets import QPlainTextEdit

from mosaic.gui import theme

_KEY = re.compile(r'"(?:[^"\\]|\\.)*"(?=\s*:)')
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"(?!\s*:)')
_PLAIN = re.compile(r"(?<=[\s\[:])(-?\d[\d.eE+-]*|true|false|null)(?=[\s,\]}]|$)")


class JsonHighlighter(QSyntaxHighlighter):
    def __init__(self, document: QTextDocument) -> None:
        super().__init__(document)
        self.restyle()

    def restyle(self) -> None:
        t = theme.tokens()
        self._rules = [(_TEXT, _format(t.good)), (_PLAIN, _format(t.warning)), (_KEY, _format(t.accent))]
        self.rehighlight()

    def highlightBlock(self, text: str) -> None:
        for pattern, style in self._rules:
            for match in pattern.finditer(text):
                self.setFormat(match.start(), match.end() - match.start(), style)


def _format(colour: str) -> QTextCharFormat:
    made = QTextCharFormat()
    made.setForeground(QColor(colour))
    return made


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
        self.setFont(theme.monospace())
        self._highlighter.restyle()

    def show_json(self, data: Any) -> None:
        text = json.dumps(data, indent=2, ensure_ascii=False)
        if text != self.toPlainText():
            self.setPlainText(text)
