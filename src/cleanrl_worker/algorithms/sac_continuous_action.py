"""Soft actor-critic for continuous actions.

The agent learns Q-values from a replay buffer, and a stochastic policy that maximizes the return plus the entropy of
its actions; the weight of the entropy is tuned automatically. It needs far fewer environment steps than PPO, at many
times the computation per step: a good first choice if steps are expensive, as with robots and simulated physics. If
steps are cheap, ppo_continuous_action is faster in wall-clock time. TD3 is a deterministic alternative.

Paper: Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", arXiv:1812.05905 (2018).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field

from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms.ddpg_continuous_action import critic_loss
from cleanrl_worker.algorithms.replay_settings import ActorCriticReplayConfig
from cleanrl_worker.algorithms.settings import LEARNING
from cleanrl_worker.evaluation.policies import Sample
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.control_kernels import LOG_EPSILON, LOG_STD_MAX, LOG_STD_MIN, SacKernel
from cleanrl_worker.learners.flat_network import HALF_LOG_TWO_PI
from cleanrl_worker.learners.perceptron import ActorCriticNetworks
from cleanrl_worker.learners.protocols import ActorCriticLearner
from cleanrl_worker.loops import actor_critic_replay
from cleanrl_worker.replay.buffers import Replay

if TYPE_CHECKING:
    from torch import Tensor

    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "sac_continuous_action"
NETWORK = Architecture((256, 256), "relu")
HEADS = ("fc_mean", "fc_logstd")


class Config(
    ActorCriticReplayConfig,
    defaults={
        "env_id": "Hopper-v5", "total_timesteps": 1_000_000, "exp_name": NAME, "learning_starts": 5_000,
        **NETWORK.settings,
    },
):  # fmt: skip
    """Settings of soft actor-critic."""

    policy_lr: float = Field(default=3e-4, gt=0, lt=1, json_schema_extra=LEARNING)
    """The learning rate of the actor; 1e-4 to 1e-3 are usual."""
    q_lr: float = Field(default=1e-3, gt=0, lt=1, json_schema_extra=LEARNING)
    """The learning rate of the critics and of the entropy coefficient; 3e-4 to 1e-3 are usual."""
    policy_frequency: int = Field(default=2, ge=1, le=1000, json_schema_extra=LEARNING)
    """Updates of the critics between updates of the actor, which then does as many steps at once."""
    target_network_frequency: int = Field(default=1, ge=1, json_schema_extra=LEARNING)
    """Updates of the critics between updates of the target networks."""
    alpha: float = Field(default=0.2, gt=0, le=100, json_schema_extra=LEARNING)
    """The entropy coefficient, if it is not tuned."""
    autotune: bool = Field(default=True, json_schema_extra=LEARNING)
    """Whether the entropy coefficient is tuned to reach an entropy of -1 per action dimension."""


class Agent:
    """A squashed Gaussian actor, two critics, and target networks of the critics."""

    def __init__(
        self,
        observation_size: int,
        low: Array,
        high: Array,
        architecture: Architecture = NETWORK,
        critics: int = 2,
        critic_outputs: int = 1,
    ) -> None:
        self.networks = ActorCriticNetworks(
            observation_size, low.size, architecture, HEADS, critics, False, critic_outputs=critic_outputs
        )
        self.scale = ((high.astype(np.float64) - low) / 2).astype(np.float32)
        self.bias = ((high.astype(np.float64) + low) / 2).astype(np.float32)
        self.log_alpha = np.zeros(1, np.float32)

    def state_dict(self) -> dict[str, Array]:
        """Return the weights under CleanRL's keys with its network names as prefixes, in torch's layout."""
        bounds = {"actor.action_scale": self.scale, "actor.action_bias": self.bias}
        return {**bounds, **self.networks.state_dict(), "log_alpha": self.log_alpha}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.networks.load_state_dict(state)
        self.log_alpha[...] = state["log_alpha"]


def exploration(agent: Agent) -> Sample:
    """Return the function from the actor's outputs to actions tanh(mean + noise * std), scaled to the bounds."""
    scale, bias = agent.scale.ravel(), agent.bias.ravel()

    def sample(outputs: Array, rng: np.random.Generator | None) -> Array:
        mean, log_std = np.split(outputs, 2, 1)
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (np.tanh(log_std) + 1)
        noise = 0.0 if rng is None else rng.standard_normal(mean.shape, np.float32)
        return np.asarray(np.tanh(mean + np.exp(log_std) * noise) * scale + bias)

    return sample


# --- the losses in torch; the numpy kernel implements their gradients by hand


def sample_squashed_gaussian(networks: Any, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions for an actor's outputs [rows, 2 × actions], and their log-probabilities."""
    import torch

    mean, log_std = outputs.chunk(2, 1)
    log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std.tanh() + 1)
    noise = networks.sample_noise()
    # torch.addcmul(a, b, c) = a + b ⊙ c is one kernel on a GPU.
    squashed = torch.addcmul(mean, log_std.exp(), noise).tanh()
    # The Gaussian's -log p(x) for x = mean + std * noise, less ½ log 2π per dimension, and the change of variables for
    # a = scale * tanh(x) + bias: log p(a) = log p(x) - log |da/dx|.
    negative_density = torch.addcmul(log_std, noise, noise, value=0.5)
    derivative = torch.addcmul(networks.scale + LOG_EPSILON, networks.scale * squashed, squashed, value=-1)
    log_probs = -(negative_density + derivative.log()).sum(1) - HALF_LOG_TWO_PI * squashed.shape[1]
    return torch.addcmul(networks.bias, squashed, networks.scale), log_probs


def td_targets(networks: Any, batch: Any, gamma: float) -> Tensor:
    """Return the critics' targets: r + γ (1 - d) (min_k Q_target,k(s', a') - α log π(a'|s')), a' ~ π(s')."""
    actions, log_probs = sample_squashed_gaussian(networks, networks.actor(batch.next_observations)[0])
    next_values = networks.targets(batch.next_observations, actions).squeeze(2).amin(0)
    soft_values = next_values - networks.log_alpha.exp() * log_probs
    return batch.rewards + (1 - batch.terminals) * gamma * soft_values  # type: ignore[no-any-return]


def actor_loss(networks: Any, batch: Any, outputs: Tensor) -> Tensor:
    """Return the policy loss: E[α log π(a|s) - min_k Q_k(s, a)], for the actor's outputs."""
    actions, log_probs = sample_squashed_gaussian(networks, outputs)
    values = networks.critics(batch.observations, actions).squeeze(2).amin(0)
    return (networks.log_alpha.detach().exp() * log_probs - values).mean()  # type: ignore[no-any-return]


def alpha_loss(networks: Any, outputs: Tensor) -> Tensor:
    """Return the loss of the temperature: -α E[log π(a|s) + H], with a target entropy H of -1 per action dimension."""
    _, log_probs = sample_squashed_gaussian(networks, outputs.detach())
    return (-networks.log_alpha.exp() * (log_probs - float(len(networks.scale)))).mean()  # type: ignore[no-any-return]


def _learner(
    config: Config, agent: Agent, replay: Replay, rng: np.random.Generator, backend: str
) -> ActorCriticLearner:
    if backend == "numpy":
        return SacKernel(
            agent.networks, replay, config, (config.policy_lr, config.q_lr), agent.scale, agent.bias, rng,
            **_policy_settings(config, agent),
        )  # fmt: skip
    targets = functools.partial(td_targets, gamma=config.gamma)
    return make_torch_learner(config, agent, replay, targets, critic_loss, actor_loss)


def make_torch_learner(
    config: Config, agent: Agent, replay: Replay, td_targets: Any, critic_loss: Any, actor_loss: Any
) -> ActorCriticLearner:
    """Make the learner in torch with these losses."""
    from cleanrl_worker.learners.torch_backend import TorchContext
    from cleanrl_worker.learners.torch_control import ActorCriticLosses, ContinuousSacLearner

    losses = ActorCriticLosses(td_targets, critic_loss, actor_loss, alpha_loss)
    return ContinuousSacLearner(
        agent.networks, replay, config, (config.policy_lr, config.q_lr), agent.scale, agent.bias,
        TorchContext.from_settings(config), losses, **_policy_settings(config, agent),
    )  # fmt: skip


def _policy_settings(config: Config, agent: Agent) -> dict[str, Any]:
    log_alpha = agent.log_alpha if config.autotune else None
    return {"policy_steps": config.policy_frequency, "alpha": config.alpha, "log_alpha": log_alpha}


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    return actor_critic_replay.check(NAME, config, env, Agent)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    frequency = config.target_network_frequency
    actor_critic_replay.train(NAME, config, run, resume, Agent, _learner, exploration, frequency)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    agent = actor_critic_replay.load_agent(NAME, checkpoint, Agent, NETWORK)
    return actor_critic_replay.load_policy(checkpoint, agent, exploration(agent))


def state_dict_of(checkpoint: Checkpoint) -> tuple[dict[str, Array], ...]:
    """Return actor and critics as CleanRL's TD3 script saves them; its SAC script saves no model."""
    return actor_critic_replay.trained_state_dicts(actor_critic_replay.load_agent(NAME, checkpoint, Agent, NETWORK))
