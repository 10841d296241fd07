"""Reads what trackers log from a run's files: each point once, in order, over all attempts of the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mosaic.contracts.events import Episodes, Finished, Hello, Hyperparameters, Metrics, ProgressReported, Sample
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.metric_tags import LENGTH_TAG, RETURN_TAG
from mosaic.journal import Follower

EventBody = dict[str, Any]
MetricPoint = tuple[int, float, str, float]
"""Step, time, tag, value."""


class SettingsItem(NamedTuple):
    values: dict[str, Any]


class ScalarsItem(NamedTuple):
    step: int
    at: float
    values: dict[str, float]


class HardwareItem(NamedTuple):
    at: float
    values: dict[str, float]


class VideoItem(NamedTuple):
    path: Path
    step: int


TrackerItem = SettingsItem | ScalarsItem | HardwareItem | VideoItem


class TrackerFeed:
    """`journal_from` is the offset of this attempt in the journal; None: all attempts have ended.

    An attempt's handshake determines which points of the earlier ones are still valid, so nothing is read before it.
    """

    def __init__(self, folder: RunFolder, journal_from: int | None = None) -> None:
        self._folder = folder
        self._journal_from = journal_from
        self._followers: dict[Path, Follower] = {}
        self._keeper_follower = Follower(folder.keeper)
        self._has_started = False
        self._last_valid_steps: list[float] = []
        self._last_hello_index: float = math.inf
        self._hello_count = 0
        self._videos: set[Path] = set()
        self.step = 0
        self.outcome: str | None = None
        """The last one that the worker reported."""

    def read(self, is_over: bool = False) -> Iterator[TrackerItem]:
        """Yields what is new. `is_over`: a missing handshake will not come any more."""
        self._has_started = self._has_started or self._start(is_over)
        if not self._has_started:
            return
        for path in self._folder.journals():
            follower = self._followers.setdefault(path, Follower(path))
            while lines := follower.read():
                for line in lines:
                    yield from self._convert_event(line.body, path == self._folder.journal)
        while lines := self._keeper_follower.read():
            yield from (_hardware_item(line.body) for line in lines if line.body["kind"] == Sample.KIND)
        yield from self._new_videos()

    def _start(self, is_over: bool) -> bool:
        hellos = list(_read_hellos(self._folder.journal))
        if self._journal_from is not None:
            earlier = sum(end <= self._journal_from for _, end in hellos)
            self._last_hello_index = earlier + 1  # what follows is for the next attempt's sidecar
            if earlier and len(hellos) == earlier and not is_over:
                return False
            hellos = hellos[: earlier + 1]
        self._last_valid_steps = last_valid_steps([resumed_from for resumed_from, _ in hellos])
        return True

    def _convert_event(self, body: EventBody, is_main: bool) -> Iterable[TrackerItem]:
        kind = body["kind"]
        if is_main and kind == Hello.KIND:
            self._hello_count += 1
        if is_main and self._hello_count > self._last_hello_index:
            return []
        try:
            if kind == Finished.KIND and is_main:
                self.outcome = str(body["outcome"])
            elif kind == Hyperparameters.KIND:
                return [SettingsItem(dict(body["values"]))]
            elif kind == ProgressReported.KIND:
                self.step = max(self.step, int(body["global_step"]))
            elif kind == Metrics.KIND:
                return group_by_step(self._valid_points(metric_points(body), is_main))
            elif kind == Episodes.KIND:
                return [
                    ScalarsItem(step, at, {RETURN_TAG: _float_or_nan(value), LENGTH_TAG: float(length)})
                    for _, _, step, at, value, length in body["rows"]
                    if not is_main or step <= self._last_valid_step
                ]
        except (KeyError, TypeError, ValueError, AttributeError):
            pass  # an incomplete line of another program
        return []

    def _valid_points(self, points: Iterable[MetricPoint], is_main: bool) -> Iterator[MetricPoint]:
        return (point for point in points if not is_main or point[0] <= self._last_valid_step)

    @property
    def _last_valid_step(self) -> float:
        return (
            self._last_valid_steps[self._hello_count - 1]
            if 0 < self._hello_count <= len(self._last_valid_steps)
            else math.inf
        )

    def _new_videos(self) -> list[TrackerItem]:
        """Videos get their final names when they are complete."""
        paths = sorted(path for path in self._folder.videos.rglob("*.mp4") if not path.name.startswith("."))
        new = [path for path in paths if path not in self._videos]
        self._videos.update(new)
        return [VideoItem(path, self.step) for path in new]


def last_valid_steps(resumed_from_steps: list[int | None]) -> list[float]:
    """Returns the last valid step of each attempt, given the steps that they resumed from (None: from the start)."""
    steps: list[float] = []
    bound = math.inf
    for resumed_from in reversed(resumed_from_steps):
        steps.append(bound)
        bound = min(bound, -1 if resumed_from is None else resumed_from)
    return steps[::-1]


def metric_points(body: EventBody) -> Iterator[MetricPoint]:
    for tag, points in body["series"].items():
        for step, at, value in points:
            yield int(step), float(at), str(tag), _float_or_nan(value)


def group_by_step(points: Iterable[MetricPoint]) -> list[TrackerItem]:
    """Groups the points of one step into a row; a repeated tag starts the next row."""
    rows: list[TrackerItem] = []
    step, at, values = 0, 0.0, dict[str, float]()
    for point in sorted(points, key=lambda point: point[:2]):
        if values and (point[0] != step or point[2] in values):
            rows.append(ScalarsItem(step, at, values))
            values = {}
        step, at = point[:2]
        values[point[2]] = point[3]
    if values:
        rows.append(ScalarsItem(step, at, values))
    return rows


def _read_hellos(journal: Path) -> Iterator[tuple[int | None, int]]:
    """Yields for each handshake the step that it resumed from, and the offset after it."""
    follower = Follower(journal)
    while lines := follower.read():
        yield from ((line.body.get("resumed_from"), line.end) for line in lines if line.body["kind"] == Hello.KIND)


def _hardware_item(body: EventBody) -> HardwareItem:
    values = {"cpu": float(body["cpu_percent"]), "proc.memory.rssMB": float(body["rss_mb"])}
    for number, gpu in enumerate(body.get("gpus") or ()):
        values[f"gpu.{number}.gpu"] = gpu["util_percent"]
        values[f"gpu.{number}.memoryAllocatedBytes"] = gpu["memory_used_mb"] * 2**20
    return HardwareItem(body["at"], values)


def _float_or_nan(value: Any) -> float:
    return math.nan if value is None else float(value)


def find_checkpoints(folder: RunFolder) -> dict[Path, tuple[str, ...]]:
    """Returns the last and the best checkpoint with their names; one entry where the last is the best."""
    names: dict[Path, tuple[str, ...]] = {}
    for name, link in (("last", folder.last_checkpoint), ("best", folder.best_checkpoint)):
        if link.is_dir():
            target = link.resolve()
            names[target] = (*names.get(target, ()), name)
    return names
