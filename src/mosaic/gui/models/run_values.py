"""Hyper-parameters and last values of metrics for the list of runs: read for the rows that are visible, in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from mosaic.client import TrainerClient
from mosaic.contracts.errors import MosaicError
from mosaic.formatting import format_number
from mosaic.gui.bridge import Bridge
from mosaic.gui.models.run_columns import METRIC_PREFIX, SETTING_PREFIX, Column
from mosaic.gui.models.runs_model import RunsModel
from mosaic.statistics.comparison import format_value
from mosaic.submission.run_payloads import comparison_settings

MAX_RUNS_PER_CALL = 40
REFRESH_INTERVAL_MS = 1000
"""Between two readings of metrics that still change."""
FIXED_SETTINGS = ("algo", "env_id", "seed", "group", "run_name", "tags", "notes")
"""Settings with a column of their own."""


@dataclass(frozen=True)
class Reading:
    """What was read of one run; None of what was not asked for."""

    run_id: str
    settings: Mapping[str, Any] | None
    metrics: Mapping[str, float] | None


@dataclass
class _KnownValues:
    settings: Mapping[str, Any] | None = None
    total_timesteps: int | None = None
    """With which the settings were read: an extended run has others."""
    metrics: dict[str, float] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    """The tags that were read."""


def read_values(
    trainer: TrainerClient, run_ids: Sequence[str], without_settings: set[str], tags: Sequence[str]
) -> list[Reading]:
    """Read what each run has. Nothing is known of one that cannot be read, or was deleted meanwhile."""
    readings = []
    for run_id in run_ids:
        settings: dict[str, Any] | None = None
        metrics: dict[str, float] | None = None
        try:
            if run_id not in without_settings:
                settings = comparison_settings(None, trainer.config(run_id))
            if tags:
                last = trainer.metrics(run_id, tags, last_only=True)
                metrics = {series.tag: series.values[-1] for series in last if series.values}
        except MosaicError:
            settings, metrics = settings or {}, metrics or {}
        readings.append(Reading(run_id, settings, metrics))
    return readings


def list_value_columns(trainer: TrainerClient, examples: Sequence[str]) -> list[str]:
    """Return the ids of all columns that these runs have values for: first settings, then metrics."""
    settings: set[str] = set()
    tags: set[str] = set()
    for reading in read_values(trainer, examples, set(), ()):
        settings.update(reading.settings or ())
        try:
            tags.update(series.tag for series in trainer.metrics(reading.run_id, (), last_only=True))
        except MosaicError:
            continue
    known = [name for name in sorted(settings) if name not in FIXED_SETTINGS and "." not in name]
    return [*(SETTING_PREFIX + name for name in known), *(METRIC_PREFIX + tag for tag in sorted(tags))]


def sort_value(value: Any) -> Any:
    """Numbers before texts; None where there is nothing to sort by."""
    if value is None:
        return None
    is_number = isinstance(value, int | float)
    return (0, value, "") if is_number else (1, 0, format_value(value))


class RunValues(QObject):
    changed = Signal(set)
    """The runs of which something was read."""

    def __init__(self, bridge: Bridge, runs: RunsModel, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._runs = runs
        self._known: dict[str, _KnownValues] = {}
        self._needs_settings = False
        self._tags: tuple[str, ...] = ()
        self._wanted: list[str] = []
        self._stale: set[str] = set()
        """Runs with newer points than those that were read."""
        self._is_reading = False
        self._pause = QTimer(self, singleShot=True, interval=REFRESH_INTERVAL_MS)
        self._pause.timeout.connect(self._read_again)
        bridge.points_changed.connect(self._on_points_changed)
        bridge.connected.connect(lambda _: self._read_next())
        runs.removed.connect(self._forget)

    def create_columns(self, column_ids: Iterable[str]) -> list[Column]:
        """Create the columns of these hyper-parameters and metrics, and read their values from now on."""
        columns = [self._create_column(column_id) for column_id in dict.fromkeys(column_ids)]
        self._needs_settings = any(column.id.startswith(SETTING_PREFIX) for column in columns)
        names = [column.id for column in columns if column.id.startswith(METRIC_PREFIX)]
        self._tags = tuple(name.removeprefix(METRIC_PREFIX) for name in names)
        self._read_next()
        return columns

    def _create_column(self, column_id: str) -> Column:
        if column_id.startswith(METRIC_PREFIX):
            tag = column_id.removeprefix(METRIC_PREFIX)
            title = tag.rpartition("/")[2]
            return Column(
                column_id,
                title,
                lambda view: format_number(self.metric(view.run_id, tag)),
                lambda view: self.metric(view.run_id, tag),
                "0.01234",
                is_right_aligned=True,
                tooltip=lambda view: f"Last value of {tag}: {self.metric(view.run_id, tag)}",
            )
        name = column_id.removeprefix(SETTING_PREFIX)
        return Column(
            column_id,
            name,
            lambda view: "–" if (value := self.setting(view.run_id, name)) is None else format_value(value),
            lambda view: sort_value(self.setting(view.run_id, name)),
            "0.00025",
            is_right_aligned=True,
            tooltip=lambda view: f"{name}: {format_value(self.setting(view.run_id, name))}",
        )

    def setting(self, run_id: str, name: str) -> Any:
        known = self._known.get(run_id)
        return None if known is None or known.settings is None else known.settings.get(name)

    def metric(self, run_id: str, tag: str) -> float | None:
        known = self._known.get(run_id)
        return None if known is None else known.metrics.get(tag)

    def show_runs(self, run_ids: Sequence[str]) -> None:
        """Read the values of these runs, the first ones first, and keep them up to date."""
        self._wanted = list(run_ids)
        self._read_next()

    def ask_for_names(
        self, then: Callable[[list[str]], None], failed: Callable[[Exception], None], owner: QObject
    ) -> None:
        """Call `then` with the ids of the columns that exist; asks the newest run of each algorithm and worker."""
        newest = {(view.worker, view.algo): view.run_id for view in sorted(self._runs.all(), key=lambda v: v.age_key)}
        examples = self._runs.newest_first(newest.values())[:MAX_RUNS_PER_CALL]
        self._bridge.ask(lambda trainer: list_value_columns(trainer, examples), then, failed, owner)

    def _on_points_changed(self, run_ids: set[str]) -> None:
        if self._tags:
            self._stale |= run_ids
            if not self._pause.isActive():
                self._pause.start()

    def _forget(self, run_ids: set[str]) -> None:
        for run_id in run_ids:
            self._known.pop(run_id, None)

    def _lacks_settings(self, run_id: str) -> bool:
        known, view = self._known.get(run_id), self._runs.get(run_id)
        if not self._needs_settings or view is None:
            return False
        return known is None or known.settings is None or known.total_timesteps != view.total_timesteps

    def _lacks_metrics(self, run_id: str) -> bool:
        known = self._known.get(run_id)
        return bool(self._tags) and (known is None or not known.tags.issuperset(self._tags))

    def _read_again(self) -> None:
        """Read the metrics of runs that have new points."""
        for run_id in self._stale.intersection(self._known):
            self._known[run_id].tags = frozenset()
        self._stale.clear()
        self._read_next()

    def _read_next(self) -> None:
        if self._is_reading:
            return
        due = []
        for run_id in self._wanted:
            if self._lacks_settings(run_id) or self._lacks_metrics(run_id):
                due.append(run_id)
                if len(due) == MAX_RUNS_PER_CALL:
                    break
        if not due:
            return
        self._is_reading = True
        without_settings = {run_id for run_id in due if not self._lacks_settings(run_id)}
        tags = self._tags
        self._bridge.ask(
            lambda trainer: read_values(trainer, due, without_settings, tags),
            lambda readings: self._on_read(readings, frozenset(tags)),
            self._on_failed,
            self,
        )

    def _on_read(self, readings: list[Reading], tags: frozenset[str]) -> None:
        self._is_reading = False
        for reading in readings:
            known = self._known.setdefault(reading.run_id, _KnownValues())
            if reading.settings is not None:
                known.settings = reading.settings
                known.total_timesteps = self._runs.get_or_placeholder(reading.run_id).total_timesteps
            if reading.metrics is not None:
                known.metrics = dict(reading.metrics)
                known.tags = tags
        self.changed.emit({reading.run_id for reading in readings})
        self._read_next()

    def _on_failed(self, _: Exception) -> None:
        """The next connection, or the next points, repeat what was not read."""
        self._is_reading = False
