"""The explanation of the chosen algorithm, beside the form."""

from __future__ import annotations

from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import QTextBrowser, QVBoxLayout, QWidget

from mosaic.gui import theme
from mosaic.gui.views.made import named
from mosaic.plugins.schema import Algorithm


class HelpPanel(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self._shown = ""
        self.browser = named(QTextBrowser(), "train.help.text")
        self.browser.setOpenExternalLinks(True)
        self.browser.setFrameShape(QTextBrowser.Shape.NoFrame)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.browser)
        self.setMinimumWidth(240)

    def show_algorithm(self, algorithm: Algorithm) -> None:
        page = algorithm.help_page() or f"# {algorithm.title}\n\n{algorithm.summary}"
        if page != self._shown:
            self._shown = page
            self.restyle()

    def restyle(self) -> None:
        """Colours of a document are its own: it is laid out anew when the theme changes."""
        t = theme.tokens()
        document = self.browser.document()
        document.setDefaultFont(self.browser.font())
        document.setDocumentMargin(theme.MARGIN)
        self.browser.setMarkdown(self._shown)
        self.browser.setStyleSheet(f"QTextBrowser {{ background: {t.surface}; }}")

    def go_to(self, setting: str) -> None:
        """Shows the first place that tells of a setting."""
        self.browser.moveCursor(QTextCursor.MoveOperation.Start)
        if setting:
            self.browser.find(setting)
