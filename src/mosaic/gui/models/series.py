"""The points of one run as numpy arrays, read from the daemon whenever it has new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from PySide6.QtCore import QObject, QTimer, Signal
from shiboken6 import isValid

from mosaic.client import TrainerClient
from mosaic.client.trainer_client import MetricsCursor
from mosaic.gui.bridge import Bridge
from mosaic.gui.models.growing_array import Floats, GrowingArray

READ_INTERVAL_MS = 200
"""Between two readings of a series: each one makes its charts draw again."""


class GrowingPoints:
    """Three columns of the same length: step, time and value."""

    def __init__(self) -> None:
        self._columns = GrowingArray(), GrowingArray(), GrowingArray()

    def __len__(self) -> int:
        return len(self._columns[0])

    def extend(self, step: Floats, at: Floats, value: Floats) -> None:
        for column, more in zip(self._columns, (step, at, value), strict=True):
            column.extend(more)

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


def read_points(run_id: str, cursor: MetricsCursor) -> Callable[[TrainerClient], NewPoints]:
    """Returns the question for the points after `cursor`."""

    def ask(trainer: TrainerClient) -> NewPoints:
        update = trainer.metrics_after(run_id, cursor)
        parts = [
            (
                series.tag,
                np.array(series.steps, np.float64),
                np.array(series.at, np.float64),
                np.array(series.values, np.float64),
            )
            for series in update.series
        ]
        return NewPoints(update.cursor, update.is_reload, parts)

    return ask


class Viewer(Protocol):
    """A widget that shows points."""

    def isVisible(self) -> bool: ...


class RunSeries(QObject):
    """All tags of one run. They are read once, and again while a viewer is visible."""

    loaded = Signal()
    """All points were read, for the first time or again; `tags` holds new columns."""
    points_added = Signal(set)
    """The tags that have new points."""

    def __init__(self, run_id: str, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.run_id = run_id
        self.tags: dict[str, GrowingPoints] = {}
        self.is_loaded = False
        self._bridge = bridge
        self._cursor = MetricsCursor()
        self._viewers: list[Viewer] = []
        self._is_reading = False
        self._has_more = True
        """The daemon may have points that have not been requested."""
        self._pause = QTimer(self, singleShot=True, interval=READ_INTERVAL_MS)
        self._pause.timeout.connect(self.refresh)
        bridge.points_changed.connect(self._on_points_changed)
        bridge.connected.connect(self._on_connected)
        self._read()

    def add_viewer(self, viewer: Viewer) -> None:
        self._viewers.append(viewer)
        self.refresh()

    def remove_viewer(self, viewer: Viewer) -> None:
        self._viewers.remove(viewer)

    def refresh(self) -> None:
        """Reads what is new, if anything is and a viewer is visible. A viewer calls it when it is shown."""
        self._viewers = [viewer for viewer in self._viewers if isValid(viewer)]
        is_due = self._has_more and not self._is_reading and not self._pause.isActive()
        if is_due and any(viewer.isVisible() for viewer in self._viewers):
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
        self._bridge.ask(read_points(self.run_id, self._cursor), self._on_read, self._on_read_failed, self)

    def _on_read(self, new: NewPoints) -> None:
        self._is_reading = False
        self._cursor = new.cursor
        if new.is_reload:
            self.tags = {}
        for tag, *columns in new.parts:
            self.tags.setdefault(tag, GrowingPoints()).extend(*columns)
        if new.is_reload:
            self.is_loaded = True
            self.loaded.emit()
        elif new.parts:
            self.points_added.emit({tag for tag, *_ in new.parts})
        self.refresh()

    def _on_read_failed(self, _: Exception) -> None:
        """Gives up until the daemon reports points, or is there again."""
        self._is_reading, self._has_more = False, True
        if not self.is_loaded:
            self.is_loaded = True
            self.loaded.emit()
