"""Robust policy optimization for continuous actions.

Like ppo_continuous_action with one change: in each epoch of an update, uniform noise within ±`rpo_alpha` is added to
every action mean. This keeps the policy from becoming deterministic too early and improves exploration and the final
return on many tasks; a few tasks with precise actions need a small `rpo_alpha` (0.01). Try it if ppo_continuous_action
gets stuck.

Paper: Rahman, Xue, "Robust Policy Optimization in Deep Reinforcement Learning", arXiv:2212.07536 (2022).
Based on: Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms", arXiv:1707.06347.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from pydantic import Field

from cleanrl_worker.algorithms import base, ppo_continuous_action, run_checks
from cleanrl_worker.algorithms.ppo_continuous_action import (
    Agent,
    environment_maker,
    gaussian_policy,
    loss,
    make_learner,
    state_dict_of,
)
from cleanrl_worker.algorithms.settings import LEARNING
from cleanrl_worker.learners.ppo_kernels import RolloutBatch
from cleanrl_worker.loops.on_policy import open_environments

if TYPE_CHECKING:
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

__all__ = ["Agent", "Config", "check", "load_policy", "loss", "make_learner", "state_dict_of", "train"]
NAME = "rpo_continuous_action"


class Config(ppo_continuous_action.Config, defaults={"total_timesteps": 8_000_000, "exp_name": NAME}):
    """Settings of RPO for continuous actions."""

    rpo_alpha: float = Field(default=0.5, ge=0, le=100, json_schema_extra=LEARNING)
    """The range of the uniform noise on action means in updates; 0.5 is usual, 0.01 for tasks with precise actions."""


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    return run_checks.check_continuous(NAME, config, env, Agent, base.with_image(config, env.observation_space))


class Training(ppo_continuous_action.Training):
    """PPO for continuous actions, with noise on the action means in each epoch."""

    name = NAME
    config: Config

    def run_epoch(self, batch: RolloutBatch) -> None:
        # Adding noise to the means is equivalent to subtracting it from the actions.
        mean_noise = self.rng.uniform(-self.config.rpo_alpha, self.config.rpo_alpha, batch.actions.shape)
        super().run_epoch(dataclasses.replace(batch, actions=(batch.actions - mean_noise).astype(np.float32)))


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    with open_environments(config, run, environment_maker(config, resume)) as environments:
        Training(config, run, environments).train(resume)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    base.check_checkpoint_algorithm(NAME, checkpoint)
    return gaussian_policy(checkpoint)
