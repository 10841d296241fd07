"""What a tracker is: something that is told what a run does. It may fail at any word; then it is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mosaic.sidecar.wishes import Facts


class Tracker(Protocol):
    name: str
    rows: int
    """Of scalars, so far."""

    def start(self, facts: Facts) -> None: ...

    def settings(self, values: Mapping[str, Any]) -> None:
        """Every hyper-parameter, defaults too."""

    def scalars(self, step: int, at: float, values: Mapping[str, float]) -> None: ...

    def hardware(self, at: float, values: Mapping[str, float]) -> None: ...

    def video(self, path: Path, step: int) -> None: ...

    def checkpoint(self, path: Path, step: int, names: tuple[str, ...]) -> None:
        """`names` are `last`, `best` or both."""

    def finish(self, outcome: str | None) -> None:
        """How the worker said that it ended; none where it did not say."""


class Settings(NamedTuple):
    values: dict[str, Any]

    def give(self, tracker: Tracker) -> None:
        tracker.settings(self.values)


class Scalars(NamedTuple):
    step: int
    at: float
    values: dict[str, float]

    def give(self, tracker: Tracker) -> None:
        tracker.scalars(self.step, self.at, self.values)


class Hardware(NamedTuple):
    at: float
    values: dict[str, float]

    def give(self, tracker: Tracker) -> None:
        tracker.hardware(self.at, self.values)


class Video(NamedTuple):
    path: Path
    step: int

    def give(self, tracker: Tracker) -> None:
        tracker.video(self.path, self.step)


Item = Settings | Scalars | Hardware | Video
