"""The names of a chart's curves, next to the data: color, name, and the value under the crosshair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from mosaic.gui import theme
from mosaic.gui.views.widgets import with_object_name

Row = tuple[str, str, QColor, bool]
WIDTH = 240
MARK_WIDTH = 20


class Legend(QWidget):
    """Painted, since values change with every move of the mouse."""

    def __init__(self) -> None:
        super().__init__()
        with_object_name(self, "legend")
        self._rows: Sequence[Row] = ()
        self._values: Mapping[str, str] = {}
        self.setFixedWidth(WIDTH)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Expanding)

    def show_rows(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self.setToolTip("\n".join(label for _, label, _, _ in rows))
        self.update()

    def show_values(self, values: Mapping[str, str]) -> None:
        if values != self._values:
            self._values = values
            self.update()

    def _row_height(self) -> int:
        return QFontMetrics(self.font()).height() + 6

    def minimumSizeHint(self) -> QSize:
        return QSize(WIDTH, self._row_height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        tokens, metrics, height = theme.tokens(), QFontMetrics(self.font()), self._row_height()
        shown = max(0, self.height() // height)
        rows = self._rows if len(self._rows) <= shown else self._rows[: shown - 1]
        for number, (key, label, colour, dashed) in enumerate(rows):
            top = number * height
            style = Qt.PenStyle.DashLine if dashed else Qt.PenStyle.SolidLine
            painter.setPen(QPen(colour, 2.5, style))
            painter.drawLine(QPointF(0, top + height / 2), QPointF(MARK_WIDTH - 6, top + height / 2))
            value = self._values.get(key, "")
            value_width = metrics.horizontalAdvance(value)
            painter.setPen(QColor(tokens.text))
            room = self.width() - MARK_WIDTH - value_width - theme.GAP
            name = metrics.elidedText(label, Qt.TextElideMode.ElideMiddle, room)
            painter.drawText(QRectF(MARK_WIDTH, top, room, height), Qt.AlignmentFlag.AlignVCenter, name)
            painter.drawText(
                QRectF(0, top, self.width(), height), Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight, value
            )
        if len(rows) < len(self._rows):
            painter.setPen(QColor(tokens.muted))
            painter.drawText(
                QRectF(MARK_WIDTH, len(rows) * height, self.width(), height),
                Qt.AlignmentFlag.AlignVCenter,
                f"and {len(self._rows) - len(rows)} more",
            )
