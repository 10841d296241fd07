"""Labels and icons: text that wraps, text that is elided where it does not fit, and small pictures."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, TypeVar

from PySide6.QtCore import QEvent, QObject, QSize, Qt, QUrl
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetrics,
    QHelpEvent,
    QIcon,
    QImage,
    QPainter,
    QPaintEvent,
    QPixmap,
    QResizeEvent,
    QSyntaxHighlighter,
    QTextCharFormat,
)
from PySide6.QtWidgets import QLabel, QPlainTextEdit, QSizePolicy, QTextBrowser, QToolTip, QWidget

from mosaic.window import theme

ObjectT = TypeVar("ObjectT", bound=QObject)
DOT_SIZE = 10


def with_object_name(target: ObjectT, name: str) -> ObjectT:
    """Its name: for layouts that are remembered, style sheets and tests."""
    target.setObjectName(name)
    return target


class PlainLabel(QLabel):
    """Shows text as it is. Of a bare QLabel, Qt takes a text with a tag for HTML, and reads the files that it names."""

    def __init__(self, text: str = "", name: str = "") -> None:
        super().__init__()
        self.setObjectName(name)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setText(text)


def muted_label(text: str, name: str = "") -> PlainLabel:
    label = PlainLabel(text, name)
    label.setProperty("muted", True)
    label.setWordWrap(True)
    return label


class NoteLabel(PlainLabel):
    """Sentences in muted text, with room for all their lines: a splitter does not ask how high wrapped text is."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.setProperty("muted", True)
        self.setWordWrap(True)
        self.hide()

    def show_text(self, text: str) -> None:
        """Hidden where there is none."""
        self.setText(text)
        self.setVisible(bool(text))
        self._update_height()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._update_height()

    def _update_height(self) -> None:
        self.setMinimumHeight(self.heightForWidth(self.width()) if self.text() else 0)


def heading_label(text: str) -> PlainLabel:
    label = PlainLabel(text)
    label.setProperty("heading", True)
    return label


def section_label(text: str) -> PlainLabel:
    """The heading of a group inside a page."""
    label = PlainLabel(text)
    label.setProperty("section", True)
    return label


def selectable_label(name: str, text: str = "") -> PlainLabel:
    """Wrapped text that can be copied."""
    label = PlainLabel(text, name)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    label.setWordWrap(True)
    return label


def path_label(name: str, path: str = "") -> ElidedLabel:
    """A path, elided in the middle; it can be copied."""
    label = with_object_name(ElidedLabel(path, Qt.TextElideMode.ElideMiddle), name)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return label


def elide_text(text: str, metrics: QFontMetrics, mode: Qt.TextElideMode, width: int) -> str:
    """Shorten a text to a width; what is cut at the right never ends inside a number, which would be another one."""
    if metrics.horizontalAdvance(text) <= width:  # Qt measures fractions of a pixel, and would cut a text that fits
        return text
    elided = metrics.elidedText(text, mode, width)
    if elided == text or mode is not Qt.TextElideMode.ElideRight:
        return elided
    kept = elided.removesuffix("…")
    is_inside_word = bool(kept) and not kept[-1].isspace() and not text[len(kept)].isspace()
    start, _, last = kept.rpartition(" ")
    if is_inside_word and any(character.isdigit() for character in last):
        return f"{start} …" if start else "…"
    return elided


class ElidedLabel(PlainLabel):
    """A line of text that is elided where it does not fit; its tool tip then shows the whole text."""

    def __init__(self, text: str = "", mode: Qt.TextElideMode = Qt.TextElideMode.ElideRight) -> None:
        super().__init__(text)
        self._mode = mode
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)

    def minimumSizeHint(self) -> QSize:
        return QSize(self.fontMetrics().horizontalAdvance("…") * 3, super().minimumSizeHint().height())

    @property
    def shown_text(self) -> str:
        return elide_text(self.text(), self.fontMetrics(), self._mode, self.contentsRect().width())

    def event(self, event: QEvent) -> bool:
        is_asked = event.type() is QEvent.Type.ToolTip and isinstance(event, QHelpEvent)
        if is_asked and not self.toolTip() and self.shown_text != self.text():
            assert isinstance(event, QHelpEvent)
            QToolTip.showText(event.globalPos(), self.text(), self)
            return True
        return super().event(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setPen(self.palette().color(self.foregroundRole()))
        painter.drawText(self.contentsRect(), int(self.alignment() | Qt.AlignmentFlag.AlignVCenter), self.shown_text)


def status_label(name: str) -> ElidedLabel:
    """A status line, which is elided where space is short."""
    return with_object_name(ElidedLabel(), name)


def dot_icon(color: QColor) -> QIcon:
    """A disk in the color of a run."""
    pixmap = QPixmap(2 * DOT_SIZE, 2 * DOT_SIZE)
    pixmap.setDevicePixelRatio(2)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(color)
    painter.drawEllipse(0, 0, DOT_SIZE, DOT_SIZE)
    painter.end()
    return QIcon(pixmap)


class IconLabel(QWidget):
    """An icon in the colors of the current theme."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.setFixedSize(QSize(size, size))
        self._icon = QIcon()

    def set_icon(self, icon: QIcon) -> None:
        self._icon = icon
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        self._icon.paint(QPainter(self), self.rect())


# --- Read-only text: help pages, and text in monospace, such as JSON.


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
