"""Simulates a recorded episode again, step by step, and compares each reward with the recorded one."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import numpy as np

from mosaic.arena.recording import RecordedEpisode, Recording, RecordingHeader
from mosaic.contracts.errors import BadInput
from mosaic.envs.families import FAMILIES
from mosaic.envs.reproducible import restore_random_state

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
        return (
            f"Step {self.step:,}: the recorded reward is {self.recorded_reward}, the simulated one {self.simulated_reward}."
        )


@dataclass(frozen=True)
class SimulatedStep:
    index: int
    """From 1; 0 is the reset."""
    observation: Any
    reward: Any
    is_over: bool
    info: Any


class RecordableEnv(Protocol):
    """What one interface needs to be simulated: Gymnasium's, or one of PettingZoo's."""

    def reset(self, seed: int | None, random_state: Any) -> tuple[Any, Any]:
        """Return the first observation and info."""
        ...

    def step(self, action: Any) -> tuple[Any, Any, bool, Any]:
        """Return observation, reward, whether the episode is over, and info."""
        ...

    def close(self) -> None: ...


class GymnasiumEnv:
    """A single agent. A lost life of an Atari game in training is followed by a reset in the same episode."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self._core = env.unwrapped
        self._takes_numbers = getattr(env.action_space, "shape", None) == ()
        self._was_seeded = False

    def reset(self, seed: int | None, random_state: Any) -> tuple[Any, Any]:
        if seed is None:
            if random_state is None:
                raise BadInput("The episode was recorded without a seed or a random state, so it cannot be simulated.")
            if not self._was_seeded:
                self.env.reset(seed=0)  # some environments create their generator then
            restore_random_state(self._core, random_state)
        self._was_seeded = True
        observation, info = self.env.reset(seed=seed)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, Any]:
        observation, reward, is_terminated, is_truncated, info = self.env.step(
            action.item() if self._takes_numbers else action
        )
        is_over = bool(is_terminated or is_truncated)
        if is_over and getattr(self._core, "is_game_over", True) is False:
            observation, info = self.env.reset()
            is_over = False
        return observation, reward, is_over, info

    def close(self) -> None:
        self.env.close()


def make_recorded_env(header: RecordingHeader) -> RecordableEnv:
    """Make the environment of a recording."""
    from mosaic.envs import make

    if header.preprocessing != "none":
        from mosaic.envs.atari import AtariEnv

        is_training = header.preprocessing == "atari_training"
        return GymnasiumEnv(AtariEnv(header.env_id, terminal_on_life_loss=is_training, clip_rewards=is_training))
    return GymnasiumEnv(make(header.env_id, **header.env_kwargs))


class Simulation:
    """One recorded episode in an environment: forward by steps, anywhere by `seek`."""

    def __init__(self, env: RecordableEnv, episode: RecordedEpisode) -> None:
        self.env = env
        self.episode = episode
        self.difference: Difference | None = None
        """Where it first differed from the recording; what follows is another episode."""
        self.current = self._reset()

    def _reset(self) -> SimulatedStep:
        observation, info = self.env.reset(self.episode.seed, self.episode.random_state)
        return SimulatedStep(0, observation, 0.0, False, info)

    @property
    def is_at_end(self) -> bool:
        return self.current.index >= len(self.episode) or self.current.is_over

    def step(self) -> SimulatedStep:
        """Take the next recorded action."""
        if self.is_at_end:
            raise BadInput("The episode is at its end.")
        index = self.current.index
        observation, reward, is_over, info = self.env.step(self.episode.actions[index])
        self.current = SimulatedStep(index + 1, observation, reward, is_over, info)
        recorded = self.episode.rewards[index]
        if self.difference is None:
            if np.asarray(reward, recorded.dtype).tobytes() != recorded.tobytes():
                self.difference = Difference(index + 1, recorded.tolist(), np.asarray(reward).tolist())
            elif is_over and index + 1 < len(self.episode):
                self.difference = Difference(index + 1, recorded.tolist(), None)
        return self.current

    def seek(self, index: int) -> SimulatedStep:
        """Go to the state after `index` steps; backwards means from the start."""
        index = min(max(index, 0), len(self.episode))
        if index < self.current.index:
            self.current = self._reset()
        while self.current.index < index and not self.is_at_end:
            self.step()
        return self.current


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
    recording: Recording, number: int, env: RecordableEnv, on_step: Callable[[int], bool] | None = None
) -> ReplayReport:
    """Simulate an episode to its end; `on_step` returns False to stop early."""
    episode = recording.episode(number)
    simulation = Simulation(env, episode)
    while not simulation.is_at_end and simulation.difference is None:
        simulation.step()
        if on_step is not None and not on_step(simulation.current.index):
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
