"""Proximal policy optimization with random network distillation for Atari games run by envpool.

For games with very sparse rewards, the agent gets an intrinsic reward for new observations. A fixed random network
computes features of each frame and a second network learns to predict them; a large prediction error means a new frame.
PPO maximizes the game's rewards and the intrinsic rewards with a value head each: extrinsic episodes end with a life,
intrinsic ones never. Use it for games such as Montezuma's Revenge, with many parallel games and a GPU. If random play
finds rewards, ppo_atari_envpool is cheaper.

Paper: Burda, Edwards, Storkey, Klimov, "Exploration by Random Network Distillation", arXiv:1810.12894 (2018).
Games: Weng et al., "EnvPool: A Highly Parallel Reinforcement Learning Environment Execution Engine", arXiv:2206.10558.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field

from cleanrl_worker.algorithms import base, ppo_atari
from cleanrl_worker.algorithms.ppo import categorical_loss
from cleanrl_worker.algorithms.settings import LEARNING, ROLLOUT, RUN, EnvpoolConfig
from cleanrl_worker.environments.envpool_games import (
    STICKY_ACTION_PROBABILITY,
    EnvpoolEnvs,
    check_envpool_env,
    make_envpool_env,
    open_games,
)
from cleanrl_worker.environments.normalization import FrameMoments, IntrinsicRewardScaler
from cleanrl_worker.environments.vector import EpisodeEnd
from cleanrl_worker.evaluation.policies import CategoricalPolicy, image_network
from cleanrl_worker.learners import ppo_kernels
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.conv_network import (
    KERNEL_SIZES_AND_STRIDES,
    ConvAgent,
    ConvNetworkSizes,
    Shapes,
    copy_checked,
    layer_shapes,
    orthogonal_weights,
    trunk_shapes,
)
from cleanrl_worker.learners.protocols import FramePpoSettings, PpoRolloutSettings
from cleanrl_worker.loops.on_policy_frames import AverageReturn, Columns, FramePpoTraining, describe_run
from mosaic.contracts.payload import EnvId
from mosaic.worker.envs.atari import FRAME_SIZE_PX, FRAME_STACK

if TYPE_CHECKING:
    from torch import Tensor

    from cleanrl_worker.learners.torch_backend import TorchContext
    from cleanrl_worker.learners.torch_conv import Weights
    from cleanrl_worker.learners.torch_rnd import RndLearner
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "ppo_rnd_envpool"
NETWORK = Architecture((256, 448), "relu")
SIZES = ConvNetworkSizes(hidden=NETWORK.hidden)
"""The hidden layers of the heads are as wide as the last of these."""
FEATURES = 512
"""The number of features of predictor and target."""
STICKINESS = STICKY_ACTION_PROBABILITY
"""The probability of repeating the previous action, unless the game's id determines it."""
REPORTED_LOSSES = ("value_loss", "policy_loss", "entropy", "old_approx_kl", "fwd_loss", "approx_kl")
make_env = functools.partial(make_envpool_env, repeat_action_probability=STICKINESS)
"""Makes the environment that `check` gets."""


class Config(EnvpoolConfig, ppo_atari.Config, defaults={
        "total_timesteps": 2_000_000_000, "exp_name": NAME, "num_envs": 128, "ent_coef": 0.001, **NETWORK.settings
    }):  # fmt: skip
    """Settings of PPO with random network distillation."""

    env_id: EnvId = Field(default="MontezumaRevenge-v5", json_schema_extra=RUN)
    """The game to train in, by its id in envpool (`MontezumaRevenge-v5`) or in Gymnasium."""
    learning_rate: float = Field(default=1e-4, gt=0, lt=1, json_schema_extra=LEARNING)
    """The learning rate of Adam; 5e-5 to 5e-4 are usual."""
    gamma: float = Field(default=0.999, ge=0, le=1, json_schema_extra=ROLLOUT)
    """The discount factor of the game's rewards."""
    clip_vloss: bool = Field(default=True, json_schema_extra=LEARNING)
    """Whether the loss of the extrinsic value is clipped in the same way."""
    vf_coef: float = Field(default=0.5, ge=0, le=100, json_schema_extra=LEARNING)
    """The weight of both value losses."""
    update_proportion: float = Field(default=0.25, gt=0, le=1, json_schema_extra=LEARNING)
    """The fraction of a minibatch that the predictor is trained on; with many games less, or it learns too fast."""
    int_coef: float = Field(default=1.0, ge=0, le=1000, json_schema_extra=ROLLOUT)
    """The weight of the intrinsic advantages."""
    ext_coef: float = Field(default=2.0, ge=0, le=1000, json_schema_extra=ROLLOUT)
    """The weight of the extrinsic advantages."""
    int_gamma: float = Field(default=0.99, ge=0, le=1, json_schema_extra=ROLLOUT)
    """The discount factor of intrinsic rewards."""
    num_iterations_obs_norm_init: int = Field(default=50, ge=1, le=100_000, json_schema_extra=ROLLOUT)
    """Rollouts with random actions at the start, to initialize the normalization of frames."""


class Agent(ConvAgent):
    """An actor and two critics on shared convolutions, the fixed target network, and its predictor."""

    def __init__(self, action_count: int, sizes: ConvNetworkSizes = SIZES, features: int = FEATURES) -> None:
        wide = sizes.hidden[-1]
        self.policy_shapes: Shapes = {
            **trunk_shapes(FRAME_STACK, FRAME_SIZE_PX, sizes),
            **layer_shapes("extra_layer.0", wide, wide),
            **layer_shapes("actor.0", wide, wide),
            **layer_shapes("actor.2", action_count, wide),
            **layer_shapes("critic_ext", 1, wide),
            **layer_shapes("critic_int", 1, wide),
        }
        """The acting network's shapes under CleanRL's names."""
        sight = {
            name.removeprefix("network."): shape
            for name, shape in trunk_shapes(1, FRAME_SIZE_PX, ConvNetworkSizes(sizes.channels, (features,))).items()
        }
        self.rnd_shapes: Shapes = {
            **{f"predictor.{name}": shape for name, shape in sight.items()},
            **layer_shapes("predictor.9", features, features),
            **layer_shapes("predictor.11", features, features),
            **{f"target.{name}": shape for name, shape in sight.items()},
        }
        super().__init__(self.policy_shapes | self.rnd_shapes)

    def initialize(self, rng: np.random.Generator) -> None:
        """Initialize orthogonally; small heads make the first policy nearly uniform and the first values small."""
        gains = {"extra_layer": 0.1, "actor": 0.01, "critic_ext": 0.01, "critic_int": 0.01}
        self.parameters = orthogonal_weights(self.shapes, rng, gains)

    def state_dict(self) -> dict[str, Array]:
        """Return the acting network's weights under CleanRL's keys, in torch's layout."""
        return {name: self.parameters[name] for name in self.policy_shapes}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Load the acting network, and predictor and target if they are present."""
        is_whole = any(name in state for name in self.rnd_shapes)
        self.parameters = copy_checked(self.shapes if is_whole else self.policy_shapes, state)


def outputs(weights: Weights, images: Tensor, architecture: Architecture = NETWORK) -> Tensor:
    """Return the actor's logits, the extrinsic and the intrinsic value, [rows, actions + 2]."""
    import torch
    from torch.nn.functional import linear

    from cleanrl_worker.learners.torch_conv import conv_features
    from cleanrl_worker.learners.torch_dense import ACTIVATIONS

    activate, _ = ACTIVATIONS[architecture.activation]
    hidden = conv_features(weights, images, architecture)
    logits = _layer(weights, "actor.2", activate(_layer(weights, "actor.0", hidden)))
    features = activate(_layer(weights, "extra_layer.0", hidden)) + hidden
    heads = torch.cat([weights["critic_ext.weight"], weights["critic_int.weight"]])
    values = linear(features, heads, torch.cat([weights["critic_ext.bias"], weights["critic_int.bias"]]))
    return torch.cat([logits, values], 1)


def rnd_features(weights: Weights, name: str, frames: Tensor) -> Tensor:
    """Return the features [rows, features] of the predictor or the target for normalized frames [rows, 1, 84, 84]."""
    from torch import relu_
    from torch.nn.functional import conv2d, leaky_relu_

    features = frames
    for number, (_, stride) in enumerate(KERNEL_SIZES_AND_STRIDES):
        layer = f"{name}.{2 * number}"
        features = leaky_relu_(conv2d(features, weights[f"{layer}.weight"], weights[f"{layer}.bias"], stride=stride))
    features = _layer(weights, f"{name}.7", features.flatten(1))
    for layer in (f"{name}.9", f"{name}.11") if name == "predictor" else ():
        features = _layer(weights, layer, relu_(features))
    return features


def _layer(weights: Weights, name: str, inputs: Tensor) -> Tensor:
    from torch.nn.functional import linear

    return linear(inputs, weights[f"{name}.weight"], weights[f"{name}.bias"])


def loss(
    weights: Weights, batch: Any, predicted: Tensor, predictor_mask: Tensor, config: FramePpoSettings
) -> tuple[Tensor, list[Tensor]]:
    """Return PPO's loss with both value losses plus the predictor's loss, and PPO's metrics with the latter."""
    result = outputs(weights, batch.images, config.architecture)
    ppo_loss, metrics = categorical_loss(result[:, :-2], result[:, -2], batch, config)
    intrinsic_value_loss = 0.5 * (result[:, -1] - batch.int_returns).square().mean()
    errors = (predicted - batch.features).square().mean(1)
    forward_loss = (errors * predictor_mask).sum() / predictor_mask.sum().clamp(min=1)
    value_loss, *others = metrics
    value_losses: Any = value_loss + intrinsic_value_loss.detach()
    total = ppo_loss + config.vf_coef * intrinsic_value_loss + forward_loss
    return total, [value_losses, *others, forward_loss.detach()]


def make_learner(
    arrays: Mapping[str, Array], shape: tuple[int, ...], config: PpoRolloutSettings, compute: TorchContext
) -> RndLearner:
    from cleanrl_worker.learners.torch_rnd import RndLearner

    forward = functools.partial(outputs, architecture=config.architecture)
    return RndLearner(arrays, shape, forward, rnd_features, functools.partial(loss, config=config), config, compute)


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    actions = check_envpool_env(NAME, env)
    return describe_run(Agent(actions, SIZES.with_architecture(config.architecture)), actions)


class Training(AverageReturn, FramePpoTraining):
    """PPO with intrinsic rewards: the last two outputs are the extrinsic and the intrinsic value."""

    name = NAME
    make_learner = staticmethod(make_learner)
    config: Config
    learner: RndLearner
    extra_outputs = 2

    def __init__(self, config: Config, run: Run, games: EnvpoolEnvs, agent: Agent) -> None:
        super().__init__(config, run, games, agent)
        self._next_frames = np.zeros((config.num_steps, config.num_envs, FRAME_SIZE_PX, FRAME_SIZE_PX), np.uint8)
        """The latest frame after each step, which the intrinsic reward is for."""
        self._game_ends: list[tuple[int, int, int]] = []
        """Step of the rollout, game and global step of each game that ended in the rollout."""
        self._frame_moments = FrameMoments(FRAME_SIZE_PX, FRAME_SIZE_PX)
        self._scale_rewards = IntrinsicRewardScaler(config.num_envs, config.int_gamma)

    # --- the normalization of frames

    def prepare(self) -> bool:
        is_initialized = self.global_step == 0 and self._play_randomly()
        self._set_normalization()
        return is_initialized

    def _play_randomly(self) -> bool:
        """Initialize the frame statistics with random actions; return False if the run was asked to stop meanwhile."""
        config, latest = self.config, self.observations[-1]
        for _ in range(config.num_iterations_obs_norm_init):
            for t in range(config.num_steps):
                self.games.step(self.rng.integers(self.action_count, size=config.num_envs), latest)
                self._next_frames[t] = latest[:, -1]
                if self.is_stopped():
                    return False
            self.games.finish_rollout(np.zeros(self.actions.shape, np.int64))
            self._frame_moments.add_frames(self._rows(self._next_frames))
        return True

    def _set_normalization(self) -> None:
        self.learner.set_normalization(self._frame_moments.mean, self._frame_moments.variance)

    # --- the rollout

    def begin_rollout(self) -> None:
        super().begin_rollout()
        self._game_ends.clear()

    def after_step(self, t: int, episode_ends: Sequence[EpisodeEnd]) -> None:
        self._next_frames[t] = self.observations[t + 1, :, -1]
        for end in episode_ends:
            self._next_frames[t, end.env] = end.observation[-1]
            if end.is_full_episode:
                self._game_ends.append((t, end.env, self.global_step))

    def _intrinsic_rewards(self) -> Array | None:
        """Return the prediction errors of the rollout [steps, games], scaled; None if the run was stopped."""
        errors = np.zeros(self.actions.shape, np.float32)
        for t, frames in enumerate(self._next_frames):
            errors[t] = self.learner.intrinsic_rewards(frames)
            if self.is_stopped():
                return None
        for t, env, step in self._game_ends:
            self.run.scalar("charts/episode_curiosity_reward", errors[t, env], step)
        return self._scale_rewards(errors)

    # --- the update

    def estimate(self, rewards: Array) -> Columns | None:
        config = self.config
        intrinsic_rewards = self._intrinsic_rewards()
        if intrinsic_rewards is None:
            return None
        self.outputs[-1] = self.last_outputs()
        self.bootstrap_truncated(rewards)
        values, int_values = self.state_values(self.outputs), self.outputs[:, :, -1]
        advantages = ppo_kernels.gae_advantages(rewards, values, self.dones, config.gamma, config.gae_lambda)
        # Intrinsic returns never end: otherwise the agent would avoid losing a life instead of exploring.
        int_advantages = ppo_kernels.gae_advantages(
            intrinsic_rewards, int_values, np.zeros_like(self.dones), config.int_gamma, config.gae_lambda
        )
        self._frame_moments.add_frames(self._rows(self._next_frames))
        self._set_normalization()
        return {
            "next_frames": self._rows(self._next_frames),
            "actions": self._rows(self.actions),
            "log_probs": self.log_probs(),
            "advantages": self._rows(config.ext_coef * advantages + config.int_coef * int_advantages),
            "returns": self._rows(advantages + values[:-1]),
            "values": self._rows(values[:-1]),
            "int_returns": self._rows(int_advantages + int_values[:-1]),
        }

    def update(self) -> bool:
        from cleanrl_worker.learners.torch_rnd import TARGET_CHUNK_ROWS

        for first_row in range(0, self.config.batch_size, TARGET_CHUNK_ROWS):
            self.learner.compute_target_features(first_row)
            if self.is_stopped():
                return False
        return super().update()

    def update_minibatch(self, rows: Array) -> None:
        predictor_mask = self.rng.random(self.config.minibatch_size, np.float32) < self.config.update_proportion
        self.learner.update(rows, predictor_mask)

    def losses(self, columns: Columns) -> tuple[dict[str, float], bool]:
        metrics, is_finite = self.learner.losses()
        return {name: metrics[name] for name in REPORTED_LOSSES}, is_finite

    # --- checkpoints

    def own_state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays, facts = super().own_state()
        counts = {"looks": self._frame_moments.count, "surprises": self._scale_rewards.moments.count}
        moments = {**self._frame_moments.arrays("looks"), **self._scale_rewards.arrays()}
        return {**arrays, **moments}, {**facts, **counts}

    def restore_own_state(self, resume: Checkpoint, is_exact: bool) -> None:
        super().restore_own_state(resume, is_exact)
        self._frame_moments.restore("looks", resume.arrays, resume.facts["looks"])
        self._scale_rewards.restore(resume.arrays, resume.facts["surprises"])


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    with closing(open_games(config, STICKINESS, run.frames)) as games:
        agent = Agent(games.action_count, SIZES.with_architecture(config.architecture), FEATURES)
        Training(config, run, games, agent).train(resume)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    state = checkpoint.weights

    def make_saved(sizes: ConvNetworkSizes) -> Agent:
        features = len(state["target.7.bias"]) if "target.7.bias" in state else FEATURES
        return Agent(len(state["actor.2.bias"]), sizes, features)

    return base.load_conv_agent(NAME, checkpoint, make_saved, NETWORK)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    import torch

    from cleanrl_worker.learners.torch_conv import as_tensors

    weights = as_tensors(state_dict_of(checkpoint), torch.device("cpu"), is_learned=False)
    architecture = base.saved_architecture(checkpoint, NETWORK)
    network = image_network(functools.partial(outputs, weights, architecture=architecture))
    return CategoricalPolicy(lambda images: network(images)[:, :-2], checkpoint.facts["first_action"])


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save, in its order, if it saved one."""
    return _load_agent(checkpoint).state_dict()
