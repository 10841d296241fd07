"""The points of a run as numpy arrays: its metrics, and what its processes use of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QObject, QTimer, Signal
from shiboken6 import isValid

from mosaic.client import TrainerClient
from mosaic.contracts.events import Event, Sample
from mosaic.contracts.views import HardwareSample, MetricsCursor
from mosaic.gui.bridge import Bridge

if TYPE_CHECKING:
    from PySide6.QtWidgets import QWidget

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
