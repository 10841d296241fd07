"""A set of runs as small labels, each with its colour and a cross that takes it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QColor, QIcon, QPainter, QPixmap
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QScrollArea, QSizePolicy, QToolButton, QWidget

from mosaic.formatting import run_title
from mosaic.gui import theme
from mosaic.gui.views.flow_layout import FlowLayout
from mosaic.gui.views.widgets import with_object_name

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView

VISIBLE_ROWS = 2
DOT_SIZE = 10


def dot_pixmap(colour: QColor) -> QPixmap:
    pixmap = QPixmap(2 * DOT_SIZE, 2 * DOT_SIZE)
    pixmap.setDevicePixelRatio(2)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(colour)
    painter.drawEllipse(0, 0, DOT_SIZE, DOT_SIZE)
    painter.end()
    return pixmap


def dot_icon(colour: QColor) -> QIcon:
    return QIcon(dot_pixmap(colour))


class Chip(QFrame):
    removed = Signal(str)

    def __init__(self, view: RunView) -> None:
        super().__init__()
        run_id = view.run_id
        with_object_name(self, f"chip.{run_id}")
        self.setProperty("chip", True)
        row = QHBoxLayout(self)
        row.setContentsMargins(theme.GAP, 2, 2, 2)
        row.setSpacing(theme.GAP // 2)
        colour = QLabel()
        colour.setPixmap(dot_pixmap(theme.run_colour(run_id)))
        title = QLabel(run_title(view))
        title.setToolTip(run_id)
        cross = with_object_name(QToolButton(), f"chip.{run_id}.remove")
        cross.setProperty("flat", True)
        cross.setIcon(theme.icon("mdi6.close", "muted"))
        cross.setIconSize(QSize(12, 12))
        cross.setToolTip("Take this run out of the comparison")
        cross.clicked.connect(lambda _: self.removed.emit(run_id))
        for part in (colour, title, cross):
            row.addWidget(part)


class RunChips(QScrollArea):
    """Two rows are seen, the rest scrolls."""

    removed = Signal(str)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._content = QWidget()
        self._flow = FlowLayout(self._content)
        self.setWidget(self._content)
        self._views: Sequence[RunView] = ()

    def show_runs(self, views: Sequence[RunView]) -> None:
        self._views = views
        while (item := self._flow.takeAt(0)) is not None:
            widget = item.widget()
            if widget is not None:
                widget.hide()
                widget.deleteLater()
        for view in views:
            chip = Chip(view)
            chip.removed.connect(self.removed)
            self._flow.addWidget(chip)
        self._update_height()

    def repaint_theme(self) -> None:
        self.show_runs(self._views)

    def _update_height(self) -> None:
        item = self._flow.itemAt(0)
        if item is None:
            self.setFixedHeight(0)
            return
        row = item.sizeHint().height() + self._flow.spacing()
        self.setFixedHeight(min(VISIBLE_ROWS * row, self._flow.heightForWidth(self.viewport().width())) + 2)

    def resizeEvent(self, event: object) -> None:
        super().resizeEvent(event)  # type: ignore[arg-type]
        self._update_height()
