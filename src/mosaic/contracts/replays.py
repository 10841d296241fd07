"""What a replay reports. One JSON object per line, between processes and with `--json`."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, NamedTuple

from mosaic.contracts.model import Contract
from mosaic.contracts.views import RewardView, SessionState

EXPORT_SUFFIXES = (".mp4", ".gif", ".jsonl")


class ReplayMessage(RewardView):
    """A line that a replay prints."""


class ReplayDifference(ReplayMessage):
    """The first step at which a simulation is not the recorded episode."""

    step: int
    recorded_reward: float | list[float] | None = None
    """None where the observation is what differs."""
    simulated_reward: float | list[float] | None = None
    """None where the simulation has ended and the recorded episode has not."""
    endings: tuple[str, str] | None = None
    """Of the recorded and of the simulated episode, where these are what differs."""
    compared: str = ""
    """`observation`, or `observation or frame`, where that is what differs."""
    equal_at_step: int | None = None
    """Where it was compared last and did not differ; None if it differs from the start."""

    def describe(self) -> str:
        if self.endings is not None:
            recorded, simulated = self.endings
            return f"At step {self.step:,} the recorded episode is {recorded}, the simulated one is {simulated}."
        if self.compared and self.equal_at_step is None:
            return f"The {self.compared} at step {self.step:,} is another one than that of the recorded episode."
        if self.compared:
            return (
                f"The {self.compared} at step {self.step:,} is not that of the recorded episode; at step "
                f"{self.equal_at_step:,} it was."
            )
        if self.simulated_reward is None:
            return f"The simulation ended at step {self.step:,}; the recorded episode is longer."
        rewards = f"{self.recorded_reward}, the simulated one {self.simulated_reward}"
        return f"At step {self.step:,} the recorded reward is {rewards}."


class ReplayReport(ReplayMessage):
    """How one episode was simulated again."""

    episode: int
    steps: int
    total_reward: float
    ending: str
    is_identical: bool | None
    """None where it was not simulated again; `note` says why."""
    compared: tuple[str, ...] = ()
    """What was compared: `rewards` and `ending`, and what the recording has hashes of."""
    difference: ReplayDifference | None = None
    note: str = ""
    warnings: tuple[str, ...] = ()
    """What is different from the machine that recorded it."""

    def describe(self) -> str:
        """Return the verdict in words."""
        if self.note or self.difference is not None:
            return self.note or ("" if self.difference is None else self.difference.describe())
        return "identical" if "observations" in self.compared else "identical rewards and ending; no more was recorded"


class EpisodeSummary(NamedTuple):
    """One row of the list of recorded episodes."""

    number: int
    """From 0."""
    steps: int
    total_reward: float
    ending: str
    actors: str
    """Who acted; empty in a training."""


class ReplayOpened(ReplayMessage):
    """The first reply of a player, and the reply to `refresh`: what the recording has."""

    env_id: str
    columns: tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], tuple[str, ...], tuple[str, ...]]
    """The fields of all episodes; by columns, because a training may have a hundred thousand."""
    rate_hz: float
    """Steps per second at the speed 1."""
    note: str = ""
    """Why it is not simulated again; empty where it is."""
    warnings: tuple[str, ...] = ()

    @cached_property
    def episodes(self) -> list[EpisodeSummary]:
        return list(map(EpisodeSummary, *self.columns))


class ReplayRequest(Contract):
    """A line to a player's standard input. `refresh` has a reply only if the recording has changed."""

    kind: Literal["seek", "refresh"] = "seek"
    id: int = 0
    """Repeated in the reply. A request that is replaced by a later one has no reply."""
    episode: int = 0
    step: int = 0
    """Steps since the reset; more than there are: the end."""


class FrameShape(ReplayMessage):
    """The frame whose bytes follow the line."""

    width: int
    height: int
    channels: Literal[3, 4]
    """3: RGB; 4: BGRX."""

    @property
    def size_bytes(self) -> int:
        return self.width * self.height * self.channels


class ReplayStep(ReplayMessage):
    """The reply to `seek`: one step of an episode."""

    id: int = 0
    steps: int
    """Of the whole episode, as recorded."""
    state: SessionState
    """After the step; `state.step` is where the replay is, which may be before the step that was requested."""
    is_end: bool = False
    verified_steps: int = 0
    """How many steps have been simulated and compared so far."""
    compared: tuple[str, ...] = ()
    """As in `ReplayReport`."""
    difference: ReplayDifference | None = None
    rewards: tuple[tuple[float, float], ...] | None = None
    """The lowest and highest reward in equal parts of the episode; only with its first reply."""
    frame: FrameShape | None = None
    frame_problem: str = ""
    """Why there is no frame."""


class ReplayFailed(ReplayMessage):
    """A reply instead of another: why that was not possible."""

    id: int = 0
    error: str
    """The name of the error's class."""
    message: str


class ExportProgress(ReplayMessage):
    """How much of an export is done."""

    done: int
    total: int
