"""From a run's files to what trackers are told: each point once, in order, over all attempts of the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mosaic.contracts.events import Episodes, Finished, Hello, Hyperparameters, Metrics, Progress, Sample
from mosaic.contracts.folder import RunFolder
from mosaic.journal import Follower
from mosaic.sidecar.tracker import Hardware, Item, Scalars, Settings, Video

RETURN_TAG = "charts/episodic_return"
LENGTH_TAG = "charts/episodic_length"
Body = dict[str, Any]
Point = tuple[int, float, str, float]
"""Step, time, tag, value."""


class Feed:
    """`journal_from` is where this attempt begins in the journal; none: all attempts are over.

    Before an attempt's handshake nobody knows what of the earlier ones still counts, so until then nothing is given.
    """

    def __init__(self, folder: RunFolder, journal_from: int | None = None) -> None:
        self._folder = folder
        self._journal_from = journal_from
        self._followers: dict[Path, Follower] = {}
        self._keeper = Follower(folder.keeper)
        self._is_begun = False
        self._cuts: list[float] = []
        self._last_hello: float = math.inf
        self._hellos = 0
        self._videos: set[Path] = set()
        self.step = 0
        self.outcome: str | None = None
        """What the worker said last."""

    def read(self, is_over: bool = False) -> Iterator[Item]:
        """What is new. `is_over`: there will be no handshake any more, if there was none."""
        self._is_begun = self._is_begun or self._begin(is_over)
        if not self._is_begun:
            return
        for path in self._folder.journals():
            follower = self._followers.setdefault(path, Follower(path))
            while lines := follower.read():
                for line in lines:
                    yield from self._items(line.body, path == self._folder.journal)
        while lines := self._keeper.read():
            yield from (_hardware(line.body) for line in lines if line.body["kind"] == Sample.KIND)
        yield from self._new_videos()

    def _begin(self, is_over: bool) -> bool:
        hellos = list(_hellos(self._folder.journal))
        if self._journal_from is not None:
            earlier = sum(end <= self._journal_from for _, end in hellos)
            self._last_hello = earlier + 1  # what comes behind it is for the next attempt's sidecar
            if earlier and len(hellos) == earlier and not is_over:
                return False
            hellos = hellos[: earlier + 1]
        self._cuts = cuts([resumed_from for resumed_from, _ in hellos])
        return True

    def _items(self, body: Body, is_main: bool) -> Iterable[Item]:
        kind = body["kind"]
        if is_main and kind == Hello.KIND:
            self._hellos += 1
        if is_main and self._hellos > self._last_hello:
            return []
        try:
            if kind == Finished.KIND and is_main:
                self.outcome = str(body["outcome"])
            elif kind == Hyperparameters.KIND:
                return [Settings(dict(body["values"]))]
            elif kind == Progress.KIND:
                self.step = max(self.step, int(body["global_step"]))
            elif kind == Metrics.KIND:
                return rows(self._kept(metric_points(body), is_main))
            elif kind == Episodes.KIND:
                return [
                    Scalars(step, at, {RETURN_TAG: _number(value), LENGTH_TAG: float(length)})
                    for _, _, step, at, value, length in body["rows"]
                    if not is_main or step <= self._cut
                ]
        except (KeyError, TypeError, ValueError, AttributeError):
            pass  # a line of somebody else's program that lacks its facts
        return []

    def _kept(self, points: Iterable[Point], is_main: bool) -> Iterator[Point]:
        return (point for point in points if not is_main or point[0] <= self._cut)

    @property
    def _cut(self) -> float:
        return self._cuts[self._hellos - 1] if 0 < self._hellos <= len(self._cuts) else math.inf

    def _new_videos(self) -> list[Item]:
        """They appear under their names when they are whole."""
        if not self._folder.videos.is_dir():
            return []
        found = sorted(path for path in self._folder.videos.rglob("*.mp4") if not path.name.startswith("."))
        fresh = [path for path in found if path not in self._videos]
        self._videos.update(fresh)
        return [Video(path, self.step) for path in fresh]


def cuts(resumed: list[int | None]) -> list[float]:
    """By attempt: the last step that still counts. `resumed` says where each went on from; None: at the start."""
    found: list[float] = []
    bound = math.inf
    for begin in reversed(resumed):
        found.append(bound)
        bound = min(bound, -1 if begin is None else begin)
    return found[::-1]


def metric_points(body: Body) -> Iterator[Point]:
    for tag, points in body["series"].items():
        for step, at, value in points:
            yield int(step), float(at), str(tag), _number(value)


def rows(points: Iterable[Point]) -> list[Item]:
    """Points of one step are one row, and a tag that comes again begins the next."""
    made: list[Item] = []
    step, at, values = 0, 0.0, dict[str, float]()
    for point in sorted(points, key=lambda point: point[:2]):
        if values and (point[0] != step or point[2] in values):
            made.append(Scalars(step, at, values))
            values = {}
        step, at = point[:2]
        values[point[2]] = point[3]
    if values:
        made.append(Scalars(step, at, values))
    return made


def _hellos(journal: Path) -> Iterator[tuple[int | None, int]]:
    """Of each handshake: where it went on from, and the byte behind it."""
    follower = Follower(journal)
    while lines := follower.read():
        yield from ((line.body.get("resumed_from"), line.end) for line in lines if line.body["kind"] == Hello.KIND)


def _hardware(body: Body) -> Hardware:
    values = {"cpu": float(body["cpu_percent"]), "proc.memory.rssMB": float(body["rss_mb"])}
    for number, gpu in enumerate(body.get("gpus") or ()):
        values[f"gpu.{number}.gpu"] = gpu["util_percent"]
        values[f"gpu.{number}.memoryAllocatedBytes"] = gpu["memory_used_mb"] * 2**20
    return Hardware(body["at"], values)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def checkpoints(folder: RunFolder) -> dict[Path, tuple[str, ...]]:
    """The last and the best one, with what each is called; they are one where the last is the best."""
    found: dict[Path, tuple[str, ...]] = {}
    for name, link in (("last", folder.last_checkpoint), ("best", folder.best_checkpoint)):
        target = _target(link)
        if target is not None:
            found[target] = (*found.get(target, ()), name)
    return found


def _target(link: Path) -> Path | None:
    try:
        target = link.resolve(strict=True)
    except OSError:
        return None
    return target if target.is_dir() else None
