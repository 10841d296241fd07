"""What happens between updates: checkpoints, evaluations of the policy, and the end at a return to reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms.settings import AlgorithmConfig
from mosaic.run import Checkpoint
from mosaic.run.handle import RECENT_EPISODES

if TYPE_CHECKING:
    from mosaic.run import Run
    from mosaic.run.checkpoints import CheckpointPart

Array = npt.NDArray[Any]


class TrainingState(NamedTuple):
    """What a checkpoint contains."""

    weights: Mapping[str, Array]
    arrays: Mapping[str, Array | CheckpointPart]
    facts: dict[str, Any]


GetState = Callable[[bool], TrainingState]
"""Returns the state after the latest update; False: for an evaluation, so without a replay buffer."""


class Milestones:
    """Saves checkpoints, evaluates the policy and ends the training when they are due."""

    def __init__(
        self, name: str, config: AlgorithmConfig, run: Run, resume: Checkpoint | None, get_state: GetState
    ) -> None:
        self._name, self._config, self._run, self._get_state = name, config, run, get_state
        facts: Mapping[str, Any] = {} if resume is None else resume.facts
        self._saved_step: int = facts.get("global_step", -1)
        self._evaluated_step: int = facts.get("evaluated_step", 0)
        self._score: float | None = None
        """The mean return of the evaluation at that step."""
        # A training that has reached its goal is resumed in order to continue.
        self._goal = None if facts.get("is_goal_reached") else config.stop_at_return
        self._is_goal_reached: bool = facts.get("is_goal_reached", False)
        self._episode_count = 0

    def start(self, step: int) -> None:
        """Repeat an evaluation that was interrupted at the checkpoint that is resumed from."""
        if self._is_evaluation_due(step):
            self._evaluate(step)

    def update(self, step: int) -> None:
        """Do what is due after the update at `step`."""
        if self._is_evaluation_due(step):
            self._evaluate(step)
        elif self._goal is not None and not self._config.eval_every:
            self._check_recent_returns(step)
        if self._run.checkpoint_due(step):
            self.save(step)

    def finish(self, step: int) -> None:
        """Evaluate and save the last state, whose step is `step`, unless that was done."""
        if self._config.eval_every and self._evaluated_step != step and not self._run.is_ending:
            self._evaluate(step)
        if self._saved_step != step:
            self.save(step)

    def save(self, step: int) -> None:
        self._run.begin_checkpoint()
        state = self._get_state(True)
        facts = state.facts
        score: Any = "mean_return"
        if self._config.eval_every:
            facts = {**facts, "evaluated_step": self._evaluated_step}
            score = self._score if step == self._evaluated_step else None
        if self._is_goal_reached:
            facts = {**facts, "is_goal_reached": True}
        base.save_checkpoint(
            self._name, self._run, step, weights=state.weights, arrays=state.arrays, facts=facts, score=score
        )
        self._saved_step = step

    def _is_evaluation_due(self, step: int) -> bool:
        every = self._config.eval_every
        return every > 0 and step // every > self._evaluated_step // every and not self._run.is_ending

    def _evaluate(self, step: int) -> None:
        """Evaluate the policy and save it if it is the best one; a stop interrupts that without a result."""
        from cleanrl_worker.evaluation.during_training import evaluate_training

        run, state = self._run, self._get_state(False)
        base.abort_if_weights_not_finite(self._name, run, step, state.weights)
        arrays: Any = state.arrays
        checkpoint = Checkpoint(run.folder.checkpoint(step), step, dict(state.weights), arrays, state.facts, {})
        mean = evaluate_training(self._name, self._config, run, checkpoint)
        if mean is None:
            return
        self._evaluated_step, self._score = step, mean if math.isfinite(mean) else None
        if self._goal is not None and mean >= self._goal:
            self._reach_goal(f"the evaluation at step {step:,} had a mean return of {mean:.6g}")
        best = run.best_score
        if self._score is not None and (best is None or self._score > best):
            self.save(step)

    def _check_recent_returns(self, step: int) -> None:
        run = self._run
        if run.episode_count == self._episode_count or run.episode_count < RECENT_EPISODES:
            return
        self._episode_count = run.episode_count
        mean = run.mean_return
        assert self._goal is not None
        if mean is not None and mean >= self._goal:
            self._reach_goal(f"the last {RECENT_EPISODES} episodes until step {step:,} had a mean return of {mean:.6g}")

    def _reach_goal(self, how: str) -> None:
        self._run.end_reason = f"It reached stop_at_return = {self._goal:g}: {how}."
        self._is_goal_reached = True
