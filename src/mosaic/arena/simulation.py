"""Simulates a recorded episode again, step by step, and compares each reward with the recorded one."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from mosaic.arena.play_envs import PlayEnv, StepResult
from mosaic.arena.recording import RecordedEpisode, Recording, RecordingHeader
from mosaic.contracts.errors import BadInput
from mosaic.envs.families import FAMILIES

_ALWAYS_LISTED = ("gymnasium", "numpy")


@dataclass(frozen=True)
class Difference:
    """The first step at which a simulation is not the recorded episode."""

    step: int
    recorded_reward: float | list[float] | None
    simulated_reward: float | list[float] | None
    """None where one of them had ended."""

    def describe(self) -> str:
        if self.simulated_reward is None:
            return f"The simulation ended at step {self.step:,}; the recorded episode is longer."
        rewards = f"{self.recorded_reward}, the simulated one {self.simulated_reward}"
        return f"At step {self.step:,} the recorded reward is {rewards}."


class Simulation:
    """One recorded episode in an environment: forward by steps, anywhere by `seek`."""

    def __init__(self, env: PlayEnv, episode: RecordedEpisode) -> None:
        self.env = env
        self.episode = episode
        self.difference: Difference | None = None
        """Where it first differed from the recording; what follows is another episode."""
        self._reset()

    def _reset(self) -> None:
        self.env.reset(self.episode.seed, self.episode.random_state)
        self._is_over = False

    @property
    def position(self) -> int:
        """Steps since the reset."""
        return self.env.steps

    @property
    def is_at_end(self) -> bool:
        return self.position >= len(self.episode) or self._is_over

    def step(self) -> StepResult:
        """Take the next recorded action."""
        if self.is_at_end:
            raise BadInput("The episode is at its end.")
        index = self.position
        result = self.env.step(self.env.from_row(self.episode.actions[index]))
        self._is_over = result.ending != "running"
        recorded = self.episode.rewards[index]
        if self.difference is None:
            simulated = np.asarray(self.env.reward_row(result.rewards), recorded.dtype)
            if simulated.tobytes() != recorded.tobytes():
                self.difference = Difference(index + 1, recorded.tolist(), simulated.tolist())
            elif self._is_over and index + 1 < len(self.episode):
                self.difference = Difference(index + 1, recorded.tolist(), None)
        return result

    def seek(self, index: int) -> None:
        """Go to the state after `index` steps; backwards means from the start."""
        index = min(max(index, 0), len(self.episode))
        if index < self.position:
            self._reset()
        while self.position < index and not self.is_at_end:
            self.step()


@dataclass(frozen=True)
class ReplayReport:
    """How one episode was simulated again."""

    episode: int
    length: int
    total_reward: float
    ending: str
    difference: Difference | None

    @property
    def is_identical(self) -> bool:
        return self.difference is None


def verify(
    recording: Recording, number: int, env: PlayEnv, on_step: Callable[[int], bool] | None = None
) -> ReplayReport:
    """Simulate an episode to its end; `on_step` returns False to stop early."""
    episode = recording.episode(number)
    simulation = Simulation(env, episode)
    while not simulation.is_at_end and simulation.difference is None:
        simulation.step()
        if on_step is not None and not on_step(simulation.position):
            break
    return ReplayReport(number, len(episode), episode.total_reward, episode.ending, simulation.difference)


# --- versions


def library_versions(family: str) -> dict[str, str]:
    """Return the versions of what simulates the environments of a family, and the kind of processor."""
    row = FAMILIES.get(family)
    packages = dict.fromkeys((*_ALWAYS_LISTED, *(row.packages if row else ())))
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(_DISTRIBUTIONS.get(package, package))
    return found | {"machine": platform.machine()}


_DISTRIBUTIONS = {"ale_py": "ale-py", "Box2D": "box2d"}


def describe_version_changes(header: RecordingHeader, family: str) -> list[str]:
    """Return what is different on this machine, which may simulate something else."""
    present = library_versions(family)
    return [
        f"{name} {present[name]} instead of {recorded}"
        for name, recorded in header.versions.items()
        if present.get(name, recorded) != recorded
    ]
