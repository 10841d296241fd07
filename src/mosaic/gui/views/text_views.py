"""Read-only text: help pages, and text in monospace, such as JSON."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from PySide6.QtCore import QEvent, Qt, QUrl
from PySide6.QtGui import QColor, QFont, QImage, QSyntaxHighlighter, QTextCharFormat
from PySide6.QtWidgets import QPlainTextEdit, QTextBrowser

from mosaic.gui import theme

_TEXT = r'"(?:[^"\\]|\\.)*"'
_TOKEN = re.compile(rf"(?P<key>{_TEXT}(?=\s*:))|(?P<text>{_TEXT})|(?P<plain>-?\d[\d.eE+-]*|true|false|null)")


class PageBrowser(QTextBrowser):
    """A help page in Markdown. It reads no file: an algorithm's page may be that of somebody's script."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self.setOpenExternalLinks(True)

    def loadResource(self, type: int, name: QUrl | str) -> QImage:
        return QImage(1, 1, QImage.Format.Format_ARGB32_Premultiplied)  # without any, Qt would try to open the file


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
def text_format(color: str, is_bold: bool = False) -> QTextCharFormat:
    style = QTextCharFormat()
    if color:
        style.setForeground(QColor(color))
    if is_bold:
        style.setFontWeight(QFont.Weight.Bold)
    return style


class JsonHighlighter(QSyntaxHighlighter):
    def highlightBlock(self, text: str) -> None:
        t = theme.tokens()
        colors = {"key": t.accent, "text": t.good, "plain": t.warning}
        for match in _TOKEN.finditer(text):
            self.setFormat(match.start(), match.end() - match.start(), text_format(colors[str(match.lastgroup)]))


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
