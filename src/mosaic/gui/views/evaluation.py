"""An evaluation: how its episodes came out, and its batches one by one."""

from __future__ import annotations

from typing import Any

from PySide6.QtGui import QColor
from PySide6.QtWidgets import QStackedWidget, QVBoxLayout, QWidget

from mosaic.client.leaderboard import returns_of
from mosaic.gui import theme
from mosaic.gui.views.empty import Empty
from mosaic.gui.views.histogram import Histogram
from mosaic.gui.views.made import muted
from mosaic.gui.views.read_table import ReadTable, interval_words
from mosaic.gui.views.words import duration, number
from mosaic.statistics import Interval

Json = dict[str, Any]
MOST_ROWS = 200
HEADS = ("Batch", "Episodes", "Mean [95 %]", "IQM", "Lowest", "Highest", "Took")
FIGURES = ("iqm", "min_return", "max_return")


class BatchesTable(ReadTable):
    """The newest first."""

    def __init__(self) -> None:
        super().__init__("evaluation.batches")

    def fill(self, batches: list[Json]) -> None:
        shown = batches[: -MOST_ROWS - 1 : -1]
        self.begin(len(shown), HEADS)
        for row, batch in enumerate(shown):
            low, high = batch.get("ci95") or (float("nan"), float("nan"))
            mean = batch.get("avg_return")
            self.put(row, 0, number(batch.get("batch", len(batches) - row)))
            self.put(row, 1, number(batch["episodes"]))
            interval = Interval(float("nan") if mean is None else mean, low, high)
            more = f"Median {number(batch.get('median_return'))}, standard deviation {number(batch.get('std_return'))}"
            self.put(row, 2, interval_words(interval), more)
            for column, name in enumerate(FIGURES, 3):
                self.put(row, column, number(batch.get(name)))
            self.put(row, len(HEADS) - 1, duration(batch.get("duration_s")))


class EvaluationView(QStackedWidget):
    def __init__(self) -> None:
        super().__init__()
        self.histogram = Histogram("evaluation.histogram")
        self.batches = BatchesTable()
        self._title = muted("Returns")
        self._empty = Empty("No batch has been played yet")
        inside = QWidget()
        column = QVBoxLayout(inside)
        column.setContentsMargins(theme.GAP, 0, 0, 0)
        column.setSpacing(theme.GAP)
        column.addWidget(self._title)
        column.addWidget(self.histogram, 3)
        column.addWidget(self.batches, 2)
        self.batches.setMinimumHeight(84)
        self.addWidget(self._empty)
        self.addWidget(inside)

    def show_evaluation(self, evaluation: Json | None, colour: QColor, is_over: bool) -> None:
        """None: it has played no whole batch."""
        self.setCurrentIndex(0 if evaluation is None else 1)
        if evaluation is None:
            self._empty.say("No batch was played" if is_over else "No batch has been played yet")
            return
        batches = evaluation["batches"]
        of = "1 batch" if len(batches) == 1 else f"{len(batches):,} batches"
        self._title.setText(f"Returns of {sum(batch['episodes'] for batch in batches):,} episodes in {of}")
        self.histogram.show_values(returns_of(evaluation), colour)
        self.batches.fill(batches)
