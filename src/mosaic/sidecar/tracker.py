"""The interface of a tracker, and the items that are logged to it. A tracker that raises is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mosaic.sidecar.tracking_request import TrackedRunInfo


class Tracker(Protocol):
    name: str
    row_count: int
    """Rows of scalars logged so far."""

    def start(self, run_info: TrackedRunInfo) -> None: ...

    def log_settings(self, values: Mapping[str, Any]) -> None:
        """Logs every hyperparameter, including defaults."""

    def log_scalars(self, step: int, at: float, values: Mapping[str, float]) -> None: ...

    def log_hardware(self, at: float, values: Mapping[str, float]) -> None: ...

    def log_video(self, path: Path, step: int) -> None: ...

    def log_checkpoint(self, path: Path, step: int, aliases: tuple[str, ...]) -> None:
        """`aliases` are `last`, `best` or both."""

    def finish(self, outcome: str | None) -> None:
        """`outcome` is the one that the worker reported; None where it reported none."""


class SettingsItem(NamedTuple):
    values: dict[str, Any]

    def send_to(self, tracker: Tracker) -> None:
        tracker.log_settings(*self)


class ScalarsItem(NamedTuple):
    step: int
    at: float
    values: dict[str, float]

    def send_to(self, tracker: Tracker) -> None:
        tracker.log_scalars(*self)


class HardwareItem(NamedTuple):
    at: float
    values: dict[str, float]

    def send_to(self, tracker: Tracker) -> None:
        tracker.log_hardware(*self)


class VideoItem(NamedTuple):
    path: Path
    step: int

    def send_to(self, tracker: Tracker) -> None:
        tracker.log_video(*self)


TrackerItem = SettingsItem | ScalarsItem | HardwareItem | VideoItem
