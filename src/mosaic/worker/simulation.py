"""Simulates a recorded episode again, step by step, and compares rewards and observations with the recorded ones."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from mosaic.contracts.errors import BadInput
from mosaic.contracts.replays import ReplayDifference
from mosaic.worker.envs.families import EnvFamily
from mosaic.worker.play_envs import PlayEnv, StepResult
from mosaic.worker.recording import RecordedEpisode, RecordingHeader

_ALWAYS_LISTED = ("gymnasium", "numpy")


class Simulation:
    """One recorded episode in an environment: forward by steps, anywhere by `seek`."""

    def __init__(self, env: PlayEnv, episode: RecordedEpisode, hash_frame: Callable[[int], int] | None = None) -> None:
        """`hash_frame` adds the rendered frame to a hash, where the recording has those of frames."""
        self.env = env
        self.episode = episode
        self._hashes = dict(episode.hashes)
        self._hash_frame = hash_frame
        self._equal_at_step: int | None = None
        self.difference: ReplayDifference | None = None
        """Where it first differed from the recording; what follows is another episode."""
        self.verified_steps = 0
        """How many steps have been simulated and compared, at any time."""
        self._reset()

    def _reset(self) -> None:
        self.env.reset(self.episode.seed, self.episode.random_state)
        self._is_over = False
        self.last_actions: Mapping[str, Any] = {}
        """Of the last step, by agent."""
        self._compare_observation()

    def _compare_observation(self) -> None:
        step = self.position
        if self.difference is not None or step not in self._hashes:
            return
        value = self.env.hash_observation()
        if self._hash_frame is not None:
            value = self._hash_frame(value)
        if value == self._hashes[step]:
            self._equal_at_step = max(step, self._equal_at_step or 0)
        else:
            compared = "observation" if self._hash_frame is None else "observation or frame"
            self.difference = ReplayDifference(step=step, compared=compared, equal_at_step=self._equal_at_step)

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
        self.last_actions = self.env.from_row(self.episode.actions[index])
        result = self.env.step(self.last_actions)
        self._is_over = result.ending != "running"
        recorded = self.episode.rewards[index]
        if self.difference is None:
            is_last = index + 1 == len(self.episode)
            simulated = np.asarray(self.env.reward_row(result.rewards), recorded.dtype)
            if simulated.tobytes() != recorded.tobytes():
                self.difference = ReplayDifference(
                    step=index + 1, recorded_reward=recorded.tolist(), simulated_reward=simulated.tolist()
                )
            elif self._is_over and not is_last:
                self.difference = ReplayDifference(step=index + 1, recorded_reward=recorded.tolist())
            elif is_last and self.episode.is_complete and self._differs_in_ending(result):
                self.difference = ReplayDifference(
                    step=index + 1,
                    recorded_reward=recorded.tolist(),
                    simulated_reward=simulated.tolist(),
                    endings=(self.episode.ending, result.ending),
                )
            self._compare_observation()
            self.verified_steps = max(self.verified_steps, index + 1)
        return result

    def _differs_in_ending(self, result: StepResult) -> bool:
        """A limit of steps is not always the environment's own: only a terminal state must be one in both."""
        return (self.episode.ending == "terminated") != (result.ending == "terminated")

    def seek(self, index: int, is_superseded: Callable[[], bool] = lambda: False) -> None:
        """Go to the state after `index` steps; backwards means from the start. It stops on the way if superseded."""
        index = min(max(index, 0), len(self.episode))
        if index < self.position:
            self._reset()
        while self.position < index and not self.is_at_end and not is_superseded():
            self.step()


# --- versions


def library_versions(family: EnvFamily | None) -> dict[str, str]:
    """Return the versions of what simulates the environments of a family, and the kind of processor."""
    packages = dict.fromkeys((*_ALWAYS_LISTED, *(family.packages if family else ())))
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(_DISTRIBUTIONS.get(package, package))
    return found | {"machine": platform.machine()}


_DISTRIBUTIONS = {"ale_py": "ale-py", "Box2D": "box2d"}


def describe_version_changes(header: RecordingHeader, family: EnvFamily | None) -> list[str]:
    """Return what is different on this machine, which may simulate something else."""
    present = library_versions(family)
    return [
        f"{name} {present[name]} instead of {recorded}"
        for name, recorded in header.versions.items()
        if present.get(name, recorded) != recorded
    ]
