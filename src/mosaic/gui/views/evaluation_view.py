"""An evaluation: how its episodes came out, and its batches one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtGui import QColor
from PySide6.QtWidgets import QStackedWidget, QVBoxLayout, QWidget

from mosaic.formatting import format_duration, format_si_number
from mosaic.gui import theme
from mosaic.gui.views.empty_state import EmptyState
from mosaic.gui.views.histogram_view import Histogram
from mosaic.gui.views.read_only_table import ReadOnlyTable, format_interval
from mosaic.gui.views.widgets import muted_label
from mosaic.statistics import ConfidenceInterval
from mosaic.statistics.ranking import evaluation_returns

if TYPE_CHECKING:
    from mosaic.contracts.views import Evaluation, EvaluationBatch

MAX_ROWS = 200
COLUMN_TITLES = ("Batch", "Episodes", "Mean [95 %]", "IQM", "Lowest", "Highest", "Took")
RETURN_COLUMNS = ("iqm", "min_return", "max_return")


class BatchesTable(ReadOnlyTable):
    """The newest first."""

    def __init__(self) -> None:
        super().__init__("evaluation.batches")

    def fill(self, batches: Sequence[EvaluationBatch]) -> None:
        shown = batches[: -MAX_ROWS - 1 : -1]
        self.reset_rows(len(shown), COLUMN_TITLES)
        for row, batch in enumerate(shown):
            low, high = batch.ci95 or (float("nan"), float("nan"))
            mean = batch.avg_return
            self.set_cell(row, 0, format_si_number(batch.batch))
            self.set_cell(row, 1, format_si_number(batch.episodes))
            interval = ConfidenceInterval(float("nan") if mean is None else mean, low, high)
            median, deviation = format_si_number(batch.median_return), format_si_number(batch.std_return)
            self.set_cell(row, 2, format_interval(interval), f"Median {median}, standard deviation {deviation}")
            for column, name in enumerate(RETURN_COLUMNS, 3):
                self.set_cell(row, column, format_si_number(getattr(batch, name)))
            self.set_cell(row, len(COLUMN_TITLES) - 1, format_duration(batch.duration_s))


class EvaluationView(QStackedWidget):
    def __init__(self) -> None:
        super().__init__()
        self.histogram = Histogram("evaluation.histogram")
        self.batches = BatchesTable()
        self._title = muted_label("Returns")
        self._empty = EmptyState("No batch has finished yet")
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

    def show_evaluation(self, evaluation: Evaluation | None, colour: QColor, has_ended: bool) -> None:
        """None: it has played no whole batch."""
        self.setCurrentIndex(0 if evaluation is None else 1)
        if evaluation is None:
            self._empty.set_text("No batch was finished" if has_ended else "No batch has finished yet")
            return
        batches = evaluation.summary.batches
        of = "1 batch" if len(batches) == 1 else f"{len(batches):,} batches"
        self._title.setText(f"Returns of {sum(batch.episodes for batch in batches):,} episodes in {of}")
        self.histogram.show_values(evaluation_returns(evaluation), colour)
        self.batches.fill(batches)
