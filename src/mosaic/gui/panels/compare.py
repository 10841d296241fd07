"""Any set of runs together: their curves, how good each group of them is and how sure that is, and what differs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QColor, QHideEvent, QShowEvent
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QSplitter,
    QStackedWidget,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from mosaic.gui import theme
from mosaic.gui.models.curve import Curve
from mosaic.gui.models.feed import X_KINDS, Feed, TakenPoints, take
from mosaic.gui.models.series import RETURN_TAG, Series
from mosaic.gui.views.chart import Chart
from mosaic.gui.views.comparison_tables import BetterTable, ResultsTable, SettingsTable
from mosaic.gui.views.empty import Empty
from mosaic.gui.views.made import accent_button, named
from mosaic.gui.views.run_chips import RunChips
from mosaic.gui.views.smoothing import Smoothing
from mosaic.gui.views.video_pair import VideoPair
from mosaic.gui.views.words import run_title
from mosaic.gui.workbench import Json, Workbench
from mosaic.plugins.settings import compared_settings
from mosaic.statistics.comparison import ALONE, Comparison, Entry, best_key, compare, differing, keys, without_common

MOST_RUNS = 50
"""Fewer than the workbench keeps the points of."""
REFRESH_MS = 1000
LOADING = "Loading the points…"
DEFAULT_WEIGHT = 0.9
KEY_TITLES = {ALONE: "each run", "algo": "algorithm", "env_id": "environment"}


class Compare(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._series: dict[str, Series] = {}
        """The runs of the comparison, in order, with their points."""
        self._settings: dict[str, Json] = {}
        self._is_due = False
        self._is_busy = False
        self._build()
        self._timer = QTimer(self, singleShot=True, interval=REFRESH_MS)
        self._timer.timeout.connect(self._refresh_if_due)
        workbench.compare_wanted.connect(self._wanted)
        workbench.theme_changed.connect(self._repaint_theme)
        workbench.runs.reset.connect(self._restore)
        workbench.runs.removed.connect(self._forget)
        workbench.marked.connect(lambda _: self._offer())
        workbench.selected.connect(lambda _: self._offer())
        self._list()

    # --- building

    def _build(self) -> None:
        self.add = named(QPushButton("Add chosen runs"), "compare.add")
        self.add.setToolTip("Put the runs that are marked in the list into the comparison")
        self.add.clicked.connect(lambda _: self.add_chosen())
        self.clear = named(QPushButton("Clear"), "compare.clear")
        self.clear.clicked.connect(lambda _: self.show_runs([]))
        self.chips = RunChips("compare.runs")
        self.chips.removed.connect(lambda run_id: self.show_runs([one for one in self._series if one != run_id]))
        heading = QLabel("Compare")
        heading.setFont(theme.heading())
        head = QHBoxLayout()
        head.setSpacing(theme.GAP)
        head.addWidget(heading)
        head.addStretch(1)
        head.addWidget(self.add)
        head.addWidget(self.clear)
        self.chart = Chart("", "compare.chart", has_legend=True)
        self.chart.set_hint(LOADING)
        self.tables = named(QTabWidget(), "compare.tables")
        self.tables.setDocumentMode(True)
        self.results = ResultsTable()
        self.better = BetterTable()
        self.diff = SettingsTable()
        self.tables.addTab(self.results, "Results")
        self.tables.addTab(self.better, "Probability of improvement")
        self.tables.addTab(self.diff, "Differing settings")
        self.videos = VideoPair(self._workbench)
        self.tables.addTab(self.videos, "Videos")
        self._splitter = QSplitter(Qt.Orientation.Vertical)
        self._splitter.addWidget(self.chart)
        self._splitter.addWidget(self.tables)
        self._splitter.setSizes([600, 300])
        self._splitter.setStretchFactor(0, 2)
        self._splitter.setStretchFactor(1, 1)
        self.chart.setMinimumHeight(160)
        self.tables.setMinimumHeight(110)
        self._splitter.setChildrenCollapsible(False)
        inside = QWidget()
        column = QVBoxLayout(inside)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.GAP)
        column.addWidget(self.chips)
        column.addLayout(self._tools())
        column.addWidget(self._splitter, 1)
        button = accent_button("Compare chosen runs", "compare.start")
        button.clicked.connect(lambda _: self.add_chosen())
        self._start = button
        self._stack = QStackedWidget()
        self._stack.addWidget(
            Empty(
                "No runs to compare yet",
                "Mark some in the list of runs (Ctrl or Shift and a click marks several), then put them together here.",
                button,
            )
        )
        self._stack.addWidget(inside)
        outside = QVBoxLayout(self)
        outside.setContentsMargins(theme.MARGIN, theme.GAP, theme.MARGIN, theme.GAP)
        outside.setSpacing(theme.GAP)
        outside.addLayout(head)
        outside.addWidget(self._stack, 1)

    def _tools(self) -> QHBoxLayout:
        self.tag = self._choice("compare.tag", 200, self._changed)
        self.key = self._choice("compare.key", 140, self._changed)
        self.key.setToolTip(
            "Runs with the same value of this setting are drawn as one: their mean and its 95 % interval"
        )
        self.x_axis = self._choice("compare.x", 0, self._changed)
        for kind in ("step", "relative", "episode"):
            self.x_axis.addItem(X_KINDS[kind], kind)
        weight = self._workbench.settings.get("compare_smoothing", DEFAULT_WEIGHT)
        self.smoothing = Smoothing("compare.smoothing", weight)
        self.smoothing.changed.connect(self._smooth)
        self.log = named(QCheckBox("Log y"), "compare.log")
        self.log.toggled.connect(self.chart.set_log)
        row = QHBoxLayout()
        row.setSpacing(theme.GAP)
        for label, choice in (("Tag", self.tag), ("Group by", self.key), ("", self.x_axis)):
            if label:
                row.addWidget(QLabel(label))
            row.addWidget(choice)
            row.addSpacing(theme.GAP)
        row.addWidget(self.smoothing)
        row.addSpacing(theme.GAP)
        row.addWidget(self.log)
        row.addStretch(1)
        return row

    def _choice(self, name: str, width: int, call: Callable[[], None]) -> QComboBox:
        choice = named(QComboBox(), name)
        choice.setMinimumWidth(width)
        # What the user chose stays chosen as entries come and go; what we chose for them may change.
        choice.activated.connect(lambda _: choice.setProperty("chosen", choice.currentData()))
        choice.currentIndexChanged.connect(lambda _: call())
        return choice

    # --- which runs

    def _wanted(self, run_ids: list[str]) -> None:
        self.show_runs(run_ids)
        self._workbench.page_wanted.emit("compare")

    def show_runs(self, run_ids: list[str]) -> None:
        """Compares these, in this order."""
        if len(run_ids) > MOST_RUNS:
            self._workbench.say(
                f"{len(run_ids)} runs are too many to compare; the first {MOST_RUNS} are shown.", "warning"
            )
            run_ids = run_ids[:MOST_RUNS]
        for run_id in set(self._series) - set(run_ids):
            self._series[run_id].loaded.disconnect(self._points_came)
            self._series[run_id].grown.disconnect(self._points_came)
        kept, self._series = self._series, {}
        for run_id in run_ids:
            self._series[run_id] = kept.get(run_id) or self._follow(run_id)
        missing = [run_id for run_id in run_ids if run_id not in self._settings]
        if missing:
            self._workbench.ask(partial(_read_settings, missing), self._take_settings, self)
        self._workbench.settings.put_here("compare", run_ids)
        self._list()

    def _follow(self, run_id: str) -> Series:
        series = self._workbench.series(run_id)
        series.loaded.connect(self._points_came)
        series.grown.connect(self._points_came)
        return series

    def runs(self) -> list[str]:
        return list(self._series)

    def add_chosen(self) -> None:
        """Also the button's: the marked runs, else the one that is looked at."""
        wanted = [view["run_id"] for view in self._workbench.chosen()]
        self.show_runs(self.runs() + [run_id for run_id in wanted if run_id not in self._series])

    def _offer(self) -> None:
        chosen = {view["run_id"] for view in self._workbench.chosen()}
        self.add.setEnabled(bool(chosen - set(self._series)))
        self._start.setEnabled(bool(chosen))

    def _restore(self) -> None:
        """The list of runs has come: what was compared last is compared again."""
        known = self._workbench.settings.get_here("compare", [])
        self.show_runs([run_id for run_id in known if self._workbench.runs.get(run_id)])

    def _forget(self, run_ids: set[str]) -> None:
        if run_ids.intersection(self._series):
            self.show_runs([run_id for run_id in self._series if run_id not in run_ids])

    def _take_settings(self, found: dict[str, Json]) -> None:
        self._settings |= found
        self._list_keys()
        self._fill_diff()
        self._changed()

    def _views(self) -> list[Json]:
        return [self._workbench.runs.get(run_id) or {"run_id": run_id} for run_id in self._series]

    def _list(self) -> None:
        self._stack.setCurrentIndex(1 if self._series else 0)
        self.clear.setEnabled(bool(self._series))
        self.chips.show_runs(self._views())
        self.videos.show_runs(self._views())
        self._offer()
        self._list_tags()
        self._list_keys()
        self._fill_diff()
        self._changed()

    def _list_tags(self) -> None:
        tags = sorted({tag for series in self._series.values() for tag in series.tags}, key=str.lower)
        _relist(self.tag, [(tag, tag) for tag in tags], RETURN_TAG)

    def _list_keys(self) -> None:
        settings = [self._settings_of(run_id) for run_id in self._series]
        choices = [ALONE, *keys(settings)]
        _relist(self.key, [(KEY_TITLES.get(key, key), key) for key in choices], best_key(settings))

    def _settings_of(self, run_id: str) -> Json:
        view = self._workbench.runs.get(run_id) or {}
        known = {key: view[key] for key in ("algo", "env_id", "seed", "group") if view.get(key) is not None}
        return known | self._settings.get(run_id, {})

    def _fill_diff(self) -> None:
        self.diff.fill(differing([self._settings_of(run_id) for run_id in self._series]), self._views())

    # --- comparing

    def _points_came(self, *_: Any) -> None:
        known = {self.tag.itemData(number) for number in range(self.tag.count())}
        if any(tag not in known for series in self._series.values() for tag in series.tags):
            self._list_tags()
        self._is_due = True
        if self.isVisible() and not self._timer.isActive():
            self._timer.start(REFRESH_MS if self.chart.curves() else 0)

    def _smooth(self, weight: float) -> None:
        self._workbench.settings.put("compare_smoothing", weight)
        self._changed()

    def _changed(self) -> None:
        self._is_due = True
        if self.isVisible():
            self._timer.start(0)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._timer.start(0)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._timer.stop()

    def _refresh_if_due(self) -> None:
        if not self._is_due or self._is_busy or not self._series:
            return
        self._is_due, self._is_busy = False, True
        tag, key, weight = self.tag.currentData() or RETURN_TAG, self.key.currentData() or ALONE, self.smoothing.weight
        axis = str(self.x_axis.currentData())
        taken = [
            (self._workbench.runs.get(run_id) or {"run_id": run_id}, self._settings_of(run_id), take(series))
            for run_id, series in self._series.items()
        ]

        def work() -> Comparison:
            return compare([_entry(*one, str(tag), axis) for one in taken], key, weight)

        self._workbench.bridge.work(work, partial(self._show, str(tag), key), self._failed, self)

    def _failed(self, error: Exception) -> None:
        self._is_busy = False
        self._workbench.tell_error(error)

    def _show(self, tag: str, key: str, found: Comparison) -> None:
        is_loading = not all(series.is_loaded for series in self._series.values())
        self.chart.set_hint(LOADING if is_loading else "None of these runs has points of this tag")
        self._is_busy = False
        self.chart.set_title(tag)
        self.chart.set_x_kind(str(self.x_axis.currentData()))
        colours = _colours(found, key)
        short = without_common([group.name for group in found.groups])
        for name in set(self.chart.curves()) - set(colours):
            self.chart.remove_curve(name)
        for group in found.groups:
            colour, is_dashed = colours[group.name]
            label = short[group.name] if key == ALONE else f"{group.name} ({counted(len(group.run_ids))})"
            curve = self.chart.put_curve(group.name, label, colour, is_dashed)
            curve.replace(found.grid, group.curve.mean, group.curve.low, group.curve.high)
        self.chart.order_curves([group.name for group in found.groups])
        self.chart.touch()
        self.results.fill(found, {name: colour for name, (colour, _) in colours.items()})
        self.better.fill(found)
        if self._is_due:
            self._timer.start(REFRESH_MS)

    def _repaint_theme(self) -> None:
        self.chart.repaint_theme()
        self.chips.repaint_theme()


def _entry(view: Json, settings: Json, points: TakenPoints, tag: str, axis: str) -> Entry:
    curve = Curve()
    Feed(points, tag, curve).pull(axis)
    returns = points.tags.get(RETURN_TAG)
    values = returns.value if returns is not None else np.empty(0)
    return Entry(view["run_id"], run_title(view), settings, curve.x, curve.y, values)


def _read_settings(run_ids: list[str], trainer: Any) -> dict[str, Json]:
    return {run_id: compared_settings({}, trainer.config(run_id)) for run_id in run_ids}


def counted(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


def _relist(choice: QComboBox, rows: list[tuple[str, str]], default: str) -> None:
    """Other entries, with the chosen one kept where it is still there."""
    if [(choice.itemText(n), choice.itemData(n)) for n in range(choice.count())] == rows:
        return
    chosen = choice.property("chosen")
    choice.blockSignals(True)
    choice.clear()
    for title, value in rows:
        choice.addItem(title, value)
    values = [value for _, value in rows]
    wanted = chosen if chosen in values else default
    choice.setCurrentIndex(values.index(wanted) if wanted in values else 0)
    choice.blockSignals(False)


def _colours(found: Comparison, key: str) -> dict[str, tuple[QColor, bool]]:
    """A run keeps its own colour, dashed where another has it already; groups take the cycle's in turn."""
    colours: dict[str, tuple[QColor, bool]] = {}
    names = sorted(group.name for group in found.groups)
    for group in found.groups:
        if key == ALONE:
            colour = theme.run_colour(group.run_ids[0])
        else:
            colour = QColor(theme.RUN_COLOURS[names.index(group.name) % len(theme.RUN_COLOURS)])
        colours[group.name] = colour, colour in [other for other, _ in colours.values()]
    return colours
