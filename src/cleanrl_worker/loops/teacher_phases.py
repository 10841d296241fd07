"""value_replay.py in phases, for the student of a trained policy: the teacher plays, it learns offline, it plays.

Teacher and student each start with new games and an empty buffer. Offline updates count as steps of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from cleanrl_worker.environments.vector import EpisodeEnd
from cleanrl_worker.loops.replay_world import ReplayWorld
from cleanrl_worker.loops.value_replay import EpsilonGreedy

if TYPE_CHECKING:
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
Phase = Literal["teacher", "offline", "online"]
COMPARED_EPISODES = 10
"""The student's latest returns that are compared with the teacher's mean."""


@dataclass
class PhasedWorld(ReplayWorld):
    """The games of all phases, and the returns that decide how much is distilled."""

    phase: Phase = "teacher"
    steps_to_refill: int = 0
    """The teacher's steps that the buffer lacks after a resume, because it was too large to save."""

    def step(self, actions: Array, stored_actions: Array, rewards: Array) -> Sequence[EpisodeEnd]:
        """Step each environment and store the transition; not offline. Only the student's episodes are returned."""
        if self.phase == "offline":
            return ()
        episode_ends = super().step(actions, stored_actions, rewards)
        if self.phase == "teacher":
            return ()
        returns = [float(end.episodic_return) for end in episode_ends if end.is_full_episode]
        if returns:
            self.facts["student_returns"] = (self.facts["student_returns"] + returns)[-COMPARED_EPISODES:]
        return episode_ends

    def restore(self, run: Run, resume: Checkpoint) -> bool:
        self.facts["student_returns"] = resume.facts["student_returns"]
        is_restored = super().restore(run, resume)
        config, step = resume.facts["config"], resume.facts["global_step"]
        if is_restored or step >= config["teacher_steps"] + config["offline_steps"]:
            return is_restored
        self.steps_to_refill = min(step, config["teacher_steps"])
        return True


class PhasedExploration(EpsilonGreedy):
    """Acts epsilon-greedily, by the teacher's values and then by the student's; between them, trains offline."""

    def __init__(
        self,
        world: PhasedWorld,
        run: Run,
        config: Any,
        learner: Any,
        action_count: int,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(config, learner, action_count, rng)
        self._world, self._learner = world, learner
        if world.steps_to_refill:
            self._refill(run)

    def begin(self, steps: Array) -> None:
        super().begin(steps)
        self._steps = steps.tolist()

    def choose(self, t: int, observations: Array) -> Array:
        step, world = self._steps[t], self._world
        world.phase = self._config.phase(step)
        if world.phase == "offline":
            self._learner.train_offline(step)
            return np.asarray(self._choices[t])
        if world.phase == "teacher":
            self._values = self._learner.teacher_values
        else:
            self._values = self._learner.values
            if step - self._config.num_envs < self._config.online_start:
                # The student's games and buffer are its own.
                world.start()
        return super().choose(t, observations)

    def _refill(self, run: Run) -> None:
        """Let the teacher fill the buffer again that was not saved."""
        world, num_envs = self._world, self._config.num_envs
        rewards, first_action = np.zeros(num_envs), int(world.action_space.start)
        for step in range(0, world.steps_to_refill, num_envs):
            self.begin(np.array([step]))
            choices = self.choose(0, world.observations)
            world.step(choices + first_action, choices.reshape(world.stored_action_shape), rewards)
            run.update(run.global_step)
            if run.is_ending:
                return
