"""Reads what trackers log from a run's files: each point once, in order, over all attempts of the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mosaic.contracts.events import Episodes, Finished, Hello, Hyperparameters, Metrics, ProgressReported, Sample
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.metric_tags import LENGTH_TAG, RETURN_TAG
from mosaic.journal import Follower

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
        self._last_valid_steps: list[float] = []
        """By attempt, after what precedes the first one; empty while they are unknown."""
        self._attempt = 0
        self._videos: set[Path] = set()
        self.step = 0
        self.outcome: str | None = None
        """The last one that the worker reported."""

    def read(self, is_over: bool = False) -> Iterator[TrackerItem]:
        """Yields what is new. `is_over`: a missing handshake will not come any more."""
        if not self._last_valid_steps and not self._read_attempts(is_over):
            return
        for path in self._folder.journals():
            for line in self._followers.setdefault(path, Follower(path)).read_rest():
                yield from self._convert_event(line.body, path == self._folder.journal)
        for line in self._keeper_follower.read_rest():
            if line.body["kind"] == Sample.KIND:
                yield _hardware_item(line.body)
        yield from self._new_videos()

    def _read_attempts(self, is_over: bool) -> bool:
        """Returns whether it is known which points of the attempts are valid."""
        lines = Follower(self._folder.journal).read_rest()
        hellos = [(line.body.get("resumed_from"), line.end) for line in lines if line.body["kind"] == Hello.KIND]
        count = len(hellos)
        if self._journal_from is not None:
            earlier = sum(end <= self._journal_from for _, end in hellos)
            if earlier and count == earlier and not is_over:
                return False
            count = earlier + 1  # what follows is for the next attempt's sidecar
        steps = last_valid_steps([resumed_from for resumed_from, _ in hellos[:count]])
        self._last_valid_steps = [math.inf, *steps, *[math.inf] * (count - len(steps))]
        return True

    def _convert_event(self, body: Mapping[str, Any], is_main: bool) -> Iterable[TrackerItem]:
        kind, last_step = body["kind"], math.inf
        if is_main:  # other processes of a run write journals of their own, which are not resumed
            self._attempt += kind == Hello.KIND
            if self._attempt >= len(self._last_valid_steps):
                return []
            last_step = self._last_valid_steps[self._attempt]
        try:
            if kind == Finished.KIND and is_main:
                self.outcome = str(body["outcome"])
            elif kind == Hyperparameters.KIND:
                return [SettingsItem(dict(body["values"]))]
            elif kind == ProgressReported.KIND:
                self.step = max(self.step, int(body["global_step"]))
            elif kind == Metrics.KIND:
                return group_by_step(point for point in _metric_points(body) if point[0] <= last_step)
            elif kind == Episodes.KIND:
                return [
                    ScalarsItem(step, at, {RETURN_TAG: _float_or_nan(value), LENGTH_TAG: float(length)})
                    for _, _, step, at, value, length in body["rows"]
                    if step <= last_step
                ]
        except (KeyError, TypeError, ValueError, AttributeError):
            pass  # an incomplete line of another program
        return []

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


def _metric_points(body: Mapping[str, Any]) -> Iterator[MetricPoint]:
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


def _hardware_item(body: Mapping[str, Any]) -> HardwareItem:
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
