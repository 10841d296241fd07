"""Proximal policy optimization for Atari games.

The agent sees the latest four frames through three convolutions, collects a rollout from several games, then updates
its policy on it for a few epochs, with a clipped loss that keeps the new policy close to the old one. It is a good
first choice for Atari: stable, fast in wall-clock time and robust to its settings. dqn_atari needs fewer game steps but
more computation. If four frames do not contain enough information, ppo_atari_lstm adds memory.

Paper: Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms", arXiv:1707.06347 (2017).
Details: Huang et al., "The 37 Implementation Details of Proximal Policy Optimization", ICLR Blog Track (2022).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms.ppo import categorical_loss
from cleanrl_worker.algorithms.settings import AtariConfig, PpoConfig
from cleanrl_worker.environments.atari import AtariEnvs, check_atari_env
from cleanrl_worker.evaluation.policies import CategoricalPolicy, image_network
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.conv_network import (
    CONV_LAYERS,
    CONV_NETWORK,
    ConvAgent,
    ConvNetworkSizes,
    infer_sizes,
    layer_shapes,
    orthogonal_weights,
    trunk_shapes,
)
from cleanrl_worker.learners.ppo_kernels import PpoLosses
from cleanrl_worker.learners.protocols import FramePpoSettings, PpoRolloutSettings
from cleanrl_worker.loops.on_policy_frames import FramePpoTraining, describe_run
from mosaic.worker.envs.atari import FRAME_SIZE_PX, FRAME_STACK

if TYPE_CHECKING:
    from torch import Tensor

    from cleanrl_worker.learners.torch_backend import TorchContext
    from cleanrl_worker.learners.torch_conv import PpoImageLearner, Weights
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "ppo_atari"
SIZES = ConvNetworkSizes()


class Config(AtariConfig, PpoConfig, defaults={"exp_name": NAME, "num_envs": 8, "clip_coef": 0.1}):
    """Settings of PPO for Atari games."""


class Agent(ConvAgent):
    """Actor and critic on a shared trunk of three convolutions and fully connected layers."""

    def __init__(self, action_count: int, sizes: ConvNetworkSizes = SIZES, channels: int = FRAME_STACK) -> None:
        super().__init__(
            {
                **trunk_shapes(channels, FRAME_SIZE_PX, sizes),
                **layer_shapes("actor", action_count, sizes.hidden[-1]),
                **layer_shapes("critic", 1, sizes.hidden[-1]),
            }
        )

    def initialize(self, rng: np.random.Generator) -> None:
        """Initialize orthogonally; a small last actor layer makes the first policy nearly uniform."""
        self.parameters = orthogonal_weights(self.shapes, rng, {"actor": 0.01, "critic": 1.0})


def outputs(weights: Weights, images: Tensor, architecture: Architecture = CONV_NETWORK) -> Tensor:
    """Return the actor's logits followed by the critic's value, [rows, actions + 1]."""
    from cleanrl_worker.learners.torch_conv import actor_critic_heads, conv_features

    return actor_critic_heads(weights, conv_features(weights, images, architecture))


def loss(
    weights: Weights, batch: Any, config: FramePpoSettings, forward: Callable[..., Tensor] = outputs
) -> tuple[Tensor, PpoLosses]:
    """Return PPO's loss of a minibatch of tensors; `forward` computes the outputs of the network."""
    result = forward(weights, batch.images, config.architecture)
    return categorical_loss(result[:, :-1], result[:, -1], batch, config)


def make_learner(
    arrays: Mapping[str, Array],
    shape: tuple[int, ...],
    config: PpoRolloutSettings,
    compute: TorchContext,
    forward: Callable[..., Tensor] = outputs,
) -> PpoImageLearner:
    from cleanrl_worker.learners.torch_conv import PpoImageLearner

    minibatch_loss = functools.partial(loss, config=config, forward=forward)
    act = functools.partial(forward, architecture=config.architecture)
    return PpoImageLearner(arrays, shape, act, minibatch_loss, config, compute)


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    actions = check_atari_env(NAME, env)
    return describe_run(Agent(actions, SIZES.with_architecture(config.architecture)), actions)


class Training(FramePpoTraining):
    name = NAME
    make_learner = staticmethod(make_learner)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    with closing(AtariEnvs.from_config(config, run.frames)) as games:
        agent = Agent(games.action_count, SIZES.with_architecture(config.architecture))
        Training(config, run, games, agent).train(resume)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    return image_policy(NAME, checkpoint)


def image_policy(name: str, checkpoint: Checkpoint) -> CategoricalPolicy:
    """Load the policy of a checkpoint of this algorithm or of one with the same network."""
    import torch

    from cleanrl_worker.learners.torch_conv import as_tensors

    base.check_checkpoint_algorithm(name, checkpoint)
    weights = as_tensors(state_dict_of(checkpoint), torch.device("cpu"), is_learned=False)
    network = image_network(
        functools.partial(outputs, weights, architecture=base.saved_architecture(checkpoint)), _channels(checkpoint)
    )
    return CategoricalPolicy(lambda images: network(images)[:, :-1], checkpoint.facts["first_action"])


def _channels(checkpoint: Checkpoint) -> int:
    """Return the channels of an observation: more than the frames where they also name the player."""
    first = checkpoint.weights.get(f"{CONV_LAYERS[0]}.weight")
    return FRAME_STACK if first is None else int(first.shape[1])


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save, in its order."""
    sizes = infer_sizes(checkpoint.weights, base.saved_architecture(checkpoint))
    agent = Agent(len(checkpoint.weights["actor.bias"]), sizes, _channels(checkpoint))
    agent.load_state_dict(checkpoint.weights)
    return agent.state_dict()
