"""A set of runs as small labels, each with its color and a button that removes it."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QLabel, QListView, QListWidget, QListWidgetItem, QSizePolicy

from mosaic.contracts.views import RunView
from mosaic.formatting import run_title
from mosaic.gui import theme
from mosaic.gui.views.widgets import DOT_SIZE, IconLabel, dot_icon, row, tool_button

VISIBLE_ROWS = 2


class Chip(QFrame):
    removed = Signal(str)

    def __init__(self, view: RunView) -> None:
        super().__init__()
        run_id = view.run_id
        self.setObjectName(f"chip.{run_id}")
        self.setProperty("chip", True)
        dot = IconLabel(DOT_SIZE)
        dot.set_icon(dot_icon(theme.run_color(run_id)))
        title = QLabel(run_title(view))
        title.setToolTip(run_id)
        tip = "Remove this run from the comparison"
        cross = tool_button(f"chip.{run_id}.remove", "mdi6.close", tip, lambda: self.removed.emit(run_id))
        cross.setIconSize(QSize(12, 12))
        row(dot, title, cross, parent=self, margins=(theme.GAP, 2, 2, 2), spacing=theme.GAP // 2)


class RunChips(QListWidget):
    """Two rows are visible, the rest scrolls."""

    removed = Signal(str)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self.setFlow(QListView.Flow.LeftToRight)
        self.setWrapping(True)
        self.setResizeMode(QListView.ResizeMode.Adjust)
        self.setSelectionMode(QListWidget.SelectionMode.NoSelection)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollMode(QListWidget.ScrollMode.ScrollPerPixel)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setStyleSheet("QListWidget { background: transparent; } QListWidget::item { background: transparent; }")

    def show_runs(self, views: Sequence[RunView]) -> None:
        self.clear()
        for view in views:
            chip = Chip(view)
            chip.removed.connect(self.removed)
            item = QListWidgetItem(self)
            item.setSizeHint(chip.sizeHint() + QSize(theme.GAP // 2, theme.GAP // 2))
            self.setItemWidget(item, chip)
        self._update_height()

    def _update_height(self) -> None:
        self.doItemsLayout()
        first, last = (self.visualItemRect(self.item(number)) for number in (0, self.count() - 1))
        self.setFixedHeight(min(VISIBLE_ROWS * first.height(), last.bottom() - first.top() + 1) if self.count() else 0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._update_height()
