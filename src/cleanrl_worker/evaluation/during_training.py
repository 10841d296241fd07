"""Evaluates the policy of a training that then continues as if it had not been evaluated."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from cleanrl_worker.algorithms.settings import AlgorithmConfig
from cleanrl_worker.evaluation.loading import policy_env_maker
from cleanrl_worker.registry import load_algorithm
from mosaic.contracts.names import EVAL_LENGTH_TAG, EVAL_RETURN_TAG
from mosaic.worker.checkpoints import Checkpoint
from mosaic.worker.evaluation import MAX_EPISODE_STEPS, evaluate, summarize
from mosaic.worker.evaluation_batches import SUMMARY_METRICS, first_evaluation_seed, warn_of_truncation
from mosaic.worker.run import Run


def evaluate_training(name: str, config: AlgorithmConfig, run: Run, checkpoint: Checkpoint) -> float | None:
    """Play the episodes, log them at the checkpoint's step and return their mean return; NaN if it is not finite.

    Return None if the run was stopped meanwhile. The seeds are those of `mosaic eval`, the same at each evaluation, so
    that the results differ by policy only.
    """
    step, first_seed, started = checkpoint.step, first_evaluation_seed(config.seed), time.monotonic()

    def should_continue(_: int) -> bool:
        run.update(step)
        return not run.stop_requested

    with preserve_random_states():
        episodes = evaluate(
            load_algorithm(name).load_policy(checkpoint),
            partial(policy_env_maker(name, checkpoint.path, checkpoint.arrays), config.env_id, **config.env_settings),
            range(first_seed, first_seed + config.num_eval_episodes),
            on_step=should_continue,
        )
    if len(episodes) < config.num_eval_episodes:
        return None
    for episode in episodes:
        run.scalars(step, {EVAL_RETURN_TAG: episode.episodic_return, EVAL_LENGTH_TAG: episode.length})
    if any(episode.length >= MAX_EPISODE_STEPS for episode in episodes):
        warn_of_truncation(run, config.env_id)
    summary = summarize(episodes)
    run.scalars(step, {f"eval/{key}": summary[key] for key in SUMMARY_METRICS if summary[key] is not None})
    mean: float | None = summary["avg_return"]
    duration_s = round(time.monotonic() - started, 3)
    run.event("evaluated", step=step, episodes=len(episodes), avg_return=mean, duration_s=duration_s)
    return float("nan") if mean is None else mean


@contextmanager
def preserve_random_states() -> Iterator[None]:
    """Restore the random states that environments and networks share with the training."""
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch is not None:
            torch.set_rng_state(states[2])
