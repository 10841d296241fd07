"""The resources of the trainer's machine, one in each row: small bars with the words below them."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF, QSize
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPaintEvent
from PySide6.QtWidgets import QGridLayout, QSizePolicy, QWidget

from mosaic.gui import theme
from mosaic.gui.models.resource_rows import BarPart, Meter, ResourceRow
from mosaic.gui.views import widgets as ui

BAR_HEIGHT_PX = 8
PART_GAP_PX = 1.0
TITLES = ("", "Held by", "In use", "Memory")


class SegmentBar(QWidget):
    """Parts of a whole, in the colors of their runs."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: tuple[BarPart, ...] = ()
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        return QSize(80, BAR_HEIGHT_PX)

    def minimumSizeHint(self) -> QSize:
        return QSize(40, BAR_HEIGHT_PX)

    def show_parts(self, parts: tuple[BarPart, ...]) -> None:
        if parts != self.parts:
            self.parts = parts
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        area = QRectF(self.rect())
        outline = QPainterPath()
        outline.addRoundedRect(area, area.height() / 2, area.height() / 2)
        painter.setClipPath(outline)
        painter.fillRect(area, QColor(theme.tokens().line))
        left = 0.0
        for part in self.parts:
            width = min(part.fraction * area.width(), area.width() - left)
            color = theme.run_color(part.run_id) if part.run_id else QColor(theme.tokens().accent)
            # The gap, in the color of the bar, separates neighbors whose runs have the same color.
            painter.fillRect(QRectF(left, 0, max(width - PART_GAP_PX, min(width, 1.0)), area.height()), color)
            left += width


class _MeterView(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self.bar, self.label = SegmentBar(), ui.ElidedLabel()
        self.label.setProperty("muted", True)
        self.label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        ui.column(4, self.bar, self.label, parent=self, spacing=4)

    def show_meter(self, meter: Meter | None) -> None:
        meter = meter or Meter(parts=None)
        policy = self.bar.sizePolicy()
        policy.setRetainSizeWhenHidden(True)  # so that all texts of a row are on one line
        self.bar.setSizePolicy(policy)
        self.bar.setVisible(meter.parts is not None)
        self.bar.show_parts(meter.parts or ())
        self.label.setText(meter.text)
        self.setToolTip(meter.tooltip or meter.text)
        self.setAccessibleName(meter.text)


class _RowView:
    def __init__(self, grid: QGridLayout, number: int) -> None:
        self.name, self.detail = ui.ElidedLabel(), ui.ElidedLabel()
        self.detail.setProperty("muted", True)
        self.meters = [_MeterView() for _ in TITLES[1:]]
        names = ui.widget_column(self.name, self.detail, spacing=0)
        for column, widget in enumerate((names, *self.meters)):
            grid.addWidget(widget, number, column)

    def show_row(self, row: ResourceRow) -> None:
        self.name.setText(row.name)
        self.detail.setText(row.detail)
        self.detail.setToolTip(row.detail)
        for view, meter in zip(self.meters, (row.held, row.in_use, row.memory), strict=True):
            view.show_meter(meter)


class ResourceTable(QWidget):
    """Rebuilt only when the number of rows changes."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(2 * theme.GAP)
        self._grid.setVerticalSpacing(theme.GAP)
        for column, stretch in enumerate((3, 5, 3, 3)):
            self._grid.setColumnStretch(column, stretch)
        self._rows: list[_RowView] = []

    def show_rows(self, rows: Sequence[ResourceRow]) -> None:
        if len(rows) != len(self._rows):
            self._build(len(rows))
        for view, row in zip(self._rows, rows, strict=True):
            view.show_row(row)

    def _build(self, count: int) -> None:
        ui.clear_layout(self._grid)
        for column, title in enumerate(TITLES):
            self._grid.addWidget(ui.muted_label(title), 0, column)
        self._rows = [_RowView(self._grid, number + 1) for number in range(count)]
