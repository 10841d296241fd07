"""The explanation of the chosen algorithm, next to the form."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QTextCharFormat, QTextCursor, QTextDocument, QTextFormat, QTextLength, QTextOption, QTextTable
from PySide6.QtWidgets import QTextBrowser, QWidget

from mosaic.base.algorithm_schema import Algorithm
from mosaic.window import theme
from mosaic.window.labels import PageBrowser
from mosaic.window.widgets import column


class HelpPanel(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self._page = ""
        self.browser = PageBrowser("train.help.text")
        self.browser.setFrameShape(QTextBrowser.Shape.NoFrame)
        self.browser.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.browser.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        column(self.browser, parent=self)
        self.setMinimumWidth(240)

    def show_algorithm(self, algorithm: Algorithm) -> None:
        page = algorithm.help_page() or f"# {algorithm.title}\n\n{algorithm.summary}"
        if page != self._page:
            self._page = page
            self.restyle()

    def restyle(self) -> None:
        """A document has its own colors and sizes: it is laid out again when the theme changes."""
        t = theme.tokens()
        self.browser.setStyleSheet(f"QTextBrowser {{ background: {t.surface}; }}")
        document = self.browser.document()
        document.setDefaultFont(self.browser.font())
        document.setDocumentMargin(theme.MARGIN)
        self.browser.setMarkdown(self._page)
        _shrink_headings(document)
        for frame in document.rootFrame().childFrames():
            if isinstance(frame, QTextTable):
                _style_table(frame)

    def scroll_to(self, setting: str) -> None:
        """Scroll to the first mention of a setting."""
        self.browser.moveCursor(QTextCursor.MoveOperation.Start)
        if setting:
            self.browser.find(setting)


def _shrink_headings(document: QTextDocument) -> None:
    """Sizes of a panel, not of a web page."""
    block = document.begin()
    while block.isValid():
        level = block.blockFormat().headingLevel()
        if level:
            char_format = QTextCharFormat()
            font = theme.text_font(2 if level == 1 else 0, is_bold=True)
            char_format.setFontPointSize(font.pointSizeF())
            char_format.setFontWeight(font.weight())
            char_format.setProperty(QTextFormat.Property.FontSizeAdjustment.value, 0)
            cursor = QTextCursor(block)
            cursor.select(QTextCursor.SelectionType.BlockUnderCursor)
            cursor.mergeCharFormat(char_format)
        block = block.next()


def _style_table(table: QTextTable) -> None:
    """As wide as the panel, without a box."""
    table_format = table.format()
    table_format.setWidth(QTextLength(QTextLength.Type.PercentageLength, 100))
    table_format.setBorder(0)
    table_format.setCellSpacing(0)
    table_format.setCellPadding(4)
    table.setFormat(table_format)
    small = QTextCharFormat()
    small.setFontPointSize(theme.text_font(-1).pointSizeF())
    cursor = table.firstCursorPosition()
    cursor.setPosition(table.lastPosition(), QTextCursor.MoveMode.KeepAnchor)
    cursor.mergeCharFormat(small)
