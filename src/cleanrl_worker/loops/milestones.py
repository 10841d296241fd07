"""What happens between updates: checkpoints, evaluations of the policy, and the end at a return to reach."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms.settings import AlgorithmConfig
from mosaic.worker.checkpoints import Checkpoint
from mosaic.worker.run import RECENT_EPISODES

if TYPE_CHECKING:
    from mosaic.worker.checkpoints import CheckpointPart
    from mosaic.worker.run import LogMark, Run

Array = npt.NDArray[Any]
KEPT_SHARE = 1 / 400
"""The share of the training's processor time that keeping its latest state may take."""
SLOW_UPDATE_S = 0.25
"""After an update that takes this long, with its rollout, the state is kept in any case, unless that takes long."""
COMPLETION_S = 1.0
"""How long an update may take that is completed after a stop."""


class TrainingState(NamedTuple):
    """What a checkpoint contains."""

    weights: Mapping[str, Array]
    arrays: Mapping[str, Array | CheckpointPart]
    facts: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.facts["global_step"])

    @property
    def is_trained(self) -> bool:
        """Whether there was a gradient step before it."""
        counts = self.facts["optimizer"]["counts"].values() if "optimizer" in self.facts else self.facts["adam_count"]
        return bool(np.any(list(counts) if not isinstance(counts, int) else counts))


class KeptState(NamedTuple):
    """The state after an update, to be saved if the next one is not completed."""

    state: TrainingState
    log: LogMark
    evaluated_step: int
    score: float | None


GetState = Callable[[bool], TrainingState]
"""Returns the current state; False: for an evaluation, so without a replay buffer."""
Keeping = Literal["nothing", "latest", "recent"]


class Milestones:
    """Saves checkpoints, evaluates the policy and ends the training when they are due.

    `keeping` says what is saved between two updates, as when the run is stopped there: `nothing` was kept, because
    training can be resumed from every step; or the state after the latest update; or, where updates follow fast, after
    a recent one (see KEPT_SHARE). `get_state` must return copies then.
    """

    def __init__(
        self,
        name: str,
        config: AlgorithmConfig,
        run: Run,
        resume: Checkpoint | None,
        get_state: GetState,
        keeping: Keeping = "nothing",
    ) -> None:
        self._name, self._config, self._run, self._get_state = name, config, run, get_state
        self._keeping = keeping
        self._kept: KeptState | None = None
        self._keep_at = self._keep_at_cpu_s = 0.0
        self._is_kept_latest = True
        self._completes_until: float | None = None
        facts: Mapping[str, Any] = {} if resume is None else resume.facts
        self._saved_step: int = facts.get("global_step", -1)
        self._is_trained = resume is not None and TrainingState({}, {}, resume.facts).is_trained
        self._evaluated_step: int = facts.get("evaluated_step", 0)
        self._score: float | None = None
        """The mean return of the evaluation at that step."""
        # A training that has reached its goal is resumed in order to continue.
        self._goal = None if facts.get("is_goal_reached") else config.stop_at_return
        self._is_goal_reached: bool = facts.get("is_goal_reached", False)
        self._episode_count = 0
        self.keep()
        run.save_latest = self._save_latest

    def keep(self) -> None:
        """Keep the current state, from which training can be resumed."""
        if self._keeping != "nothing":
            started = time.thread_time()
            self._kept = KeptState(self._get_state(True), self._run.mark_log(), self._evaluated_step, self._score)
            now = time.thread_time()
            interval_s = (now - started) / KEPT_SHARE
            self._keep_at_cpu_s = now + interval_s
            self._keep_at = time.monotonic() + max(interval_s, SLOW_UPDATE_S)
        self._is_kept_latest = True

    def is_abandoning(self) -> bool:
        """Return whether to abandon the current update after a stop. Where the one before was not kept, it is fast."""
        if self._completes_until is None:
            self._completes_until = time.monotonic() + COMPLETION_S
        return self._is_kept_latest or time.monotonic() > self._completes_until

    def start(self, step: int) -> None:
        """Repeat an evaluation that was interrupted at the checkpoint that is resumed from."""
        if self._is_evaluation_due(step):
            self._evaluate(step)

    def update(self, step: int) -> None:
        """Do what is due after the update at `step`."""
        is_saving = self._is_evaluation_due(step) or self._run.checkpoint_due(step)
        self._is_kept_latest = False
        is_due = time.monotonic() >= self._keep_at or time.thread_time() >= self._keep_at_cpu_s
        if self._keeping == "latest" or is_saving or is_due:
            self.keep()
        if self._is_evaluation_due(step):
            self._evaluate(step)
        elif self._goal is not None and not self._config.eval_every:
            self._check_recent_returns(step)
        if self._run.checkpoint_due(step):
            self.save(step)

    def finish(self, step: int | None) -> None:
        """Evaluate and save the last state, whose step is `step`, unless that was done; None: save the kept one.

        The kept one is saved where an update was abandoned: that was not a part of the training.
        """
        run = self._run
        if step is not None and self._config.eval_every and self._evaluated_step != step and not run.is_ending:
            self._evaluate(step)
        if step is None and self._kept is not None:
            run.global_step = self._kept.state.step
        if self._saved_step != (run.global_step if step is None else step):
            self._write(step, self._kept if step is None else None)
        if not self._is_trained:
            run.stop_note = "Nothing was trained yet."
        run.save_latest = None

    def save(self, step: int) -> None:
        self._write(step)

    def _save_latest(self) -> None:
        """Save what a stop would save now."""
        if self._saved_step != (self._run.global_step if self._kept is None else self._kept.state.step):
            self._write(None, self._kept, is_interim=True)

    def _current_state(self, step: int | None, is_checkpoint: bool = True) -> TrainingState:
        """Return the state at `step`; None: the latest that can be resumed from."""
        if self._kept is not None and step in (None, self._kept.state.step):
            return self._kept.state
        return self._get_state(is_checkpoint)

    def _write(self, step: int | None, kept: KeptState | None = None, is_interim: bool = False) -> None:
        self._run.begin_checkpoint()
        state = self._current_state(step)
        facts, evaluated_step, last_score = state.facts, self._evaluated_step, self._score
        if kept is not None:
            evaluated_step, last_score = kept.evaluated_step, kept.score
        score: Any = "mean_return"
        if self._config.eval_every:
            facts = {**facts, "evaluated_step": evaluated_step}
            score = last_score if state.step == evaluated_step else None
        if self._is_goal_reached:
            facts = {**facts, "is_goal_reached": True}
        base.save_checkpoint(
            self._name, self._run, state.step, weights=state.weights, arrays=state.arrays, facts=facts, score=score,
            log=None if kept is None else kept.log, is_interim=is_interim,
        )  # fmt: skip
        self._saved_step, self._is_trained = state.step, state.is_trained

    def _is_evaluation_due(self, step: int) -> bool:
        every = self._config.eval_every
        return every > 0 and step // every > self._evaluated_step // every and not self._run.is_ending

    def _evaluate(self, step: int) -> None:
        """Evaluate the policy and save it if it is the best one; a stop interrupts that without a result."""
        from cleanrl_worker.evaluation.during_training import evaluate_training

        run, state = self._run, self._current_state(step, is_checkpoint=False)
        base.abort_if_weights_not_finite(self._name, run, step, state.weights)
        arrays: Any = state.arrays
        checkpoint = Checkpoint(run.folder.checkpoint(step), step, dict(state.weights), arrays, state.facts, {})
        if self._kept is None:
            run.save_latest = None  # an evaluation has random states of its own
        mean = evaluate_training(self._name, self._config, run, checkpoint)
        run.save_latest = self._save_latest
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
