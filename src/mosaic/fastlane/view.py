"""One viewer's view of a run: some or all of its environments, each with its newest frame."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from .lane_files import StrPath, lane_indices
from .layout import Frame
from .reader import CONNECTED, UNAVAILABLE, WAITING, LaneReader

LIST_INTERVAL_S = 0.5
FIRST_LIST_INTERVAL_S = 0.05
"""Before the first lane appears."""


class LaneView:
    """Watches the environments `envs` of a run, or all that have a lane. Call `poll` often; it never blocks."""

    def __init__(
        self,
        folder: StrPath,
        envs: Sequence[int] = (),
        *,
        rate_hz: float | None = None,
        budget: float | None = None,
        log_event: Callable[..., None] | None = None,
    ) -> None:
        self.frames: dict[int, Frame | None] = {}
        """The newest frame of each environment; None before the first."""
        self._folder = folder
        self._envs = tuple(envs)
        self._reader_options: dict[str, Any] = {"rate_hz": rate_hz, "budget": budget}
        self._readers: dict[int, LaneReader] = {}
        self._next_list_at = 0.0
        self._log_event = log_event
        self._logged_events: set[str] = set()

    def poll(self) -> set[int]:
        """Read new frames; return the environments that have one."""
        now = time.monotonic()
        if now >= self._next_list_at:
            self._update_readers()
            self._next_list_at = now + (LIST_INTERVAL_S if self._readers else FIRST_LIST_INTERVAL_S)
        new = set()
        for index, reader in self._readers.items():
            frame = reader.read_newest()
            if frame is not None:
                new.add(index)
                self.frames[index] = frame
        self._log_state()
        return new

    def _update_readers(self) -> None:
        """Add and remove readers: a run starts, ends, or is resumed with another number of lanes."""
        indices = self._envs or lane_indices(self._folder)
        for index in indices:
            if index not in self._readers:
                self._readers[index] = LaneReader(self._folder, index, **self._reader_options)
                self.frames[index] = None
        # While there are no lanes, the last frames remain visible.
        for index in [index for index in self._readers if indices and index not in indices]:
            del self._readers[index], self.frames[index]

    @property
    def state(self) -> str:
        """`connected` if one environment is, `unavailable` if all are, else `waiting`."""
        states = {reader.state for reader in self._readers.values()}
        if CONNECTED in states:
            return CONNECTED
        return UNAVAILABLE if states == {UNAVAILABLE} else WAITING

    @property
    def reason(self) -> str:
        if self.state == WAITING:
            available = lane_indices(self._folder)
            if not available:
                return "this run publishes no frames yet"
            if self._envs and not set(self._envs) & set(available):
                return f"environment {self._envs[0]} cannot be watched; available: {', '.join(map(str, available))}"
            return "no frame yet"
        return next((reader.reason for reader in self._readers.values() if reader.reason), "")

    @property
    def torn_reads(self) -> int:
        return sum(reader.torn_reads for reader in self._readers.values())

    @property
    def invalid_files(self) -> int:
        return sum(reader.invalid_files for reader in self._readers.values())

    def _log_state(self) -> None:
        """Log each kind of event once."""
        if self._log_event is None:
            return
        state = self.state
        if state == CONNECTED:
            self._log_once("fastlane_connected", envs=len(self._readers))
        elif state == UNAVAILABLE:
            self._log_once("fastlane_unavailable", reason=self.reason)
        for reader in self._readers.values():
            if reader.invalid_files:
                self._log_once("fastlane_header_invalid", problem=reader.problem)
            if reader.failed_reads:
                self._log_once("fastlane_frame_read_error", env=reader.index, torn=reader.torn_reads)

    def _log_once(self, event: str, **fields: Any) -> None:
        if self._log_event is not None and event not in self._logged_events:
            self._logged_events.add(event)
            self._log_event(event, **fields)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()


def hud_fields(frame: Frame) -> dict[str, Any]:
    """Return what a heads-up display shows with a frame."""
    return {
        "episode": frame.episode,
        "step": frame.step,
        "reward": frame.reward,
        "return": frame.episodic_return,
        "rendered_at": frame.rendered_at,
        "rate_hz": frame.rate_hz,
        "pace": frame.pace,
        "number": frame.number,
    }
