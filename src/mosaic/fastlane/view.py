"""What one viewer sees of a run: some or all of its environments, each with its newest frame."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from .layout import Frame
from .place import Path, lane_indices
from .reader import CONNECTED, UNAVAILABLE, WAITING, LaneReader

LIST_S = 0.5
FIRST_LIST_S = 0.05
"""While there is nothing to see yet."""


class LaneView:
    """Watches the environments `envs` of a run, or all that have a lane. Call `look` often; it never waits."""

    def __init__(
        self,
        folder: Path,
        envs: Sequence[int] = (),
        *,
        rate_hz: float | None = None,
        budget: float | None = None,
        tell: Callable[..., None] | None = None,
    ) -> None:
        self.frames: dict[int, Frame | None] = {}
        """The newest of each environment; none before the first."""
        self._folder = folder
        self._envs = tuple(envs)
        self._wishes: dict[str, Any] = {"rate_hz": rate_hz, "budget": budget}
        self._readers: dict[int, LaneReader] = {}
        self._list_at = 0.0
        self._tell = tell
        self._told: set[str] = set()

    def look(self) -> bool:
        """Whether there is a new frame."""
        now = time.monotonic()
        if now >= self._list_at:
            self._list()
            self._list_at = now + (LIST_S if self._readers else FIRST_LIST_S)
        has_news = False
        for index, reader in self._readers.items():
            frame = reader.newest()
            if frame is not None:
                has_news = True
                self.frames[index] = frame
        self._report()
        return has_news

    def _list(self) -> None:
        """Environments come and go: a run starts, ends, or is resumed with a lane more or less."""
        wanted = self._envs or lane_indices(self._folder)
        for index in wanted:
            if index not in self._readers:
                self._readers[index] = LaneReader(self._folder, index, **self._wishes)
                self.frames[index] = None
        # While nothing is there, what was seen last stays to be seen.
        for index in [index for index in self._readers if wanted and index not in wanted]:
            del self._readers[index], self.frames[index]

    @property
    def state(self) -> str:
        """`connected` where one environment is, `unavailable` where none ever will be, else `waiting`."""
        states = {reader.state for reader in self._readers.values()}
        if CONNECTED in states:
            return CONNECTED
        return UNAVAILABLE if states == {UNAVAILABLE} else WAITING

    @property
    def reason(self) -> str:
        if self.state == WAITING:
            there = lane_indices(self._folder)
            if not there:
                return "this run publishes no frames yet"
            if self._envs and not set(self._envs) & set(there):
                return f"environment {self._envs[0]} cannot be watched; these can: {', '.join(map(str, there))}"
            return "no frame has come yet"
        return next((reader.reason for reader in self._readers.values() if reader.reason), "")

    @property
    def torn(self) -> int:
        return sum(reader.torn for reader in self._readers.values())

    @property
    def invalid(self) -> int:
        return sum(reader.invalid for reader in self._readers.values())

    def _report(self) -> None:
        """Says each thing once."""
        if self._tell is None:
            return
        state = self.state
        if state == CONNECTED:
            self._once("fastlane_connected", envs=len(self._readers))
        elif state == UNAVAILABLE:
            self._once("fastlane_unavailable", reason=self.reason)
        for reader in self._readers.values():
            if reader.invalid:
                self._once("fastlane_header_invalid", problem=reader.problem)
            if reader.gave_up:
                self._once("fastlane_frame_read_error", env=reader.index, torn=reader.torn)

    def _once(self, event: str, **facts: Any) -> None:
        if self._tell is not None and event not in self._told:
            self._told.add(event)
            self._tell(event, **facts)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()


def hud(frame: Frame) -> dict[str, Any]:
    """What stands beside a frame."""
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
