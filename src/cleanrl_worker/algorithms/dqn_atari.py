"""Deep Q-learning for Atari games.

The agent sees the latest four frames through three convolutions, learns the Q-value of each action and acts
epsilon-greedily. Transitions are stored in a large replay buffer and learned from many times, with targets from an
older copy of the network. It needs fewer steps than ppo_atari and more computation per step; c51_atari and
rainbow_atari build on it and usually reach higher returns.

Paper: Mnih et al., "Human-level control through deep reinforcement learning", Nature 518 (2015).
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
from cleanrl_worker.algorithms.replay_settings import AtariValueConfig
from cleanrl_worker.algorithms.settings import LEARNING, EpsilonGreedyConfig
from cleanrl_worker.evaluation.policies import greedy_image_policy
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.conv_network import (
    CONV_NETWORK,
    ConvAgent,
    ConvNetworkSizes,
    dense_layer,
    layer_shapes,
    trunk_shapes,
    uniform_weights,
)
from cleanrl_worker.loops import value_frames
from cleanrl_worker.loops.replay_world import atari_world
from cleanrl_worker.replay.buffers import FrameReplay
from mosaic.worker.envs.atari import FRAME_SIZE_PX, FRAME_STACK

if TYPE_CHECKING:
    import torch

    from cleanrl_worker.learners.torch_conv import ImageInferenceStep
    from cleanrl_worker.learners.torch_replay import TargetNetworkLearner
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "dqn_atari"
SIZES = ConvNetworkSizes()
NETWORK = CONV_NETWORK
METRIC_NAMES = ("td_loss", "q_values")


class Config(
    AtariValueConfig,
    EpsilonGreedyConfig,
    defaults={"exp_name": NAME, "target_network_frequency": 1000, "end_e": 0.01, "exploration_fraction": 0.1},
):
    """Settings of deep Q-learning for Atari games."""

    tau: float = Field(default=1.0, gt=0, le=1, json_schema_extra=LEARNING)
    """The fraction by which each target update moves the target network towards the online network; 1 copies it."""


class Agent(ConvAgent):
    """A Q-network of three convolutions and fully connected layers."""

    def __init__(self, action_count: int, sizes: ConvNetworkSizes = SIZES, outputs_per_action: int = 1) -> None:
        self.action_count = action_count
        super().__init__(
            {
                **trunk_shapes(FRAME_STACK, FRAME_SIZE_PX, sizes),
                **layer_shapes(
                    dense_layer(0 if sizes.body else len(sizes.hidden)),
                    action_count * outputs_per_action,
                    sizes.hidden[-1],
                ),
            }
        )

    def initialize(self, rng: np.random.Generator) -> None:
        self.parameters = uniform_weights(self.shapes, rng)


# --- in torch


def q_values(
    weights: Mapping[str, torch.Tensor], images: torch.Tensor, architecture: Architecture = CONV_NETWORK
) -> torch.Tensor:
    """Return the Q-values [rows, actions] for images [rows, 84, 84, 4]."""
    import torch

    from cleanrl_worker.learners.torch_conv import conv_features

    hidden, head = conv_features(weights, images, architecture), dense_layer(architecture.layer_count)
    return torch.nn.functional.linear(hidden, weights[f"{head}.weight"], weights[f"{head}.bias"])


def loss(
    weights: Any, target: Any, batch: Any, gamma: float, architecture: Architecture = CONV_NETWORK
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the squared TD error with targets from the target network, and the reported metrics."""
    import torch

    with torch.no_grad():
        next_values = q_values(target, batch.next_observations, architecture).amax(1)
        td_targets = batch.rewards + gamma * next_values * (1 - batch.terminals)
    values = q_values(weights, batch.observations, architecture).gather(1, batch.actions[:, None])[:, 0]
    error = torch.nn.functional.mse_loss(values, td_targets)
    return error, torch.stack([error, values.mean()]).detach()


def _learner(
    config: Config, agent: Agent, target: Mapping[str, Array], replay: FrameReplay
) -> tuple[TargetNetworkLearner, ImageInferenceStep]:
    """Return the learner, and the function from images to Q-values."""
    from cleanrl_worker.learners.torch_backend import TorchContext
    from cleanrl_worker.learners.torch_replay import ReplayFeed, TargetNetworkLearner, make_inference_step

    compute = TorchContext.from_settings(config)
    feed = ReplayFeed(replay, config.batch_size, FRAME_STACK + 1, compute)
    td_loss = functools.partial(loss, gamma=config.gamma, architecture=config.architecture)
    learner = TargetNetworkLearner(
        agent.parameters, target, td_loss, feed, config.learning_rate,
        epsilon=1e-8, metric_names=METRIC_NAMES, compute=compute,
    )  # fmt: skip
    forward = functools.partial(q_values, learner.weights, architecture=config.architecture)
    return learner, make_inference_step(replay, agent.action_count, forward, compute)


# --- training


def make_agent(config: Config, action_count: int) -> Agent:
    return Agent(action_count, SIZES.with_architecture(config.architecture))


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    return value_frames.check(NAME, config, env, make_agent)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    with atari_world(config, run, num_envs=config.num_envs) as world:
        value_frames.train(NAME, config, run, resume, world, make_agent, _learner)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    return base.load_conv_agent(NAME, checkpoint, lambda sizes: Agent(checkpoint.facts["shape"]["actions"], sizes))


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    import torch

    from cleanrl_worker.learners.torch_conv import as_tensors

    weights = as_tensors(_load_agent(checkpoint).parameters, torch.device("cpu"), is_learned=False)
    values = functools.partial(q_values, weights, architecture=base.saved_architecture(checkpoint))
    return greedy_image_policy(checkpoint, values)


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save."""
    return _load_agent(checkpoint).state_dict()
