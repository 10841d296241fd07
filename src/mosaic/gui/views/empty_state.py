"""The placeholder where there is no content yet: what it would be, what to do, and the button that does it."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QPushButton, QVBoxLayout, QWidget

from mosaic.gui import theme
from mosaic.gui.views.widgets import muted_label


class EmptyState(QWidget):
    def __init__(self, title: str, text: str = "", button: QPushButton | None = None) -> None:
        super().__init__()
        self.title = QLabel(title)
        self.title.setFont(theme.heading_font())
        self.title.setWordWrap(True)
        self.text = muted_label(text)
        column = QVBoxLayout(self)
        column.setContentsMargins(theme.MARGIN, theme.MARGIN, theme.MARGIN, theme.MARGIN)
        column.setSpacing(theme.GAP)
        column.addStretch(1)
        for label in (self.title, self.text):
            label.setAlignment(Qt.AlignmentFlag.AlignCenter)
            column.addWidget(label)
        if button is not None:
            column.addSpacing(4)
            column.addWidget(button, 0, Qt.AlignmentFlag.AlignHCenter)
        column.addStretch(2)

    def set_text(self, title: str, text: str = "") -> None:
        self.title.setText(title)
        self.text.setText(text)
