"""Things next to each other where there is room, otherwise one below the other."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QSize
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QLayoutItem, QSizePolicy, QWidget

from mosaic.gui import theme
from mosaic.gui.views import widgets as ui


class WrappingRow(QWidget):
    def __init__(self, items: Sequence[ui.Item], spacing: int = theme.GAP) -> None:
        super().__init__()
        self._layout = ui.row(*items, parent=self, spacing=spacing)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Minimum)

    def _items(self) -> list[QLayoutItem]:
        items = [self._layout.itemAt(number) for number in range(self._layout.count())]
        return [item for item in items if item is not None and item.spacerItem() is None]

    def full_width(self) -> int:
        """Without wrapping; a part may be such a row itself."""
        widths = [
            part.full_width() if isinstance(part := item.widget(), WrappingRow) else item.minimumSize().width()
            for item in self._items()
        ]
        return sum(widths) + self._layout.spacing() * (len(widths) - 1)

    def minimumSizeHint(self) -> QSize:
        """As narrow as its widest part."""
        width = max((item.minimumSize().width() for item in self._items()), default=0)
        return QSize(width, self._layout.minimumSize().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._choose_direction()

    def event(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.LayoutRequest:
            self._choose_direction()
        return super().event(event)

    def _choose_direction(self) -> None:
        is_narrow = self.width() < self.full_width()
        wanted = QBoxLayout.Direction.TopToBottom if is_narrow else QBoxLayout.Direction.LeftToRight
        if self._layout.direction() != wanted:
            self._layout.setDirection(wanted)
            self.updateGeometry()
