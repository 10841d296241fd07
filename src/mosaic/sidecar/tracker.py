"""What a tracker is: something that is told what a run does. It may fail at any word; then it is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mosaic.sidecar.tracking_request import TrackedRunInfo


class Tracker(Protocol):
    name: str
    row_count: int
    """Of scalars, so far."""

    def start(self, run_info: TrackedRunInfo) -> None: ...

    def log_settings(self, values: Mapping[str, Any]) -> None:
        """Every hyper-parameter, defaults too."""

    def log_scalars(self, step: int, at: float, values: Mapping[str, float]) -> None: ...

    def log_hardware(self, at: float, values: Mapping[str, float]) -> None: ...

    def log_video(self, path: Path, step: int) -> None: ...

    def log_checkpoint(self, path: Path, step: int, aliases: tuple[str, ...]) -> None:
        """`names` are `last`, `best` or both."""

    def finish(self, outcome: str | None) -> None:
        """How the worker said that it ended; none where it did not say."""


class SettingsItem(NamedTuple):
    values: dict[str, Any]

    def send_to(self, tracker: Tracker) -> None:
        tracker.log_settings(self.values)


class ScalarsItem(NamedTuple):
    step: int
    at: float
    values: dict[str, float]

    def send_to(self, tracker: Tracker) -> None:
        tracker.log_scalars(self.step, self.at, self.values)


class HardwareItem(NamedTuple):
    at: float
    values: dict[str, float]

    def send_to(self, tracker: Tracker) -> None:
        tracker.log_hardware(self.at, self.values)


class VideoItem(NamedTuple):
    path: Path
    step: int

    def send_to(self, tracker: Tracker) -> None:
        tracker.log_video(self.path, self.step)


TrackerItem = SettingsItem | ScalarsItem | HardwareItem | VideoItem
