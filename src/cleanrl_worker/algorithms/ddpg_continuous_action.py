"""Deep deterministic policy gradient, for continuous actions.

The agent learns Q-values from a replay buffer and a deterministic policy, and explores by adding noise to its actions.
It is the simplest and cheapest algorithm of its kind, but tends to overestimate Q-values: TD3 corrects that and is the
better choice almost everywhere, SAC explores better. It is here for comparison and as the one to read first.

Paper: Lillicrap et al., "Continuous control with deep reinforcement learning", arXiv:1509.02971 (2015).
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
from cleanrl_worker.algorithms.replay_settings import ActorCriticReplayConfig
from cleanrl_worker.algorithms.settings import LEARNING, ROLLOUT
from cleanrl_worker.evaluation.policies import Sample
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.control_kernels import DeterministicKernel
from cleanrl_worker.learners.perceptron import ActorCriticNetworks
from cleanrl_worker.learners.protocols import ActorCriticLearner
from cleanrl_worker.loops import actor_critic_replay
from cleanrl_worker.replay.buffers import Replay

if TYPE_CHECKING:
    from torch import Tensor

    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "ddpg_continuous_action"
NETWORK = Architecture((256, 256), "relu")
HEADS = ("fc_mu",)


class DeterministicConfig(
    ActorCriticReplayConfig, defaults={"env_id": "Hopper-v5", "total_timesteps": 1_000_000, **NETWORK.settings}
):
    """Settings of DDPG and of what builds on it."""

    learning_rate: float = Field(default=3e-4, gt=0, lt=1, json_schema_extra=LEARNING)
    """The learning rate of actor and critics; 1e-4 to 1e-3 are usual."""
    exploration_noise: float = Field(default=0.1, ge=0, le=10, json_schema_extra=ROLLOUT)
    """The standard deviation of the exploration noise, relative to half an action's range; 0.1 to 0.3 are usual."""


class Config(DeterministicConfig, defaults={"exp_name": NAME}):
    """Settings of DDPG."""


class Agent:
    """A deterministic actor, one critic, and target networks of both."""

    critics = 1

    def __init__(self, observation_size: int, low: Array, high: Array, architecture: Architecture = NETWORK) -> None:
        self.networks = ActorCriticNetworks(observation_size, low.size, architecture, HEADS, self.critics, True)
        self.scale = ((high.astype(np.float64) - low) / 2).astype(np.float32)
        self.bias = ((high.astype(np.float64) + low) / 2).astype(np.float32)

    def state_dict(self) -> dict[str, Array]:
        """Return the weights under CleanRL's keys with its network names as prefixes, in torch's layout."""
        bounds = {"actor.action_scale": self.scale, "actor.action_bias": self.bias}
        return {**bounds, **self.networks.state_dict()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.networks.load_state_dict(state)


def exploration(agent: Agent, deviation: float) -> Sample:
    """Return the function from the actor's outputs to actions with Gaussian noise, relative to half their range."""
    scale, bias = agent.scale.ravel(), agent.bias.ravel()

    def sample(outputs: Array, rng: np.random.Generator | None) -> Array:
        noise = 0.0 if rng is None else deviation * rng.standard_normal(outputs.shape, np.float32)
        return np.asarray((np.tanh(outputs) + noise) * scale + bias)

    return sample


# --- the losses in torch; the numpy kernel implements their gradients by hand


def squash_to_bounds(outputs: Tensor, networks: Any) -> Tensor:
    """Return the actions of an actor's outputs."""
    return outputs.tanh() * networks.scale + networks.bias  # type: ignore[no-any-return]


def td_targets(networks: Any, batch: Any, gamma: float) -> Tensor:
    """Return the critic's targets: r + γ (1 - d) Q_target(s', μ_target(s'))."""
    actions = squash_to_bounds(networks.target_actor(batch.next_observations)[0], networks)
    next_values = networks.targets(batch.next_observations, actions)[0, :, 0]
    return batch.rewards + (1 - batch.terminals) * gamma * next_values  # type: ignore[no-any-return]


def critic_loss(networks: Any, batch: Any, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum of the critics' mean squared errors, and each critic's error and mean value."""
    values = networks.critics(batch.observations, batch.actions).squeeze(2)
    errors = ((values - targets) ** 2).mean(1)
    return errors.sum(), errors.detach(), values.detach().mean(1)


def actor_loss(networks: Any, batch: Any) -> Tensor:
    """Return the policy loss: -E[Q_1(s, μ(s))]."""
    actions = squash_to_bounds(networks.actor(batch.observations)[0], networks)
    return -networks.critics.first()(batch.observations, actions).mean()  # type: ignore[no-any-return]


def _learner(
    config: Config, agent: Agent, replay: Replay, rng: np.random.Generator, backend: str
) -> ActorCriticLearner:
    return make_learner(config, agent, replay, rng, backend, functools.partial(td_targets, gamma=config.gamma))


def make_learner(
    config: Any,
    agent: Agent,
    replay: Replay,
    rng: np.random.Generator,
    backend: str,
    td_targets: Any,
    policy_noise: float = 0.0,
    noise_clip: float = 0.0,
) -> ActorCriticLearner:
    """Make the learner in numpy, or in torch with these targets of the critics."""
    rates = (config.learning_rate, config.learning_rate)
    if backend == "numpy":
        return DeterministicKernel(
            agent.networks, replay, config, rates, agent.scale, agent.bias, rng,
            policy_noise=policy_noise, noise_clip=noise_clip,
        )  # fmt: skip
    from cleanrl_worker.learners.torch_backend import TorchContext
    from cleanrl_worker.learners.torch_control import ActorCriticLosses, DeterministicActorLearner

    compute, losses = TorchContext.from_settings(config), ActorCriticLosses(td_targets, critic_loss, actor_loss)
    return DeterministicActorLearner(agent.networks, replay, config, rates, agent.scale, agent.bias, compute, losses)


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    return actor_critic_replay.check(NAME, config, env, Agent)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    explore = functools.partial(exploration, deviation=config.exploration_noise)
    actor_critic_replay.train(NAME, config, run, resume, Agent, _learner, explore, config.policy_frequency)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    agent = actor_critic_replay.load_agent(NAME, checkpoint, Agent, NETWORK)
    return actor_critic_replay.load_policy(
        checkpoint, agent, exploration(agent, checkpoint.facts["config"]["exploration_noise"])
    )


def state_dict_of(checkpoint: Checkpoint) -> tuple[dict[str, Array], ...]:
    """Return the model that CleanRL's script would save: actor and critic."""
    return actor_critic_replay.trained_state_dicts(actor_critic_replay.load_agent(NAME, checkpoint, Agent, NETWORK))
