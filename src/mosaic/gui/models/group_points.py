"""The points of one metric of all runs of a group, read where they have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from PySide6.QtCore import QObject, QTimer, Signal

from mosaic.client import TrainerClient
from mosaic.contracts.errors import UnknownName
from mosaic.contracts.metric_tags import RETURN_TAG
from mosaic.contracts.views import MetricsCursor
from mosaic.gui.bridge import Bridge
from mosaic.gui.models.groups import Points
from mosaic.gui.models.series import GrowingPoints

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
