"""The training loop of algorithms for discrete actions that learn from a replay buffer.

They act until the next gradient step is due, store what happened, take the step and move the target network. An
algorithm supplies its learner and how it explores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from cleanrl_worker.algorithms import base
from cleanrl_worker.learners.protocols import NonFiniteDetector
from cleanrl_worker.loops.milestones import Milestones, TrainingState
from cleanrl_worker.loops.replay_world import ReplayWorld
from mosaic.worker.envs.reproducible import random_state_to_json

if TYPE_CHECKING:
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
REPORT_EVERY = 100
"""Environment steps between reports of the losses."""


class ReplayLearner(NonFiniteDetector, Protocol):
    """Learns from a replay buffer, with a target network."""

    @property
    def values(self) -> Callable[[Array], Array]:
        """The function from observations to the network's output for each action [environments, actions]."""

    def update(self, replay: Any, step: int) -> bool:
        """Take one gradient step on a new sample; return False if the gradient is not finite."""

    def skip_update(self) -> None:
        """Do what is due instead of a gradient step while learning has not started."""

    def update_target(self, tau: float) -> None:
        """Set θ_target ← θ_target + τ (θ - θ_target)."""

    def metrics(self) -> dict[str, float]:
        """Return what to report of the latest update, by tag."""

    def checkpoint_state(self, replay: Any) -> tuple[Mapping[str, Array], dict[str, Array], int]:
        """Return the weights, the arrays to resume with, and the number of gradient steps; completes the buffer."""


class Exploration(Protocol):
    """How actions are chosen during training."""

    def begin(self, steps: Array) -> None:
        """Draw the random numbers of these environment steps together: the network does not change meanwhile."""

    def choose(self, t: int, observations: Array) -> Array:
        """Return the actions [environments] of the t-th of these steps."""


class EpsilonGreedy:
    """Chooses the action with the highest value or, with probability epsilon, a random one."""

    def __init__(self, config: Any, learner: ReplayLearner, action_count: int, rng: np.random.Generator) -> None:
        self._config, self._values, self._action_count, self._rng = config, learner.values, action_count, rng

    def begin(self, steps: Array) -> None:
        shape = (len(steps), self._config.num_envs)
        self._is_greedy = self._rng.random(shape) >= self._config.epsilons(steps)[:, None]
        self._choices = self._rng.integers(self._action_count, size=shape)
        self._needs_values = self._is_greedy.any(1).tolist()

    def choose(self, t: int, observations: Array) -> Array:
        choices: Array = self._choices[t]
        if self._needs_values[t]:
            np.copyto(choices, self._values(observations).argmax(1), where=self._is_greedy[t])
        return choices


Explore = Callable[[Any, Any, int, np.random.Generator], Exploration]
"""Makes the exploration from config, learner and number of actions."""


def train(
    name: str,
    config: Any,
    run: Run,
    resume: Checkpoint | None,
    world: ReplayWorld,
    make_learner: Callable[[ReplayWorld, np.random.Generator], ReplayLearner],
    explore: Explore = EpsilonGreedy,
) -> None:
    """Train until `total_timesteps` or until the run ends earlier; both end with a checkpoint.

    A cycle is the steps until the next gradient step. A run that is stopped within one resumes there: the random
    numbers of all its steps are drawn again. `make_learner` gives the learner new weights, or those of the checkpoint
    to resume from.
    """
    num_envs, frequency, total = config.num_envs, config.train_frequency, config.total_timesteps
    first_action, action_count = int(world.action_space.start), int(world.action_space.n)
    world.shape["actions"] = action_count
    rng = np.random.default_rng(config.seed)
    rewards = np.zeros((frequency, num_envs))
    learning_starts = config.learning_starts

    steps_of_cycle = 0
    """Those that were done of the current cycle."""

    # Start or resume.
    if resume is None:
        global_step = start_step = 0
        learner = make_learner(world, rng)
        world.start()
    else:
        base.check_resumable(name, world.shape, resume)
        global_step, steps_of_cycle = resume.facts["global_step"], resume.facts.get("steps_of_cycle", 0)
        start_step = global_step - steps_of_cycle * num_envs
        if global_step + num_envs > total:
            return
        learner = make_learner(world, rng)
        rng.bit_generator.state = resume.facts["rng"]
        if not world.restore(run, resume):
            learning_starts += global_step
    exploration = explore(config, learner, action_count, rng)
    rng_state = rng.bit_generator.state
    """That of the start of the cycle."""

    def get_state(is_checkpoint: bool) -> TrainingState:
        base.check_async_losses(name, run, global_step, num_envs * frequency, learner)
        weights, learner_arrays, adam_count = learner.checkpoint_state(world.replay)
        arrays, facts = world.checkpoint_state(config.checkpoint_replay_mb if is_checkpoint else 0)
        facts |= {
            "algorithm": name,
            "config": config.model_dump(mode="json"),
            "first_action": first_action,
            "global_step": global_step,
            "adam_count": adam_count,
            "steps_of_cycle": steps_of_cycle,
            "rng": random_state_to_json(rng_state),
        }
        return TrainingState(weights, {**arrays, **learner_arrays}, facts)

    milestones = Milestones(name, config, run, resume, get_state)
    milestones.start(global_step)
    started_at, started_step = time.monotonic(), global_step
    while global_step + num_envs <= total and not run.is_ending:
        # Act until the next gradient step, and store what happens.
        step_count = min(frequency - start_step // num_envs % frequency, (total - start_step) // num_envs)
        exploration.begin(start_step + num_envs * np.arange(step_count))
        for t in range(steps_of_cycle, step_count):
            choices = exploration.choose(t, world.observations)
            global_step += num_envs
            for end in world.step(choices + first_action, choices.reshape(world.stored_action_shape), rewards[t]):
                if end.is_full_episode:
                    run.episode(env=end.env, step=global_step, episodic_return=end.episodic_return, length=end.length)
            steps_of_cycle = t + 1
            if steps_of_cycle < step_count:
                run.update(global_step)
                if run.stop_requested:
                    break
        base.abort_if_rewards_not_finite(name, run, rewards[:steps_of_cycle], start_step)
        if steps_of_cycle < step_count:
            break

        # Update. If target updates were due between two gradient steps, they are done first, combined into one.
        if global_step > learning_starts:
            interval = config.target_network_frequency
            is_target_due = global_step % interval == 0
            missed_updates = global_step // interval - max(start_step, learning_starts) // interval - is_target_due
            if missed_updates > 0:
                learner.update_target(1 - (1 - config.tau) ** missed_updates)
            if global_step // num_envs % frequency == 0:
                is_finite = learner.update(world.replay, global_step)
                # Report.
                if not is_finite or global_step // REPORT_EVERY > start_step // REPORT_EVERY:
                    base.check_async_losses(name, run, global_step, num_envs * frequency, learner)
                    metrics = learner.metrics()
                    base.abort_if_not_finite(name, run, global_step, metrics, is_finite)
                    sps = int((global_step - started_step) / (time.monotonic() - started_at))
                    run.scalars(global_step, {**metrics, "charts/SPS": sps})
            if is_target_due:
                learner.update_target(config.tau)
        else:
            learner.skip_update()
        start_step, steps_of_cycle, rng_state = global_step, 0, rng.bit_generator.state
        milestones.update(global_step)
        run.update(global_step)
    milestones.finish(global_step)
