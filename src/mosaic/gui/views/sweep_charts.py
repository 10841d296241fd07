"""Charts of a sweep: the score of each trial with the best so far, and the importance of its settings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPalette
from PySide6.QtWidgets import QWidget

from mosaic.api.sweeps.trial_row import TrialRow, TrialStatus
from mosaic.gui import theme
from mosaic.gui.models.curve_model import finite_range, round_range
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.plot import Plot

MIN_TRIALS_SHOWN = 4
POINT_SIZE = 7
MIN_HEIGHT, MAX_HEIGHT = 190, 260


class HistoryChart(QWidget):
    """The score of each completed trial, the last report of each pruned one, and the best score so far."""

    hovered = Signal(object)
    """The number of the trial under the mouse, or None."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self.setBackgroundRole(QPalette.ColorRole.Base)
        self.setAutoFillBackground(True)
        self._rows: Sequence[TrialRow] = ()
        self._trial_count = 1
        self._zoom: tuple[float, float] | None = None
        self.plot = ui.with_object_name(Plot(), f"{name}.plot")
        self.plot.wheel_needs_ctrl = True
        self.plot.bottom.set_kind("count")
        self.best = pg.PlotCurveItem(antialias=True)
        self.done = pg.ScatterPlotItem(size=POINT_SIZE, pen=None)
        self.pruned = pg.ScatterPlotItem(size=POINT_SIZE, symbol="x")
        for item in (self.best, self.pruned, self.done):
            self.plot.view.addItem(item, ignoreBounds=True)
        self.plot.hover_changed.connect(self._on_hover)
        self.plot.zoom_requested.connect(self._zoom_to)
        self.plot.reset_requested.connect(lambda: self._zoom_to(0.0, 0.0))
        legend = ui.muted_label("● done   ✕ pruned, last report   ━ best so far")
        legend.setProperty("note", True)
        head = ui.row(ui.section_label("Score by trial"), ui.Stretch())
        margins = (theme.GAP, theme.GAP // 2, theme.GAP // 2, theme.GAP // 2)
        ui.column(head, (self.plot, 1), legend, parent=self, margins=margins, spacing=0)
        self.setMinimumSize(200, MIN_HEIGHT)
        self.setMaximumHeight(MAX_HEIGHT)

    def show_trials(self, rows: Sequence[TrialRow], trial_count: int) -> None:
        self._rows, self._trial_count = rows, trial_count
        self.redraw()

    def redraw(self) -> None:
        tokens = theme.tokens()
        done = [row for row in self._rows if row.score is not None]
        pruned = [row for row in self._rows if row.status is TrialStatus.PRUNED and row.last_score is not None]
        scores = [row.score or 0.0 for row in done]
        self.done.setData([row.number for row in done], scores, brush=pg.mkBrush(tokens.accent))
        self.pruned.setData(
            [row.number for row in pruned], [row.last_score or 0.0 for row in pruned], pen=pg.mkPen(tokens.muted)
        )
        xs, ys = best_so_far(self._rows)
        self.best.setData(np.array(xs), np.array(ys), pen=pg.mkPen(tokens.good, width=1.5))
        known = finite_range(np.array(scores), np.array([row.last_score or 0.0 for row in pruned]))
        self.plot.view.setYRange(*(round_range(*known) if known else (0.0, 1.0)), padding=0.05)
        every = -0.5, max(MIN_TRIALS_SHOWN, self._trial_count, len(self._rows)) - 0.5
        self.plot.view.setXRange(*(self._zoom or every), padding=0)

    def _zoom_to(self, begin: float, end: float) -> None:
        """Show a range of trials; an empty one: all of them."""
        self._zoom = (begin, end) if end > begin else None
        self.redraw()

    def _on_hover(self, x: float | None) -> None:
        known = {row.number for row in self._rows}
        number = None if x is None else round(x)
        self.hovered.emit(number if number in known else None)


def best_so_far(rows: Sequence[TrialRow]) -> tuple[list[float], list[float]]:
    """Return the corners of a line that rises with each trial that scores higher than all before it."""
    done = [row for row in rows if row.score is not None]
    best = list(itertools.accumulate((row.score or 0.0 for row in done), max))
    xs = [float(row.number) for row in done]
    if done and rows[-1].number > done[-1].number:
        xs, best = [*xs, float(rows[-1].number)], [*best, best[-1]]
    return [x for x in xs for _ in range(2)][1:], [y for y in best for _ in range(2)][: max(0, 2 * len(best) - 1)]


class ImportanceBars(QWidget):
    """A bar for each setting; a sentence where there are none."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self._values: Mapping[str, float] = {}
        self._text = ""
        self.setMinimumHeight(60)

    def show_values(self, values: Mapping[str, float], text: str) -> None:
        """`text` says why there are no values."""
        if (values, text) != (self._values, self._text):
            self._values, self._text = values, text
            self.setToolTip("\n".join(f"{name}: {100 * value:.0f} %" for name, value in values.items()))
            self.updateGeometry()
            self.update()

    def _row_height(self) -> int:
        return self.fontMetrics().height() + 4

    def sizeHint(self) -> QSize:
        return QSize(240, max(60, self._row_height() * len(self._values)))

    def minimumSizeHint(self) -> QSize:
        return QSize(160, self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        tokens, metrics = theme.tokens(), self.fontMetrics()
        if not self._values:
            painter.setPen(QColor(tokens.muted))
            flags = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop | Qt.TextFlag.TextWordWrap
            painter.drawText(self.rect(), flags, self._text)
            return
        height = self._row_height()
        names = min(max(map(metrics.horizontalAdvance, self._values)), round(0.45 * self.width()))
        figure = metrics.horizontalAdvance("100 %")
        left = names + theme.GAP
        room = max(1, self.width() - left - figure - theme.GAP)
        largest = max(self._values.values()) or 1.0
        for number, (name, value) in enumerate(self._values.items()):
            top = number * height
            painter.setPen(QColor(tokens.text))
            text = metrics.elidedText(name, Qt.TextElideMode.ElideMiddle, names)
            painter.drawText(QRectF(0, top, names, height), Qt.AlignmentFlag.AlignVCenter, text)
            painter.fillRect(QRectF(left, top + 4, room, height - 8), QColor(tokens.raised))
            painter.fillRect(QRectF(left, top + 4, room * value / largest, height - 8), QColor(tokens.accent))
            box = QRectF(self.width() - figure, top, figure, height)
            painter.drawText(box, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight, f"{100 * value:.0f} %")
