"""One line of a chart as numbers: it grows, is smoothed, and is reduced to what a screen can show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QObject, QTimer, Signal
from shiboken6 import isValid

from mosaic.base.curves import Smoother
from mosaic.contracts.events import Event, Sample
from mosaic.contracts.names import LENGTH_TAG, RETURN_TAG
from mosaic.contracts.views import HardwareSample, MetricsCursor
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.bridge import Bridge

if TYPE_CHECKING:
    from PySide6.QtWidgets import QWidget

# --- The points of a run as numpy arrays: its metrics, and what its processes use of the machine.


Floats = npt.NDArray[np.float64]
READ_INTERVAL_MS = 200
"""Between two readings of a series: each one makes its charts draw again."""
CPU_TAG, MEMORY_TAG = "hardware/CPU %", "hardware/memory MB"


class GrowingArray:
    """An array that doubles its capacity when it is full, so that extending it rarely copies."""

    def __init__(self) -> None:
        self._buffer: Floats = np.empty(256)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, more: Floats) -> None:
        end = self._count + len(more)
        if end > len(self._buffer):
            grown = np.empty(max(end, 2 * len(self._buffer)))
            grown[: self._count] = self._buffer[: self._count]
            self._buffer = grown
        self._buffer[self._count : end] = more
        self._count = end

    @property
    def values(self) -> Floats:
        """A view: numbers that are added later do not change it."""
        return self._buffer[: self._count]


class GrowingPoints:
    """Three columns of the same length: step, time and value."""

    def __init__(self) -> None:
        self._columns = [GrowingArray(), GrowingArray(), GrowingArray()]

    def __len__(self) -> int:
        return len(self._columns[0])

    def extend(self, step: Floats, at: Floats, value: Floats) -> None:
        for column, more in zip(self._columns, (step, at, value), strict=True):
            column.extend(more)

    def snapshot(self) -> GrowingPoints:
        """Return the points as they are now, for another thread. Their numbers are shared, not copied."""
        snapshot = GrowingPoints()
        snapshot._columns = [copy(column) for column in self._columns]
        return snapshot

    @property
    def step(self) -> Floats:
        return self._columns[0].values

    @property
    def at(self) -> Floats:
        return self._columns[1].values

    @property
    def value(self) -> Floats:
        return self._columns[2].values


class NewPoints(NamedTuple):
    """What one reading of the points returned."""

    cursor: MetricsCursor
    is_reload: bool
    parts: list[tuple[str, Floats, Floats, Floats]]
    """Tag, steps, times and values; a tag may have several parts."""


def read_points(run_id: str, cursor: MetricsCursor, trainer: TrainerClient) -> NewPoints:
    """Read the points after `cursor`."""
    update = trainer.metrics_after(run_id, cursor)
    parts = []
    for series in update.series:
        step, at, value = (np.array(column, np.float64) for column in (series.steps, series.at, series.values))
        parts.append((series.tag, step, at, value))
    return NewPoints(update.cursor, update.is_reload, parts)


class RunSeries(QObject):
    """All metrics of one run by tag. They are read once, and again while a viewer is visible."""

    def __init__(self, run_id: str, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.run_id = run_id
        self.tags: dict[str, GrowingPoints] = {}
        self.is_loaded = False
        self._bridge = bridge
        self._cursor = MetricsCursor()
        self._viewers: dict[QWidget, Callable[[], None]] = {}
        self._is_reading = False
        self._has_more = True
        """The daemon may have points that have not been requested."""
        self._pause = QTimer(self, singleShot=True, interval=READ_INTERVAL_MS)
        self._pause.timeout.connect(self.refresh)
        bridge.points_changed.connect(self._on_points_changed)
        bridge.connected.connect(self._on_connected)
        self._read()

    def add_viewer(self, viewer: QWidget, on_change: Callable[[], None]) -> None:
        """Read new points while this widget is visible, and call `on_change` after each reading that changed `tags`."""
        self._viewers[viewer] = on_change
        self.refresh()

    def remove_viewer(self, viewer: QWidget) -> None:
        self._viewers.pop(viewer, None)

    def viewers(self) -> list[QWidget]:
        """Return the viewers that have not been deleted."""
        self._viewers = {viewer: call for viewer, call in self._viewers.items() if isValid(viewer)}
        return list(self._viewers)

    def refresh(self) -> None:
        """Read what is new, if anything is and a viewer is visible. A viewer calls it when it is shown."""
        is_due = self._has_more and not self._is_reading and not self._pause.isActive()
        if is_due and any(viewer.isVisible() for viewer in self.viewers()):
            self._read()

    def _on_points_changed(self, run_ids: set[str]) -> None:
        if self.run_id in run_ids:
            self._has_more = True
            self.refresh()

    def _on_connected(self, _: object) -> None:
        self._has_more = True
        self.refresh()

    def _read(self) -> None:
        self._is_reading, self._has_more = True, False
        self._pause.start()
        self._bridge.ask(partial(read_points, self.run_id, self._cursor), self._on_read, self._on_read_failed, self)

    def _on_read(self, new: NewPoints) -> None:
        self._is_reading = False
        self._cursor = new.cursor
        if new.is_reload:
            self.tags.clear()
            self.is_loaded = True
        for tag, *columns in new.parts:
            self.tags.setdefault(tag, GrowingPoints()).extend(*columns)
        if new.is_reload or new.parts:
            self._notify_viewers()
        self.refresh()

    def _on_read_failed(self, _: Exception) -> None:
        """Give up until the daemon reports points, or is connected again."""
        self._is_reading, self._has_more = False, True
        if not self.is_loaded:
            self.is_loaded = True
            self._notify_viewers()

    def _notify_viewers(self) -> None:
        for viewer in self.viewers():
            self._viewers[viewer]()


class HardwareSeries(QObject):
    """The keeper's samples of one run, by tag: the earlier ones are read once. A sample has a time and no step."""

    changed = Signal()

    def __init__(
        self, run_id: str, bridge: Bridge, newest: HardwareSample | None, parent: QObject | None = None
    ) -> None:
        """`newest` is the sample in the run's view: where there is none, there are no earlier ones to be read."""
        super().__init__(parent)
        self.run_id = run_id
        self.tags: dict[str, GrowingPoints] = {}
        self._last_seq = 0
        self._pending: list[Sample] | None = None
        """Samples that arrived while the earlier ones were being read."""
        bridge.events_received.connect(self._on_events)
        if newest is not None:
            self._pending = []
            bridge.ask(
                partial(load_earlier_samples, run_id),
                self._on_earlier_loaded,
                lambda _: self._on_earlier_loaded([]),
                self,
            )

    def _on_events(self, events: list[Event]) -> None:
        samples = [event for event in events if isinstance(event, Sample) and event.run_id == self.run_id]
        if self._pending is not None:
            self._pending += samples
        else:
            self._append_samples(samples)

    def _on_earlier_loaded(self, samples: list[Sample]) -> None:
        newer, self._pending = self._pending or [], None
        self._append_samples(samples + newer)

    def _append_samples(self, samples: Iterable[Sample]) -> None:
        last_seq = self._last_seq
        for sample in samples:
            if sample.seq <= self._last_seq:
                continue  # it was among the earlier ones
            self._last_seq = sample.seq
            for tag, value in points_of_sample(sample).items():
                points = self.tags.setdefault(tag, GrowingPoints())
                points.extend(np.zeros(1), np.array([sample.at]), np.array([value]))
        if self._last_seq > last_seq:
            self.changed.emit()


def points_of_sample(sample: Sample) -> dict[str, float]:
    """Return one value for each quantity that is measured."""
    points = {CPU_TAG: sample.cpu_percent, MEMORY_TAG: sample.rss_mb}
    for number, gpu in enumerate(sample.gpus):
        points[f"hardware/GPU {number} %"] = gpu["util_percent"]
        points[f"hardware/GPU {number} memory MB"] = gpu["memory_used_mb"]
    return points


def load_earlier_samples(run_id: str, trainer: TrainerClient) -> list[Sample]:
    """Read all samples that there are. A watch never ends by itself, so this stops where it has replayed them."""
    samples: list[Sample] = []
    batches = trainer.watch(0, run_id, ["sample"])
    next(batches)
    for batch in batches:
        if not batch.events:
            break
        samples += [event for event in batch.events if isinstance(event, Sample)]
    return samples


# --- One line of a chart as numbers: it grows, is smoothed, and is reduced to what a screen can show.


X_KINDS = {"step": "Step", "relative": "Relative time", "wall": "Wall time", "episode": "Episode"}

NEGLIGIBLE = 1e-9
"""A smoothed value smaller than this part of the largest value is shown as 0: an average never quite reaches it."""
Line = tuple[Floats, Floats]
"""x and y."""
NO_LINE: Line = (np.empty(0), np.empty(0))


class ReducedCurve(NamedTuple):
    """What is drawn: at most about one entry per bin, ascending in x."""

    x: Floats
    raw: Floats
    smooth: Floats
    low: Floats
    high: Floats


class ChartCurve:
    """Points in ascending x. The band shows `low` and `high` where they are given, else the extremes of the points.

    A value that is not finite is a gap.
    """

    def __init__(self, weight: float = 0.0) -> None:
        self._reset(weight)

    def _reset(self, weight: float) -> None:
        self._x, self._y, self._smooth, self._low, self._high = (GrowingArray() for _ in range(5))
        self._smoother = Smoother(weight)
        self._has_gaps = False
        self._largest = 0.0
        """Of all values without their sign."""
        self.has_band = False
        """Whether `low` and `high` were given."""
        self.tail: Line = NO_LINE
        """How the curve continues where it is not complete; drawn dotted."""
        self.lines: Line = NO_LINE
        """Thin lines behind the curve, with gaps between them."""

    def __len__(self) -> int:
        return len(self._x)

    @property
    def weight(self) -> float:
        return self._smoother.weight

    @property
    def x(self) -> Floats:
        return self._x.values

    @property
    def y(self) -> Floats:
        return self._y.values

    @property
    def smooth(self) -> Floats:
        """Return the smoothed values. Computed on request: a hidden chart costs nothing when the weight changes."""
        known = len(self._smooth)
        if known < len(self):
            self._smooth.extend(self._smoother.extend(self.y[known:]))
        return self._smooth.values

    def replace(self, x: Floats, y: Floats, low: Floats | None = None, high: Floats | None = None) -> None:
        self._reset(self.weight)
        self.extend(x, y, low, high)

    def extend(self, x: Floats, y: Floats, low: Floats | None = None, high: Floats | None = None) -> None:
        """Append points. Where they are not in ascending order, all are sorted again."""
        last = self.x[-1] if len(self) else -math.inf
        if len(x) and (x[0] < last or bool((x[1:] < x[:-1]).any())):
            all_x, all_y = np.concatenate([self.x, x]), np.concatenate([self.y, y])
            order = np.argsort(all_x, kind="stable")
            self._reset(self.weight)
            x, y, low, high = all_x[order], all_y[order], None, None
        self._x.extend(x)
        self._y.extend(y)
        finite = y[np.isfinite(y)]
        self._has_gaps = self._has_gaps or len(finite) < len(y)
        if len(finite):
            self._largest = max(self._largest, float(np.abs(finite).max()))
        if low is not None and high is not None:
            self.has_band = True
            self._low.extend(low)
            self._high.extend(high)

    def set_weight(self, weight: float) -> None:
        if weight != self.weight:
            self._smoother = Smoother(weight)
            self._smooth = GrowingArray()

    def value_at(self, x: float) -> tuple[float, float, float] | None:
        """Return x, value and smoothed value of the point nearest to `x`; None outside of the curve."""
        xs = self.x
        if len(xs) == 0 or not xs[0] <= x <= xs[-1]:
            return None
        right = int(np.searchsorted(xs, x))
        left = max(0, right - 1)
        at = left if x - xs[left] < xs[min(right, len(xs) - 1)] - x else min(right, len(xs) - 1)
        return self._point(at)

    def last_point(self) -> tuple[float, float, float] | None:
        """Return the last point that is not a gap, as `value_at` does."""
        at = len(self) - 1
        if at >= 0 and not math.isfinite(self.y[at]):
            known = np.flatnonzero(np.isfinite(self.y))
            at = int(known[-1]) if len(known) else -1
        return None if at < 0 else self._point(at)

    def _point(self, at: int) -> tuple[float, float, float]:
        smooth = float(self.smooth[at])
        if self.weight > 0 and abs(smooth) < self._largest * NEGLIGIBLE:
            smooth = 0.0
        return float(self.x[at]), float(self.y[at]), smooth

    def reduce(self, begin: float, end: float, bins: int) -> ReducedCurve:
        """Return the points from `begin` to `end` and one at either side, reduced to bins where they are too many."""
        x = self.x
        first, last = np.searchsorted(x, (begin, end), side="left")
        first, last = max(0, int(first) - 1), min(len(x), int(last) + 1)
        part = slice(first, last)
        y = self.y[part]
        low, high = (self._low.values[part], self._high.values[part]) if self.has_band else (y, y)
        if last - first <= 2 * bins or end <= begin:
            return ReducedCurve(x[part], y, self.smooth[part], low, high)
        # Bins are multiples of their width, not parts of the range: the line does not flicker while it is panned.
        width = (end - begin) / bins
        edges = np.arange(math.floor(begin / width), math.ceil(end / width) + 1) * width
        starts = np.concatenate([[first], np.clip(np.searchsorted(x, edges), first, last - 1)])
        starts = starts[np.append(True, starts[1:] > starts[:-1])]  # np.unique would load a module of its own here
        stops = np.append(starts[1:], last)
        offsets = starts - first
        low, high = np.fmin.reduceat(low, offsets), np.fmax.reduceat(high, offsets)
        if self._has_gaps:
            finite = np.isfinite(y)
            counts = np.add.reduceat(finite.astype(np.float64), offsets)
            sums = np.add.reduceat(np.where(finite, y, 0.0), offsets)
            raw = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)
        else:
            raw = np.add.reduceat(y, offsets) / (stops - starts)
        middle = (starts + stops) // 2
        return ReducedCurve((x[starts] + x[stops - 1]) / 2, raw, self.smooth[middle], low, high)


class CurveFeed:
    """Appends the new points of one tag to a curve, by the chosen x."""

    def __init__(self, tags: Mapping[str, GrowingPoints], tag: str, curve: ChartCurve) -> None:
        self.tags = tags
        self.tag = tag
        self.curve = curve
        self._source: GrowingPoints | None = None
        self._x_axis = ("", 0.0)
        """Its kind, and where it begins: a tag that arrives later may have an earlier point."""

    def update(self, x_kind: str) -> bool:
        """Return whether the curve has changed."""
        source, origin = self.tags.get(self.tag), _origin(self.tags) if x_kind == "relative" else 0.0
        if source is not self._source or (x_kind, origin) != self._x_axis:
            self._source, self._x_axis = source, (x_kind, origin)
            empty = np.empty(0)
            self.curve.replace(empty, empty)
            if source is None:
                return True
        if source is None or len(source) == len(self.curve):
            return False
        new = slice(len(self.curve), len(source))
        self.curve.extend(x_values(self.tags, self.tag, x_kind)[new], source.value[new])
        return True


def _origin(tags: Mapping[str, GrowingPoints]) -> float:
    """Return the time of the earliest point."""
    return min((float(points.at[0]) for points in tags.values() if len(points)), default=0.0)


def x_values(tags: Mapping[str, GrowingPoints], tag: str, kind: str) -> Floats:
    """Return the x of the points of a tag."""
    source = tags[tag]
    if kind == "wall":
        return source.at
    if kind == "relative":
        return source.at - _origin(tags)
    if kind == "episode":
        if tag in (RETURN_TAG, LENGTH_TAG):
            return np.arange(1.0, len(source) + 1)
        episodes = tags.get(RETURN_TAG)
        if episodes is not None:
            return np.searchsorted(episodes.step, source.step, side="right").astype(np.float64)
    return source.step


def to_log_scale(reduced: ReducedCurve) -> ReducedCurve:
    """As drawn on a logarithmic axis: what is not above zero is a gap; a band that reaches there ends at the line."""

    raw, smooth, low, high = map(log_values, (reduced.raw, reduced.smooth, reduced.low, reduced.high))
    return ReducedCurve(reduced.x, raw, smooth, np.where(np.isnan(low), raw, low), high)


def log_values(values: Floats) -> Floats:
    return np.log10(values, out=np.full(len(values), np.nan), where=values > 0)


def finite_range(*parts: Floats) -> tuple[float, float] | None:
    """Return the smallest and the largest finite number."""
    known = [part[np.isfinite(part)] for part in parts]
    known = [part for part in known if len(part)]
    if not known:
        return None
    return min(float(part.min()) for part in known), max(float(part.max()) for part in known)


def round_range(low: float, high: float) -> tuple[float, float]:
    """Widen a range to round numbers, so that it does not change with every new point."""
    span = high - low
    # Less than this is the rounding of the smoothing, not a change of the data.
    if span <= 1e-9 * max(abs(low), abs(high)) or not math.isfinite(span):
        half = abs(low) * 0.1 or 1.0
        return low - half, high + half
    step = round_step(span / 25)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def round_step(min_step: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, … that is at least `min_step`."""
    scale = 10.0 ** math.floor(math.log10(min_step))
    return next(scale * factor for factor in (1, 2, 5, 10) if scale * factor >= min_step * (1 - 1e-9))
