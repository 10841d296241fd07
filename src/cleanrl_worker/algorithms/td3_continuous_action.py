"""Twin delayed deep deterministic policy gradient, for continuous actions.

The agent learns Q-values from a replay buffer and a deterministic policy, and explores by adding noise to its actions.
Against overestimated Q-values it uses the minimum of two critics, adds noise to the target actions (target policy
smoothing) and updates the actor less often than the critics. It needs far fewer environment steps than PPO and less
computation than SAC, which explores better and needs less tuning. It improves DDPG.

Paper: Fujimoto, van Hoof, Meger, "Addressing Function Approximation Error in Actor-Critic Methods", arXiv:1802.09477
(2018).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field

from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms import ddpg_continuous_action as ddpg
from cleanrl_worker.algorithms.settings import LEARNING
from cleanrl_worker.learners.protocols import ActorCriticLearner
from cleanrl_worker.loops import actor_critic_replay
from cleanrl_worker.replay.buffers import Replay

if TYPE_CHECKING:
    from torch import Tensor

    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "td3_continuous_action"
NETWORK = ddpg.NETWORK


class Config(ddpg.DeterministicConfig, defaults={"exp_name": NAME}):
    """Settings of TD3."""

    policy_noise: float = Field(default=0.2, ge=0, le=10, json_schema_extra=LEARNING)
    """The standard deviation of the noise on target actions, relative to half an action's range."""
    noise_clip: float = Field(default=0.5, ge=0, le=10, json_schema_extra=LEARNING)
    """The clipping range of that noise."""


class Agent(ddpg.Agent):
    """First idea, twin critics: a deterministic actor, two critics, and target networks of all three."""

    critics = 2


def td_targets(networks: Any, batch: Any, config: Config) -> Tensor:
    """Return the critics' targets: r + γ (1 - d) min_k Q_target,k(s', a'), with the smaller of the twins' values.

    Second idea, target policy smoothing: a' is the target actor's action with clipped noise.
    """
    actions = ddpg.squash_to_bounds(networks.target_actor(batch.next_observations)[0], networks)
    if config.policy_noise:
        noise = (networks.sample_noise() * config.policy_noise).clamp(-config.noise_clip, config.noise_clip)
        low, high = networks.bias - networks.scale, networks.bias + networks.scale
        actions = (actions + noise * networks.scale).clamp(low, high)
    next_values = networks.targets(batch.next_observations, actions).squeeze(2).amin(0)
    return batch.rewards + (1 - batch.terminals) * config.gamma * next_values  # type: ignore[no-any-return]


def _learner(
    config: Config, agent: Agent, replay: Replay, rng: np.random.Generator, backend: str
) -> ActorCriticLearner:
    targets = functools.partial(td_targets, config=config)
    return ddpg.make_learner(config, agent, replay, rng, backend, targets, config.policy_noise, config.noise_clip)


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    return actor_critic_replay.check(NAME, config, env, Agent)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint.

    Third idea, delayed updates: actor and targets follow every `policy_frequency`-th update of the critics. CleanRL's
    DDPG, and so ours, has taken this over.
    """
    explore = functools.partial(ddpg.exploration, deviation=config.exploration_noise)
    actor_critic_replay.train(NAME, config, run, resume, Agent, _learner, explore, config.policy_frequency)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    agent = actor_critic_replay.load_agent(NAME, checkpoint, Agent, NETWORK)
    return actor_critic_replay.load_policy(
        checkpoint, agent, ddpg.exploration(agent, checkpoint.facts["config"]["exploration_noise"])
    )


def state_dict_of(checkpoint: Checkpoint) -> tuple[dict[str, Array], ...]:
    """Return the model that CleanRL's script would save: actor and critics."""
    return actor_critic_replay.trained_state_dicts(actor_critic_replay.load_agent(NAME, checkpoint, Agent, NETWORK))
