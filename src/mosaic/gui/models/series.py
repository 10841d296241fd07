"""The points of one run as numpy arrays, loaded once and grown by what the daemon tells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QObject, Signal

from mosaic.client import TrainerClient
from mosaic.gui.bridge import Bridge

Json = dict[str, Any]
Floats = npt.NDArray[np.float64]
RETURN_TAG = "charts/episodic_return"
LENGTH_TAG = "charts/episodic_length"


class GrowingPoints:
    """Three columns (step, time, value) that grow without copying each time."""

    def __init__(self) -> None:
        self._rows: Floats = np.empty((256, 3))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, rows: Floats) -> None:
        wanted = self._count + len(rows)
        if wanted > len(self._rows):
            grown = np.empty((max(wanted, 2 * len(self._rows)), 3))
            grown[: self._count] = self._rows[: self._count]
            self._rows = grown
        self._rows[self._count : wanted] = rows
        self._count = wanted

    @property
    def step(self) -> Floats:
        return self._rows[: self._count, 0]

    @property
    def at(self) -> Floats:
        return self._rows[: self._count, 1]

    @property
    def value(self) -> Floats:
        return self._rows[: self._count, 2]


class RunSeries(QObject):
    """All tags of one run."""

    loaded = Signal()
    points_added = Signal(set)
    """The tags that have new points."""

    def __init__(self, run_id: str, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.run_id = run_id
        self.tags: dict[str, GrowingPoints] = {}
        self.is_loaded = False
        self._bridge = bridge
        self._pending_events: list[Json] = []
        bridge.events_received.connect(self._on_events)
        self.load()

    def load(self) -> None:
        self.is_loaded = False
        self._bridge.ask(self._load_points, self._on_loaded, self._on_load_failed, self)

    def _load_points(self, trainer: TrainerClient) -> dict[str, GrowingPoints]:
        found: dict[str, GrowingPoints] = {}
        for part in trainer.metrics(self.run_id):
            rows = np.column_stack([np.asarray(column, np.float64) for column in (part.steps, part.at, part.values)])
            found.setdefault(part.tag, GrowingPoints()).extend(rows)
        return found

    def _on_loaded(self, points_by_tag: dict[str, GrowingPoints]) -> None:
        self.tags = points_by_tag
        self.is_loaded = True
        waiting, self._pending_events = self._pending_events, []
        self._append_events(waiting)
        self.loaded.emit()

    def _on_load_failed(self, _: Exception) -> None:
        self.is_loaded = True
        self.loaded.emit()

    def _on_events(self, events: list[Json]) -> None:
        mine = [event for event in events if event["run_id"] == self.run_id]
        if not mine:
            return
        if any(event["kind"] == "hello" for event in mine):
            self.load()  # a further attempt may have replaced points
            return
        if self.is_loaded:
            self._append_events(mine)
        else:
            self._pending_events += mine

    def _append_events(self, events: Iterable[Json]) -> None:
        new: dict[str, list[tuple[float, float, float]]] = {}
        for event in events:
            if event["kind"] == "metrics":
                for tag, points in event["series"].items():
                    new.setdefault(tag, []).extend(points)
            elif event["kind"] == "episodes":
                for _, _, step, at, episodic_return, length in event["rows"]:
                    new.setdefault(RETURN_TAG, []).append((step, at, episodic_return))
                    new.setdefault(LENGTH_TAG, []).append((step, at, length))
        grown = set()
        for tag, points in new.items():
            rows = np.array(points, np.float64)
            held = self.tags.setdefault(tag, GrowingPoints())
            if len(held):
                rows = rows[rows[:, 1] > held.at[-1]]  # what was loaded meanwhile is not taken twice
            if len(rows):
                held.extend(rows)
                grown.add(tag)
        if grown:
            self.points_added.emit(grown)
