"""From a run's files to what trackers are told: each point once, in order, over all attempts of the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mosaic.contracts.events import Episodes, Finished, Hello, Hyperparameters, Metrics, ProgressReported, Sample
from mosaic.contracts.folder import RunFolder
from mosaic.journal import Follower
from mosaic.sidecar.tracker import HardwareItem, ScalarsItem, SettingsItem, TrackerItem, VideoItem

RETURN_TAG = "charts/episodic_return"
LENGTH_TAG = "charts/episodic_length"
EventBody = dict[str, Any]
MetricPoint = tuple[int, float, str, float]
"""Step, time, tag, value."""


class TrackerFeed:
    """`journal_from` is where this attempt begins in the journal; none: all attempts are over.

    Before an attempt's handshake nobody knows what of the earlier ones still counts, so until then nothing is given.
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
        """What the worker said last."""

    def read(self, is_over: bool = False) -> Iterator[TrackerItem]:
        """What is new. `is_over`: there will be no handshake any more, if there was none."""
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
            self._last_hello_index = earlier + 1  # what comes behind it is for the next attempt's sidecar
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
            pass  # a line of somebody else's program that lacks its facts
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
        """They appear under their names when they are whole."""
        if not self._folder.videos.is_dir():
            return []
        found = sorted(path for path in self._folder.videos.rglob("*.mp4") if not path.name.startswith("."))
        fresh = [path for path in found if path not in self._videos]
        self._videos.update(fresh)
        return [VideoItem(path, self.step) for path in fresh]


def last_valid_steps(resumed_from_steps: list[int | None]) -> list[float]:
    """By attempt: the last step that still counts. `resumed` says where each went on from; None: at the start."""
    found: list[float] = []
    bound = math.inf
    for begin in reversed(resumed_from_steps):
        found.append(bound)
        bound = min(bound, -1 if begin is None else begin)
    return found[::-1]


def metric_points(body: EventBody) -> Iterator[MetricPoint]:
    for tag, points in body["series"].items():
        for step, at, value in points:
            yield int(step), float(at), str(tag), _float_or_nan(value)


def group_by_step(points: Iterable[MetricPoint]) -> list[TrackerItem]:
    """Points of one step are one row, and a tag that comes again begins the next."""
    made: list[TrackerItem] = []
    step, at, values = 0, 0.0, dict[str, float]()
    for point in sorted(points, key=lambda point: point[:2]):
        if values and (point[0] != step or point[2] in values):
            made.append(ScalarsItem(step, at, values))
            values = {}
        step, at = point[:2]
        values[point[2]] = point[3]
    if values:
        made.append(ScalarsItem(step, at, values))
    return made


def _read_hellos(journal: Path) -> Iterator[tuple[int | None, int]]:
    """Of each handshake: where it went on from, and the byte behind it."""
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
    """The last and the best one, with what each is called; they are one where the last is the best."""
    found: dict[Path, tuple[str, ...]] = {}
    for name, link in (("last", folder.last_checkpoint), ("best", folder.best_checkpoint)):
        target = _resolve_link(link)
        if target is not None:
            found[target] = (*found.get(target, ()), name)
    return found


def _resolve_link(link: Path) -> Path | None:
    try:
        target = link.resolve(strict=True)
    except OSError:
        return None
    return target if target.is_dir() else None
