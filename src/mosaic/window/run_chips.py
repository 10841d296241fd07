"""A set of runs as small labels, each with its color and a button that removes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QListView, QListWidget, QListWidgetItem, QSizePolicy

from mosaic.base.formatting import run_title
from mosaic.contracts.views import RunView
from mosaic.window import theme
from mosaic.window.widgets import DOT_SIZE, ElidedLabel, IconLabel, dot_icon, row, tool_button

VISIBLE_ROWS = 2


class Chip(QFrame):
    removed = Signal(str)

    def __init__(self, view: RunView, label: str, tip: str = "") -> None:
        """Without a tip for its button, it has none."""
        super().__init__()
        run_id = view.run_id
        self.setObjectName(f"chip.{run_id}")
        self.setProperty("chip", True)
        dot = IconLabel(DOT_SIZE)
        dot.set_icon(dot_icon(theme.run_color(run_id)))
        title = ElidedLabel(label)
        title.setToolTip(f"{run_title(view)}\n{run_id}")
        cross = tool_button(f"chip.{run_id}.remove", "mdi6.close", tip, lambda: self.removed.emit(run_id))
        cross.setIconSize(QSize(12, 12))
        policy = cross.sizePolicy()
        policy.setRetainSizeWhenHidden(True)  # all chips have one height
        cross.setSizePolicy(policy)
        cross.setVisible(bool(tip))
        row(dot, title, cross, parent=self, margins=(theme.GAP, 2, 2, 2), spacing=theme.GAP // 2)


class RunChips(QListWidget):
    """Two rows are visible, the rest scrolls."""

    removed = Signal(str)

    def __init__(self, name: str, tip: str = "Remove this run from the comparison") -> None:
        """`tip` is that of the buttons."""
        super().__init__()
        self._tip = tip
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

    def show_runs(self, views: Sequence[RunView], labels: Mapping[str, str] | None = None, fixed: str = "") -> None:
        """`labels`, by run, replace their titles; the run `fixed` has no button."""
        self.clear()
        for view in views:
            label = (labels or {}).get(view.run_id) or run_title(view)
            chip = Chip(view, label, "" if view.run_id == fixed else self._tip)
            chip.removed.connect(self.removed)
            item = QListWidgetItem(self)
            self.setItemWidget(item, chip)
        self._update_height()

    def _update_height(self) -> None:
        room = self.width() - 2 * theme.GAP
        for number in range(self.count()):
            item = self.item(number)
            wanted = self.itemWidget(item).sizeHint()
            item.setSizeHint(QSize(min(wanted.width(), max(room, 1)), wanted.height()))
        self.doItemsLayout()
        first, last = (self.visualItemRect(self.item(number)) for number in (0, self.count() - 1))
        self.setFixedHeight(min(VISIBLE_ROWS * first.height(), last.bottom() - first.top() + 1) if self.count() else 0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._update_height()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange and self.count():
            self._update_height()
