"""The order of the list of runs: by a column, or what runs first; folded runs come below the rows of their groups.

Every row has a key that no other has, so that it is found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cmp_to_key
from operator import attrgetter
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from mosaic.base import formatting
from mosaic.base.comparison import format_value
from mosaic.base.formatting import format_number
from mosaic.base.run_payloads import comparison_settings
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.options import RunKind
from mosaic.contracts.states import Stage
from mosaic.contracts.views import RunView
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.bridge import Bridge
from mosaic.window.runs import RunsModel

# --- The columns of the list of runs: what each shows of a run, and what it is sorted by.


SETTING_PREFIX, METRIC_PREFIX = "setting:", "metric:"
"""Begin the ids of columns that show a hyper-parameter, or the last value of a metric."""
VALUES_AFTER = "seed"
"""Such columns come after this one."""
_STATE_ORDER = (
    *("running", "stalled", "paused", "stopping", "starting", "queued"),
    *("failed", "lost", "rejected", "cancelled", "ended", "succeeded"),
)
"""Those that may need attention come first."""


@dataclass(frozen=True)
class Column:
    id: str
    title: str
    text: Callable[[RunView], str]
    key: Callable[[RunView], Any]
    """The sort key; None comes last in either order."""
    width_sample: str
    """As wide as this."""
    is_right_aligned: bool = False
    tooltip: Callable[[RunView], str] = lambda _: ""

    @property
    def shows_value(self) -> bool:
        """Whether it shows a hyper-parameter or a metric, which is read for the visible rows only."""
        return self.id.startswith((SETTING_PREFIX, METRIC_PREFIX))


def run_label(view: RunView) -> str:
    """The name of a run, or what it trains and where: `ppo · CartPole-v1`."""
    return view.run_name or " · ".join(filter(None, (_algorithm_text(view), view.env_id)))


def _state_rank(view: RunView) -> int:
    state = view.status
    return _STATE_ORDER.index(state) if state in _STATE_ORDER else len(_STATE_ORDER)


def _algorithm_text(view: RunView) -> str:
    name = str(view.algo or view.worker or "–")
    return f"{name} (eval)" if view.kind == RunKind.POLICY_EVAL else name


def _percent_text(view: RunView) -> str:
    fraction = formatting.progress_fraction(view)
    return "–" if fraction is None else f"{100 * fraction:.0f}%"


def _steps_tooltip(view: RunView) -> str:
    if view.global_step is None:
        return ""
    total = f" of {view.total_timesteps:,}" if view.total_timesteps else ""
    return f"{view.global_step:,}{total} steps"


def _tags_text(view: RunView) -> str:
    return ", ".join(view.tags or ())


def _name_tooltip(view: RunView) -> str:
    marks = (
        "Archived: hidden from the list unless archived runs are shown" if view.is_archived else "",
        "Imported: what its config would execute needs your trust" if view.is_imported else "",
    )
    return "\n".join(filter(None, marks))


def _column(
    column_id: str,
    title: str,
    field: str,
    width_sample: str,
    format_value: Callable[[Any], str] = lambda value: "–" if value is None else str(value),
    is_right_aligned: bool = True,
    tooltip: Callable[[RunView], str] = lambda _: "",
) -> Column:
    """A column that shows one field and is sorted by it."""
    value = attrgetter(field)
    return Column(
        column_id, title, lambda view: format_value(value(view)), value, width_sample, is_right_aligned, tooltip
    )


COLUMNS: tuple[Column, ...] = (
    Column("state", "State", lambda run: run.status, _state_rank, "succeeded", tooltip=formatting.explain_state),
    Column("name", "Name", run_label, lambda run: run_label(run).lower(), "ppo · CartPole", tooltip=_name_tooltip),
    _column("seed", "Seed", "seed", "12"),
    _column("group", "Group", "group", "ppo-CartPo", is_right_aligned=False),
    _column("return", "Return", "episodic_return", "-123.4", formatting.format_si_number,
            tooltip=lambda run: f"Mean of the last 100 of {run.episodes:,} episodes"),
    Column("progress", "Done", _percent_text, formatting.progress_fraction, "100%", True, _steps_tooltip),
    Column("algo", "Algo", _algorithm_text, _algorithm_text, "ppo_continuous"),
    _column("env", "Environment", "env_id", "MountainCar-v0", is_right_aligned=False),
    _column("left", "Time left", "seconds_left", "12m 34s", formatting.format_duration),
    _column("sps", "Steps/s", "sps", "12.3k", formatting.format_si_number),
    Column("age", "Age", lambda run: formatting.format_ago(run.submitted_at), lambda run: -run.submitted_at,
           "59 min ago", True, lambda run: f"Submitted {formatting.format_timestamp(run.submitted_at)}"),
    _column("user", "User", "submitted_by", "username", is_right_aligned=False),
    Column("tags", "Tags", _tags_text, lambda run: _tags_text(run) or None, "baseline"),
)  # fmt: skip
"""In the order in which a narrow list leaves them out: the last first."""
COLUMN_IDS = tuple(column.id for column in COLUMNS)


# --- The order of the list of runs: by a column, or what runs first; folded runs come below the rows of their groups.
#     Every row has a key that no other has, so that it is found by bisection.


Key = tuple[Any, ...]

GROUP_PREFIX = "group:"
"""Begins the ids of rows that stand for a group; those of runs have no colon."""


@cmp_to_key
def _descending_key(one: Any, other: Any) -> int:
    return int(one < other) - int(one > other)


class RunOrder:
    def __init__(self) -> None:
        self.sort_column: Column | None = None
        self.is_descending = False
        self.is_folding = False
        self.expanded: set[str] = set()
        """The groups whose runs have rows."""
        self.key_by_run: dict[str, Key] = {}
        """Of each run that is listed, whether it has a row or not."""
        self.key_by_row: dict[str, Key] = {}
        self.members: dict[str, set[str]] = {}
        """By group, where runs are folded: those of its runs that are listed."""
        self.group_by_run: dict[str, str] = {}
        self._key_by_group: dict[str, Key] = {}
        self._newness: dict[str, int] = {}
        self._known_keys: dict[str, tuple[RunView, Key]] = {}
        """Of each run, also of those that are not listed: its key, and the view that it was computed from."""

    def collect(self, views: Iterable[RunView]) -> None:
        """List these runs, and no others. One loop, and keys only of runs that have changed: there may be thousands."""
        known, is_folding = self._known_keys, self.is_folding
        keys: dict[str, Key] = {}
        rows: dict[str, Key] = {}
        groups: dict[str, str] = {}
        members: dict[str, set[str]] = {}
        firsts: dict[str, Key] = {}
        for view in views:
            run_id = view.run_id
            entry = known.get(run_id)
            if entry is None or entry[0] is not view:
                entry = known[run_id] = view, self._run_key(view)
            key = keys[run_id] = entry[1]
            group = view.group
            if not is_folding or not group:
                rows[run_id] = key
                continue
            groups[run_id] = group
            if group not in members:
                members[group], firsts[group] = {run_id}, key
                continue
            members[group].add(run_id)
            if key < firsts[group]:
                firsts[group] = key
        self.key_by_run, self.group_by_run, self.members, self._key_by_group = keys, groups, members, firsts
        rows |= {GROUP_PREFIX + group: key for group, key in firsts.items()}
        for group in self.expanded & members.keys():
            rows |= {run_id: self.row_key(run_id) for run_id in members[group]}
        self.key_by_row = rows

    def forget_column(self) -> None:
        """Use the default order from the next `collect` on."""
        self.sort_column = None
        self._known_keys.clear()

    def sort_by(self, column: Column | None, is_descending: bool, views: Iterable[RunView]) -> None:
        """Change the order of the listed runs, whose views these are."""
        self.sort_column, self.is_descending = column, is_descending
        self._known_keys.clear()
        self.collect(views)

    def _run_key(self, view: RunView) -> Key:
        """Newest first among equals; without a column, what runs comes first, then what waits."""
        newness = self._newness.get(view.run_id)
        if newness is None:  # numbers compare fast
            submitted_ms, run_id = view.age_key
            newness = self._newness[run_id] = -int.from_bytes(b"%020d%s" % (submitted_ms, run_id.encode().ljust(64)))
        if self.sort_column is None:
            stage = view.stage
            return (2 if stage is Stage.FINISHED else 1 if stage is Stage.QUEUED else 0, 0, newness)
        value = self.sort_column.key(view)
        if value is None:
            return (1, 0, newness)
        if self.is_descending:
            value = -value if isinstance(value, int | float) else _descending_key(value)
        return (0, value, newness)

    def _first_key(self, run_ids: Iterable[str]) -> Key:
        return min(map(self.key_by_run.__getitem__, run_ids))

    def row_key(self, row_id: str) -> Key:
        """A group has the key of its first run, and the longer keys of its runs come after it."""
        if row_id.startswith(GROUP_PREFIX):
            return self._key_by_group[row_id.removeprefix(GROUP_PREFIX)]
        group = self.group_by_run.get(row_id)
        own = self.key_by_run[row_id]
        return own if group is None else (*self._key_by_group[group], *own)

    def has_row(self, row_id: str) -> bool:
        """Whether it is to be shown."""
        if row_id.startswith(GROUP_PREFIX):
            return row_id.removeprefix(GROUP_PREFIX) in self.members
        group = self.group_by_run.get(row_id)
        return row_id in self.key_by_run and (group is None or group in self.expanded)

    def update_run(self, run_id: str, view: RunView | None) -> set[str]:
        """Update what is known of a run, None where it is not listed; return the groups that it was and is in."""
        touched = set()
        self._known_keys.pop(run_id, None)  # a value that it is sorted by may have been read, for the same view
        if (before := self.group_by_run.pop(run_id, None)) is not None:
            self.members[before].discard(run_id)
            touched.add(before)
        if view is None:
            self.key_by_run.pop(run_id, None)
            return touched
        self.key_by_run[run_id] = self._run_key(view)
        if self.is_folding and view.group:
            self.group_by_run[run_id] = view.group
            self.members.setdefault(view.group, set()).add(run_id)
            touched.add(view.group)
        return touched

    def update_group(self, group: str) -> bool:
        """Return whether its place has changed, and with it that of all of its runs."""
        if not self.members[group]:
            del self.members[group], self._key_by_group[group]
            return False
        key = self._first_key(self.members[group])
        has_moved = self._key_by_group.get(group) != key
        self._key_by_group[group] = key
        return has_moved


# --- Hyper-parameters and last values of metrics for the list of runs: read for the rows that are visible, in
#     batches.


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
