"""Advantage actor-critic: the synchronous variant of A3C, for discrete and continuous actions.

The agent collects a few steps from several environments and takes one gradient step on them, which makes actions with a
positive advantage more likely. It is PPO without the ratio to an old policy, with one epoch and one minibatch: simple,
and fast per update, but ppo usually learns more from the same steps. Continuous actions are sampled from a Gaussian,
with observations and rewards normalized as in ppo_continuous_action.

Paper: Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", arXiv:1602.01783 (2016).
As a special case of PPO: Huang, Kanervisto, Raffin, Wang, Ontañón, Dossa, arXiv:2205.09123 (2022).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from cleanrl_worker.algorithms import base, ppo, ppo_continuous_action, run_checks
from cleanrl_worker.algorithms.ppo import Agent
from cleanrl_worker.algorithms.settings import AdvantageConfig
from cleanrl_worker.environments.normalized import NormalizedEnvs
from cleanrl_worker.environments.vector import VectorEnvs
from cleanrl_worker.learners.ppo_kernels import (
    CategoricalKernel,
    GaussianKernel,
    MultiCategoricalKernel,
    PpoKernel,
    PpoLosses,
    RolloutBatch,
    explained_variance,
)
from cleanrl_worker.learners.protocols import PpoLearner
from cleanrl_worker.loops.on_policy import (
    PpoTraining,
    choose_training,
    make_ppo_learner,
    open_environments,
)

if TYPE_CHECKING:
    import torch

    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

__all__ = ["Agent", "Config", "check", "load_policy", "loss", "state_dict_of", "train"]
Array = npt.NDArray[Any]
NAME = "a2c"


class Config(AdvantageConfig, defaults={
        "env_id": "CartPole-v1", "total_timesteps": 500_000, "exp_name": NAME, "learning_rate": 7e-4, "num_envs": 8,
        "num_steps": 5, "anneal_lr": False, "gae_lambda": 1.0, "ent_coef": 0.0, **ppo.NETWORK.settings,
    }):  # fmt: skip
    """Settings of A2C."""


def loss(module: Any, batch: Any, config: Config, terms: Callable[..., Any]) -> tuple[torch.Tensor, PpoLosses]:
    """Return the reference loss of a rollout of tensors.

    `terms` returns the log-probabilities of its actions, the mean entropy, and the values.
    """
    log_probs, entropy, values = terms(module, batch)
    policy_loss = -(batch.advantages * log_probs).mean()
    value_loss = ((values - batch.returns) ** 2).mean()
    metrics: Any = [value_loss.detach(), policy_loss.detach(), entropy.detach(), *entropy.new_zeros(3)]
    return policy_loss - config.ent_coef * entropy + config.vf_coef * value_loss, PpoLosses(*metrics)


def make_learner(
    config: Any, agent: base.FlatAgent, kernel: Callable[..., PpoKernel], terms: Callable[..., Any]
) -> PpoLearner:
    """Return the learner: in torch autograd of the loss, in numpy PPO's kernel.

    In PPO's first gradient step the ratio is 1, so that its gradient is that of the log-probability. PPO's value loss
    is half of the squared error.
    """
    settings = SimpleNamespace(
        norm_adv=False, clip_coef=math.inf, clip_vloss=False, ent_coef=config.ent_coef, vf_coef=2 * config.vf_coef,
        max_grad_norm=config.max_grad_norm,
    )  # fmt: skip
    return make_ppo_learner(
        config, agent, lambda network, rows, _: kernel(network, rows, settings), functools.partial(loss, terms=terms)
    )


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    return run_checks.check_any_actions(NAME, config, env, Agent, ppo_continuous_action.Agent)


class Training(PpoTraining):
    """One gradient step on all rows of a rollout."""

    name = NAME

    def update(self, batch: RolloutBatch) -> tuple[dict[str, float], bool] | None:
        learner = self.learner
        learner.begin_update(self.learning_rate)
        learner.run_epoch(batch, np.arange(self.config.batch_size))
        learner.sync_networks()
        losses = learner.losses()
        # Of the policy that collected the rollout, which is the one that the gradient was computed for.
        metrics = {
            "value_loss": float(np.mean((batch.values - batch.returns) ** 2)),
            "policy_loss": -float(np.mean(batch.advantages * batch.log_probs)),
            "entropy": losses.entropy,
        }
        is_finite = learner.is_gradient_finite and all(map(math.isfinite, losses))
        return {**metrics, **explained_variance(batch.returns, batch.values)}, is_finite


class DiscreteTraining(Training, ppo.Training):
    make_learner = staticmethod(functools.partial(make_learner, kernel=CategoricalKernel, terms=ppo.policy_terms))


class MultiTraining(Training, ppo.MultiTraining):
    def make_learner(self, config: Any, agent: base.FlatAgent) -> PpoLearner:
        kernel = functools.partial(MultiCategoricalKernel, counts=self._counts)
        return make_learner(config, agent, kernel, functools.partial(ppo.policy_terms, counts=self._counts))


class ContinuousTraining(Training, ppo_continuous_action.Training):
    make_learner = staticmethod(
        functools.partial(make_learner, kernel=GaussianKernel, terms=ppo_continuous_action.policy_terms)
    )


def make_environments(make_env: Callable[[], Any], *args: Any) -> VectorEnvs:
    """Make the environments; with continuous actions, their observations are normalized."""
    env = make_env()
    env.close()
    return (NormalizedEnvs if isinstance(env.action_space, Box) else VectorEnvs)(make_env, *args)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    with open_environments(config, run, make_environments) as environments:
        kind = choose_training(environments.action_space, DiscreteTraining, MultiTraining, ContinuousTraining)
        kind(config, run, environments).train(resume)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    base.check_checkpoint_algorithm(NAME, checkpoint)
    if "action.low" in checkpoint.arrays:
        return ppo_continuous_action.gaussian_policy(checkpoint)
    return ppo.categorical_policy(checkpoint)


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model in the order of torch: a checkpoint sorts the names."""
    if "actor_logstd" in checkpoint.weights:
        return ppo_continuous_action.state_dict_of(checkpoint)
    return ppo.state_dict_of(checkpoint)
