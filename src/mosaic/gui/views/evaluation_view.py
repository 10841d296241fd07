"""An evaluation: a histogram of its returns, and its batches one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyqtgraph as pg
from PySide6.QtCore import QSize
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QStackedWidget, QWidget

from mosaic.contracts.views import Evaluation, EvaluationBatch, RunView
from mosaic.formatting import (
    count_noun,
    describe_acting,
    describe_unfinished_training,
    format_duration,
    format_si_number,
)
from mosaic.gui import theme
from mosaic.gui.models.run_states import empty_text
from mosaic.gui.models.series import Floats
from mosaic.gui.views.plot import Plot
from mosaic.gui.views.tables import Cell, ReadOnlyTable, format_interval
from mosaic.gui.views.widgets import EmptyState, column, muted_label
from mosaic.statistics.curves import ConfidenceInterval, mean_with_interval
from mosaic.statistics.ranking import evaluation_returns

MAX_BINS = 30
MAX_ROWS = 200
COLUMN_TITLES = ("Batch", "Episodes", "Mean [95 %]", "IQM", "Lowest", "Highest", "Took")


def bin_values(values: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return counts and edges; one bin where all values are the same."""
    known = values[np.isfinite(values)]
    if not len(known):
        return np.zeros(0, np.int64), np.zeros(1)
    low, high = float(known.min()), float(known.max())
    if high - low <= 1e-9 * max(1.0, abs(low), abs(high)):
        half = max(0.5, 0.05 * abs(low))
        return np.array([len(known)]), np.array([low - half, low + half])
    bins = int(np.clip(2 * np.sqrt(len(known)), 5, MAX_BINS))
    counts, edges = np.histogram(known, bins)
    return counts, edges


class Histogram(Plot):
    """How often each return occurred; a line marks the mean, a shade Student's 95 % interval."""

    def __init__(self, name: str) -> None:
        self._bars = pg.BarGraphItem(x0=[], x1=[], height=[], pen=pg.mkPen(None))
        self._mean_line = pg.InfiniteLine(angle=90)
        self._interval = pg.LinearRegionItem(movable=False, pen=pg.mkPen(None))
        super().__init__()
        self.setObjectName(name)
        self.setInteractive(False)
        self.setMinimumSize(200, 110)
        self.values: Floats = np.zeros(0)
        self.mean = mean_with_interval(self.values)
        for item in (self._interval, self._bars, self._mean_line):
            self.view.addItem(item, ignoreBounds=True)

    def sizeHint(self) -> QSize:
        return QSize(480, 220)

    def _apply_theme(self, tokens: theme.Tokens) -> None:
        super()._apply_theme(tokens)
        shade = QColor(tokens.text)
        self._mean_line.setPen(pg.mkPen(shade, width=1.5))
        shade.setAlpha(24)
        self._interval.setBrush(pg.mkBrush(shade))

    def show_values(self, values: Floats, color: QColor) -> None:
        self.values = values
        self.mean = mean = mean_with_interval(values)
        counts, edges = bin_values(values)
        fill = QColor(color)
        fill.setAlpha(190)
        gap = 0.04 * (edges[-1] - edges[0]) / max(1, len(counts))
        self._bars.setOpts(x0=edges[:-1] + gap, x1=edges[1:] - gap, height=counts, brush=pg.mkBrush(fill))
        self._mean_line.setVisible(bool(np.isfinite(mean.point)))
        self._interval.setVisible(bool(np.isfinite(mean.low)))
        if np.isfinite(mean.point):
            self._mean_line.setValue(mean.point)
        if np.isfinite(mean.low):
            self._interval.setRegion((mean.low, mean.high))
        if len(counts):
            self.view.setXRange(edges[0], edges[-1], padding=0.04)
            self.view.setYRange(0, counts.max(), padding=0)
        self.setAccessibleName(f"Returns of {count_noun(len(values), 'episode')}: mean {format_interval(mean)}")


def batch_cells(batch: EvaluationBatch) -> Sequence[str | Cell]:
    nan = float("nan")
    mean = ConfidenceInterval(nan if batch.avg_return is None else batch.avg_return, *(batch.ci95 or (nan, nan)))
    median, deviation = format_si_number(batch.median_return), format_si_number(batch.std_return)
    return (
        format_si_number(batch.batch),
        format_si_number(batch.episodes),
        Cell(format_interval(mean), f"Median {median}, standard deviation {deviation}"),
        format_si_number(batch.iqm),
        format_si_number(batch.min_return),
        format_si_number(batch.max_return),
        format_duration(batch.duration_s),
    )


class EvaluationView(QStackedWidget):
    def __init__(self) -> None:
        super().__init__()
        self.histogram: Histogram | None = None
        """Created for the first evaluation that is shown: a plot takes some milliseconds to build."""
        self.mean: ConfidenceInterval | None = None
        self.batches = ReadOnlyTable("evaluation.batches")
        self.batches.setMinimumHeight(84)
        self._title = muted_label("Returns", "evaluation.title")
        self._empty = EmptyState("")
        self.addWidget(self._empty)
        content = QWidget()
        self._column = column(self._title, (self.batches, 2), parent=content, margins=(theme.GAP, 0, 0, 0))
        self.addWidget(content)

    def show_evaluation(self, evaluation: Evaluation | None, view: RunView, color: QColor) -> None:
        """None: no batch has been finished."""
        if evaluation is None:
            self.mean = None
            self.setCurrentIndex(0)
            self._empty.set_text(*empty_text("evaluation", view))
            return
        if self.histogram is None:
            self.histogram = Histogram("evaluation.histogram")
            self._column.insertWidget(1, self.histogram, 3)
        self.setCurrentIndex(1)
        self.histogram.show_values(evaluation_returns(evaluation), color)
        self.mean = self.histogram.mean
        batches = evaluation.summary.batches
        of = count_noun(len(batches), "batch", "batches")
        episodes = sum(batch.episodes for batch in batches)
        mean = format_interval(self.mean)
        acting = describe_acting(evaluation)
        title = f"Returns of {count_noun(episodes, 'episode')} in {of}: mean {mean} (line and shade); {acting}"
        self._title.setText("\n".join(filter(None, (title, describe_unfinished_training(evaluation)))))
        self.batches.show_rows(COLUMN_TITLES, [batch_cells(batch) for batch in batches[: -MAX_ROWS - 1 : -1]])
