"""The leaderboard: all evaluated policies of the workspace, ranked by a confidence bound of their mean return."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyqtgraph as pg
from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QColor, QHideEvent, QKeyEvent, QShowEvent
from PySide6.QtWidgets import QStackedWidget, QWidget

from mosaic.base.curves import ConfidenceInterval, mean_with_interval
from mosaic.base.formatting import (
    count_noun,
    describe_acting,
    describe_unfinished_training,
    format_ago,
    format_duration,
    format_si_number,
    format_timestamp,
    short_id,
)
from mosaic.contracts.views import Evaluation, EvaluationBatch, RunView
from mosaic.features.evaluate.core import LeaderboardEntry, evaluation_returns, rank_policies
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.curves import Floats
from mosaic.window.plot import Plot
from mosaic.window.runs import Evaluations, empty_text
from mosaic.window.tables import Cell, ReadOnlyTable, format_interval
from mosaic.window.widgets import EmptyState, column, muted_label
from mosaic.window.workbench import Workbench

LEADERBOARD_TITLES = ("Rank", "Policy", "Environment", "Step", "Episodes", "Mean [95 %]", "IQM", "Evaluated")
ALL_ENVIRONMENTS = "All environments"
RANKING_TEXT = (
    "Ranked for each environment by the lower end of the 95 % interval of the mean return: a policy that was tried "
    "more often is surer. The newest evaluation of a checkpoint counts, with all its batches."
)


def _cells(place: LeaderboardEntry) -> list[str | Cell]:
    run_id = place.trained.run_id if place.trained else place.run_id
    return [
        str(place.rank),
        Cell(policy_label(place), place.policy_path, ui.dot_icon(theme.run_color(run_id))),
        place.env_id,
        Cell(format_si_number(place.step), "" if place.step is None else f"{place.step:,}"),
        format_si_number(place.episodes),
        format_interval(place.mean),
        format_si_number(place.iqm),
        Cell(format_ago(place.evaluated_at), format_timestamp(place.evaluated_at)),
    ]


def policy_label(place: LeaderboardEntry) -> str:
    """`ppo · seed 1 · ABC123`; a policy that belongs to no run here is named by its file."""
    parts = [place.algo if place.is_deterministic else f"{place.algo} (stochastic)"]
    if place.trained is None:
        parts.append(place.policy_label)
    else:
        seed = place.trained.seed
        parts += ([] if seed is None else [f"seed {seed}"]) + [short_id(place.trained.run_id)]
    return " · ".join(parts)


class LeaderboardPage(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._places: list[LeaderboardEntry] = []
        self._visible_places: list[LeaderboardEntry] = []
        self._evaluations = Evaluations(workbench.bridge, self)
        self._evaluations.changed.connect(self._rank_evaluations)
        self.env_choice = ui.combo_box("leaderboard.env", [(ALL_ENVIRONMENTS, "")])
        self.env_choice.setMinimumWidth(200)
        self.env_choice.currentIndexChanged.connect(lambda _: self._fill())
        self.evaluation_button = ui.button(
            "Show evaluation",
            "leaderboard.evaluation",
            lambda: self._open_run(is_training=False),
            "The run that evaluated this policy (Return, or a double click)",
        )
        self.training_button = ui.button(
            "Show training",
            "leaderboard.trained",
            lambda: self._open_run(is_training=True),
            "The run that trained this policy",
        )
        head = ui.row(
            ui.heading_label("Leaderboard"),
            theme.GAP,
            self.env_choice,
            ui.Stretch(),
            self.evaluation_button,
            self.training_button,
        )
        self.table = ReadOnlyTable("leaderboard.places", text_columns=(1, 2))
        self.table.setSelectionBehavior(ReadOnlyTable.SelectionBehavior.SelectRows)
        self.table.setSelectionMode(ReadOnlyTable.SelectionMode.SingleSelection)
        self.table.itemSelectionChanged.connect(self._update_buttons)
        self.table.doubleClicked.connect(lambda _: self._open_run(is_training=False))
        start = ui.accent_button(
            "Evaluate a policy", "leaderboard.start", lambda: workbench.page_requested.emit("policy")
        )
        self._stack = ui.stack(
            ui.EmptyState("No policy has been evaluated yet", "Evaluate some, and they are ranked here.", start),
            ui.widget_column(ui.muted_label(RANKING_TEXT), (self.table, 1)),
        )
        ui.column(head, (self._stack, 1), parent=self, margins=ui.PAGE_MARGINS)
        self._fill()
        workbench.bridge.connected.connect(lambda _: self._follow_evaluations())

    # --- what there is

    def _follow_evaluations(self) -> None:
        if self.isVisible():
            self._evaluations.watch_run("")

    def _rank_evaluations(self) -> None:
        evaluations = self._evaluations.evaluations
        self._workbench.bridge.run_in_background(
            lambda: rank_policies(evaluations), self._show_places, self._workbench.show_error, self
        )

    def _show_places(self, places: list[LeaderboardEntry]) -> None:
        self._places = places
        envs = dict.fromkeys(place.env_id for place in places)
        selected = self.env_choice.currentData()
        rows = [(ALL_ENVIRONMENTS, ""), *((env, env) for env in envs)]
        ui.set_choices(self.env_choice, rows, selected if selected in envs else "")
        self._fill()

    def _fill(self) -> None:
        selected = self._selected_place()
        env_id = self.env_choice.currentData()
        self._visible_places = [place for place in self._places if env_id in ("", place.env_id)]
        self._stack.setCurrentIndex(1 if self._places else 0)
        for widget in (self.env_choice, self.evaluation_button, self.training_button):
            widget.setVisible(bool(self._places))
        self.table.show_rows(LEADERBOARD_TITLES, [_cells(place) for place in self._visible_places])
        if selected is not None:
            run_ids = [place.run_id for place in self._visible_places]
            if selected.run_id in run_ids:
                self.table.selectRow(run_ids.index(selected.run_id))
            else:
                self.table.clearSelection()
        self._update_buttons()

    # --- actions

    def _selected_place(self) -> LeaderboardEntry | None:
        rows = self.table.selectionModel().selectedRows()
        return self._visible_places[rows[0].row()] if rows and rows[0].row() < len(self._visible_places) else None

    def _update_buttons(self) -> None:
        place = self._selected_place()
        self.evaluation_button.setEnabled(place is not None)
        self.training_button.setEnabled(place is not None and place.trained is not None)

    def _open_run(self, is_training: bool) -> None:
        place = self._selected_place()
        if place is not None:
            run_id = place.trained.run_id if is_training and place.trained else place.run_id
            self._workbench.select(run_id, "overview")

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._open_run(is_training=False)
        else:
            super().keyPressEvent(event)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._follow_evaluations()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._evaluations.suspend()


# --- An evaluation: a histogram of its returns, and its batches one by one.


MAX_BINS = 30
MAX_ROWS = 200
BATCH_TITLES = ("Batch", "Episodes", "Mean [95 %]", "IQM", "Lowest", "Highest", "Took")


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
        self.batches.show_rows(BATCH_TITLES, [batch_cells(batch) for batch in batches[: -MAX_ROWS - 1 : -1]])
