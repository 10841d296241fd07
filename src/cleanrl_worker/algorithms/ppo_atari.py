"""Proximal policy optimization for Atari games.

The agent sees the latest four frames through three convolutions, collects a rollout from several games, then updates
its policy on it for a few epochs, with a clipped loss that keeps the new policy close to the old one. It is a good
first choice for Atari: stable, fast in wall-clock time and robust to its settings. dqn_atari needs fewer game steps but
more computation. If four frames do not contain enough information, ppo_atari_lstm adds memory.

Paper: Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms", arXiv:1707.06347 (2017).
Details: Huang et al., "The 37 Implementation Details of Proximal Policy Optimization", ICLR Blog Track (2022).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker import devices
from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms.settings import AtariConfig, PpoConfig
from cleanrl_worker.atari_envs import AtariEnvs, check_atari_env
from cleanrl_worker.conv_network import (
    ConvAgent,
    ConvNetworkSizes,
    infer_sizes,
    layer_shapes,
    orthogonal_weights,
    trunk_shapes,
)
from cleanrl_worker.loops.on_policy_frames import FramePpoTraining, describe_run
from mosaic.envs.atari import FRAME_SIZE_PX, FRAME_STACK

if TYPE_CHECKING:
    from torch import Tensor

    from cleanrl_worker.torch_backend import TorchContext
    from cleanrl_worker.torch_conv import PpoImageLearner
    from mosaic.run import Checkpoint, Run

Array = npt.NDArray[Any]
NAME = "ppo_atari"
SIZES = ConvNetworkSizes()


class Config(AtariConfig, PpoConfig, defaults={"exp_name": NAME, "num_envs": 8, "clip_coef": 0.1}):
    """Settings of PPO for Atari games."""


class Agent(ConvAgent):
    """Actor and critic on a shared trunk of three convolutions and a fully connected layer."""

    def __init__(self, action_count: int, sizes: ConvNetworkSizes = SIZES) -> None:
        super().__init__(
            {
                **trunk_shapes(FRAME_STACK, FRAME_SIZE_PX, sizes),
                **layer_shapes("actor", action_count, sizes.hidden),
                **layer_shapes("critic", 1, sizes.hidden),
            }
        )

    def initialize(self, rng: np.random.Generator) -> None:
        """Initialize orthogonally; a small last actor layer makes the first policy nearly uniform."""
        self.parameters = orthogonal_weights(self.shapes, rng, {"actor": 0.01, "critic": 1.0})


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    actions = check_atari_env(NAME, env)
    return describe_run(Agent(actions), actions)


class Training(FramePpoTraining):
    name = NAME

    def make_learner(self, compute: TorchContext) -> PpoImageLearner:
        from cleanrl_worker.torch_conv import PpoImageLearner

        return PpoImageLearner(self.agent.parameters, self.games.shape, self.config, compute)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    games = AtariEnvs(config.env_id, config.num_envs, config.seed, run.frames, settings=config.env_settings)
    with closing(games):
        Training(config, run, games, Agent(games.action_count, SIZES)).train(resume)


class ImagePolicy:
    """Acts on images [rows, 4, 84, 84] with a checkpoint's weights; needs torch."""

    def __init__(
        self, weights: Mapping[str, Array], first_action: int, logits: Callable[[dict[str, Tensor], Tensor], Tensor]
    ) -> None:
        import torch

        from cleanrl_worker.torch_conv import as_tensors

        torch.set_num_threads(devices.thread_count())
        self._weights = as_tensors(weights, torch.device("cpu"), is_learned=False)
        self._first_action = first_action
        self._logits = logits

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        """Return the most likely actions if `deterministic`, else samples."""
        import torch

        from cleanrl_worker.torch_conv import channels_last

        if observations.shape[1:] != (FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX):
            raise ValueError(
                f"observations are {observations.shape[1:]}; expected {(FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX)}"
            )
        with torch.no_grad():
            logits = self._logits(self._weights, channels_last(torch.as_tensor(observations))).numpy()
        scores = logits if deterministic else logits + rng.gumbel(size=logits.shape)
        return np.asarray(scores.argmax(1) + self._first_action)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    base.check_checkpoint_algorithm(NAME, checkpoint)
    return image_policy(checkpoint)


def image_policy(checkpoint: Checkpoint) -> ImagePolicy:
    from cleanrl_worker.torch_conv import actor_critic_heads, conv_features

    return ImagePolicy(
        state_dict_of(checkpoint),
        checkpoint.facts["first_action"],
        lambda weights, images: actor_critic_heads(weights, conv_features(weights, images))[:, :-1],
    )


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save, in its order."""
    agent = Agent(len(checkpoint.weights["actor.bias"]), infer_sizes(checkpoint.weights))
    agent.load_state_dict(checkpoint.weights)
    return agent.state_dict()
