"""Groups of runs: how far each is, and its comparison by setting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from PySide6.QtCore import QObject, QTimer, Signal

from mosaic.base.comparison import (
    NO_GROUPING,
    SETTING_KEY,
    ComparedRun,
    Comparison,
    RunGroup,
    Settings,
    compare,
    cut_at_common_step,
    describe_progress,
    describe_seeds,
    describe_tails,
    format_value,
    group_entries,
    run_progress,
    shorten_titles,
)
from mosaic.base.formatting import count_noun, run_title
from mosaic.contracts.errors import UnknownName
from mosaic.contracts.names import RETURN_TAG
from mosaic.contracts.states import STOPPABLE_STAGES, Stage
from mosaic.contracts.views import MetricsCursor, RunView
from mosaic.features.experiments.core import (
    SettingRow,
    count_statuses,
    environment_label,
    format_counts,
    is_done,
    rows_by_setting,
)
from mosaic.features.experiments.core_comparison import ComparisonResult, compare_entries, run_titles, suggest_key
from mosaic.trainer.client.run_lookup import split_superseded
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.bridge import Bridge
from mosaic.window.curves import Floats, GrowingPoints, x_values
from mosaic.window.tables import MAX_DISTINCT

Points = Mapping[str, tuple[Floats, Floats]]
"""By run: steps and values of one metric."""


@dataclass(frozen=True)
class GroupState:
    """The runs of a group, newest first."""

    name: str
    views: Sequence[RunView]
    """Those that count: later attempts and later settings of an experiment replace earlier ones."""
    superseded: Sequence[RunView] = ()
    """Those that were replaced."""

    @property
    def line(self) -> str:
        """`18 of 30 done, 2 failed, 4 running, 6 queued`."""
        return format_counts([view.status for view in self.views])

    @property
    def counts(self) -> dict[str, int]:
        return count_statuses([view.status for view in self.views])

    @property
    def ended_share(self) -> float:
        return sum(view.stage is Stage.FINISHED for view in self.views) / max(1, len(self.views))

    @property
    def is_active(self) -> bool:
        return any(view.is_active for view in self.views)

    @property
    def is_archived(self) -> bool:
        return all(view.is_archived for view in (*self.views, *self.superseded))

    @property
    def stoppable(self) -> list[RunView]:
        return [view for view in self.views if view.stage in STOPPABLE_STAGES]

    @property
    def retryable(self) -> list[RunView]:
        """Runs of an experiment that have ended without success; they can be submitted as a further attempt."""
        ended = [view for view in self.views if view.stage is Stage.FINISHED and not is_done(view)]
        return [view for view in ended if view.experiment is not None]

    @property
    def archivable(self) -> list[RunView]:
        """Runs that have ended and are not archived, with those that were replaced."""
        every = (*self.views, *self.superseded)
        return [view for view in every if view.stage is Stage.FINISHED and not view.is_archived]


def group_state(name: str, views: Iterable[RunView]) -> GroupState:
    own = sorted((view for view in views if view.group == name), key=lambda view: view.age_key, reverse=True)
    return GroupState(name, *split_superseded(own))


def list_groups(views: Iterable[RunView], with_archived: bool = False) -> list[GroupState]:
    """Return all groups, the one with the newest run first."""
    members: dict[str, list[RunView]] = {}
    for view in sorted(views, key=lambda view: view.age_key, reverse=True):
        if view.group:
            members.setdefault(view.group, []).append(view)
    groups = [GroupState(name, *split_superseded(own)) for name, own in members.items()]
    return [group for group in groups if with_archived or not group.is_archived]


# --- settings


def label_runs(views: Sequence[RunView], settings: Mapping[str, Settings]) -> dict[str, str]:
    """Name the setting of each run: as its experiment does, otherwise by what separates the runs.

    `settings`: those of runs that are not part of an experiment, by run.
    """
    labels = {view.run_id: view.experiment.setting for view in views if view.experiment is not None}
    others = [view for view in views if view.experiment is None]
    known = [settings.get(view.run_id, {}) for view in others]
    key = suggest_key(known)
    if key == NO_GROUPING:
        return labels | dict(zip((view.run_id for view in others), run_titles(others), strict=True))
    for view, own in zip(others, known, strict=True):
        value = format_value(own.get(key) or view.algo or view.worker)
        labels[view.run_id] = value if key == "algo" else f"{key} {value}"
    return labels


def setting_rows(views: Sequence[RunView], labels: Mapping[str, str]) -> list[SettingRow]:
    """Return the rows of the table: by environment, then in the order in which they were submitted."""
    rows = rows_by_setting(views, lambda view: labels.get(view.run_id, ""))
    environments = list(dict.fromkeys(row.environment for row in rows))
    return sorted(rows, key=lambda row: environments.index(row.environment))


def compare_group(
    views: Sequence[RunView],
    labels: Mapping[str, str],
    points: Points,
    tag: str = RETURN_TAG,
    smoothing: float = 0.0,
    is_brief: bool = True,
) -> ComparisonResult | None:
    """Compare the runs of a group by setting; None where none has a point yet."""
    nothing = np.empty(0)
    entries = []
    for view in sorted(views, key=lambda view: view.age_key):
        steps, values = points.get(view.run_id, (nothing, nothing))
        settings = {SETTING_KEY: labels.get(view.run_id, ""), "env_id": view.env_id, "algo": view.algo}
        entries.append(
            ComparedRun(
                view.run_id,
                run_title(view),
                settings,
                steps,
                values,
                values,
                environment_label(view),
                run_progress(view),
            )
        )
    if not any(len(entry.x) for entry in entries):
        return None
    return compare_entries(entries, SETTING_KEY, tag, smoothing=smoothing, is_brief=is_brief)


# --- The points of one metric of all runs of a group, read where they have changed.


READ_INTERVAL_MS = 1000
MAX_RUNS_PER_CALL = 40
"""So that a large group appears piece by piece."""


class _RunPoints:
    def __init__(self) -> None:
        self.cursor = MetricsCursor()
        self.points = GrowingPoints()


Reading = tuple[str, MetricsCursor, bool, list[tuple[list[int], list[float], list[float]]]]
"""A run, its next cursor, whether its points are all of them, and their steps, times and values in parts."""


def read_group(tag: str, cursors: Mapping[str, MetricsCursor], trainer: TrainerClient) -> list[Reading]:
    """Read what runs have after their cursors. A run that was deleted meanwhile is left out."""
    readings: list[Reading] = []
    for run_id, cursor in cursors.items():
        try:
            update = trainer.metrics_after(run_id, cursor, [tag])
        except UnknownName:
            continue
        parts = [(list(one.steps), list(one.at), list(one.values)) for one in update.series]
        readings.append((run_id, update.cursor, update.is_reload, parts))
    return readings


class GroupPoints(QObject):
    changed = Signal()

    def __init__(self, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.tag = RETURN_TAG
        self._bridge = bridge
        self._runs: dict[str, _RunPoints] = {}
        self._due: set[str] = set()
        self._is_following = False
        self._is_reading = False
        self._pause = QTimer(self, singleShot=True, interval=READ_INTERVAL_MS)
        self._pause.timeout.connect(self._read_if_due)
        bridge.points_changed.connect(self._on_points_changed)
        bridge.connected.connect(lambda _: self._on_points_changed(set(self._runs)))

    @property
    def is_loaded(self) -> bool:
        """Whether every run was read once."""
        return all(run.cursor != MetricsCursor() for run in self._runs.values())

    def show_runs(self, run_ids: Sequence[str], tag: str) -> None:
        """Hold the points of these runs; those that are known are kept."""
        known = self._runs if tag == self.tag else {}
        if tag == self.tag and set(run_ids) == set(known):
            return
        self.tag = tag
        self._due = (self._due & set(known)) | (set(run_ids) - set(known))
        self._runs = {run_id: known.get(run_id) or _RunPoints() for run_id in run_ids}
        self._due &= set(self._runs)
        self._read_if_due()

    def follow(self, is_following: bool) -> None:
        """Read new points, or stop: nobody looks at them."""
        self._is_following = is_following
        self._read_if_due()

    def snapshot(self) -> Points:
        """Return the points as they are now, for another thread."""
        copies = {run_id: run.points.snapshot() for run_id, run in self._runs.items()}
        return {run_id: (points.step, points.value) for run_id, points in copies.items() if len(points)}

    def _on_points_changed(self, run_ids: set[str]) -> None:
        self._due |= run_ids.intersection(self._runs)
        self._read_if_due()

    def _read_if_due(self) -> None:
        if not self._is_following or not self._due or self._is_reading or self._pause.isActive():
            return
        self._is_reading = True
        chosen = sorted(self._due)[:MAX_RUNS_PER_CALL]
        self._due -= set(chosen)
        cursors = {run_id: self._runs[run_id].cursor for run_id in chosen}
        self._bridge.ask(
            partial(read_group, self.tag, cursors), partial(self._on_read, self.tag), self._on_failed, self
        )

    def _on_read(self, tag: str, readings: list[Reading]) -> None:
        self._is_reading = False
        has_changed = False
        for run_id, cursor, is_reload, parts in readings if tag == self.tag else ():
            if (run := self._runs.get(run_id)) is None:
                continue
            run.cursor = cursor
            if is_reload:
                run.points = GrowingPoints()
            for part in parts:
                run.points.extend(*(np.array(column, np.float64) for column in part))
            has_changed = has_changed or is_reload or bool(parts)
        # Runs that were never read are read at once: the page fills as fast as the daemon answers.
        if any(self._runs[run_id].cursor == MetricsCursor() for run_id in self._due):
            self._read_if_due()
        else:
            self._pause.start()
        if has_changed:
            self.changed.emit()

    def _on_failed(self, _: Exception) -> None:
        """Wait until the daemon reports points, or is connected again: both repeat what was not read."""
        self._is_reading = False
        self._due |= {run_id for run_id, run in self._runs.items() if run.cursor == MetricsCursor()}


# --- The comparison of the compare page: what is compared, and what comes out.


@dataclass(frozen=True)
class ComparisonChoice:
    """What the user has chosen."""

    tag: str = RETURN_TAG
    key: str = NO_GROUPING
    x_kind: str = "step"
    smoothing: float = 0.0
    is_cut: bool = False
    """Whether points after the common step are left out."""


class RunSnapshot(NamedTuple):
    view: RunView
    settings: Settings
    tags: Mapping[str, GrowingPoints]


@dataclass(frozen=True)
class ComparedRuns:
    choice: ComparisonChoice
    comparison: Comparison
    entries: Sequence[ComparedRun]
    common_steps: Mapping[str, float]

    @property
    def named_groups(self) -> list[RunGroup]:
        """The best ones, as many as can be told apart in a chart."""
        return self.comparison.groups[:MAX_DISTINCT]

    @property
    def other_groups(self) -> list[RunGroup]:
        return self.comparison.groups[MAX_DISTINCT:]

    def labels(self) -> dict[str, str]:
        """Of the groups, by name."""
        if self.choice.key == NO_GROUPING:
            short = shorten_titles({entry.run_id: entry.title for entry in self.entries})
            return {entry.title: short[entry.run_id] for entry in self.entries}
        return {
            group.name: f"{group.name} ({count_noun(len(group.run_ids), 'run')})" for group in self.comparison.groups
        }

    def notes(self, format_x: Callable[[float], str]) -> list[str]:
        """Sentences about unfinished runs and what the chart leaves out."""
        notes = describe_progress(self.entries, self.common_steps)
        if tails := describe_tails(self.comparison, format_x):
            notes.append(f"{tails} Beyond that, the dotted line is the mean of the runs that are left.")
        if others := len(self.other_groups):
            what = "runs" if self.choice.key == NO_GROUPING else "groups"
            notes.append(f"The best {MAX_DISTINCT} of {MAX_DISTINCT + others:,} {what} have colors; the table has all.")
        return notes + describe_seeds(self.entries, self.comparison.groups)


def needed_tags(choice: ComparisonChoice, tags: Mapping[str, GrowingPoints]) -> dict[str, GrowingPoints]:
    """Return copies of the points that a comparison reads, for another thread."""
    # Time is relative to the first point of all tags.
    needed = tags if choice.x_kind == "relative" else tags.keys() & {choice.tag, RETURN_TAG}
    return {tag: tags[tag].snapshot() for tag in needed}


def compare_snapshots(snapshots: Sequence[RunSnapshot], choice: ComparisonChoice) -> ComparedRuns:
    entries = [_comparison_entry(snapshot, choice) for snapshot in snapshots]
    common: dict[str, float] = {}
    if choice.is_cut:
        entries, common = cut_at_common_step(entries)
    has_probabilities = len(group_entries(entries, choice.key)) <= MAX_DISTINCT
    compared = compare(entries, choice.key, choice.smoothing, has_probabilities=has_probabilities)
    return ComparedRuns(choice, compared, entries, common)


def _comparison_entry(snapshot: RunSnapshot, choice: ComparisonChoice) -> ComparedRun:
    view, settings, tags = snapshot
    nothing = np.empty(0)
    x = y = steps = nothing
    if choice.tag in tags:
        x = x_values(tags, choice.tag, choice.x_kind)
        order = np.argsort(x, kind="stable")
        x, y, steps = x[order], tags[choice.tag].value[order], tags[choice.tag].step[order]
    returns = tags.get(RETURN_TAG)
    return ComparedRun(
        view.run_id,
        run_title(view),
        settings,
        x,
        y,
        nothing if returns is None else returns.value,
        environment_label(view),
        run_progress(view),
        steps,
        nothing if returns is None else returns.step,
    )
