"""Parallelized Q-learning (PQN) for Atari games run by envpool.

Q-learning without replay buffer and target network: the agent collects a rollout from several games and fits the
Q-values to λ-returns for a few epochs. Layer norm keeps it stable. It needs a fraction of the memory of dqn_atari and
benefits from many parallel games. One call into envpool steps all games in its own threads.

Paper: Gallici et al., "Simplifying Deep Temporal Difference Learning", arXiv:2407.04811 (2024).
Games: Weng et al., "EnvPool: A Highly Parallel Reinforcement Learning Environment Execution Engine", arXiv:2206.10558.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms.settings import EnvpoolConfig, PqnConfig
from cleanrl_worker.environments.envpool_games import check_envpool_env, make_envpool_env, open_games
from cleanrl_worker.evaluation.policies import greedy_image_policy
from cleanrl_worker.learners import value_kernels
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.conv_network import (
    CONV_NETWORK,
    KERNEL_SIZES_AND_STRIDES,
    ConvAgent,
    ConvNetworkSizes,
    Shapes,
    layer_shapes,
    orthogonal_weights,
)
from cleanrl_worker.learners.protocols import PqnSettings
from cleanrl_worker.loops.on_policy_frames import AverageReturn, Columns, describe_run
from mosaic.worker.envs.atari import FRAME_SIZE_PX, FRAME_STACK

if TYPE_CHECKING:
    from torch import Tensor

    from cleanrl_worker.learners.torch_backend import TorchContext
    from cleanrl_worker.learners.torch_conv import RolloutLearner, Weights
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "pqn_atari_envpool"
SIZES = ConvNetworkSizes()
METRIC_NAMES = ("td_loss", "q_values")
RADAM_EPSILON = 1e-8
"""torch's default for RAdam."""
STICKINESS = 0.0
"""The probability of repeating the previous action, unless the game's id determines it."""
make_env = functools.partial(make_envpool_env, repeat_action_probability=STICKINESS)
"""Makes the environment that `check` gets."""


class Config(EnvpoolConfig, PqnConfig, defaults={
        "exp_name": NAME, "num_envs": 8, "end_e": 0.01, "exploration_fraction": 0.1
    }):  # fmt: skip
    """Settings of parallelized Q-learning for Atari games in envpool."""

    takes_network: ClassVar[bool] = False


class Agent(ConvAgent):
    """A Q-network of three convolutions and fully connected layers, each with layer norm before its ReLU."""

    def __init__(self, action_count: int, sizes: ConvNetworkSizes = SIZES) -> None:
        super().__init__({})
        self._norms: Shapes = {}
        seen, side = FRAME_STACK, FRAME_SIZE_PX
        for number, ((kernel, stride), channels) in enumerate(
            zip(KERNEL_SIZES_AND_STRIDES, sizes.channels, strict=True)
        ):
            side = (side - kernel) // stride + 1
            self.shapes |= layer_shapes(f"network.{3 * number}", channels, seen, kernel, kernel)
            self._add_norm(f"network.{3 * number + 1}", channels, side, side)
            seen = channels
        inputs = seen * side * side
        for index, units in enumerate(sizes.hidden):
            self.shapes |= layer_shapes(_dense_layer(index), units, inputs)
            self._add_norm(_dense_layer(index, is_norm=True), units)
            inputs = units
        self.shapes |= layer_shapes(_dense_layer(len(sizes.hidden)), action_count, inputs)

    def _add_norm(self, name: str, *shape: int) -> None:
        norm = {f"{name}.weight": shape, f"{name}.bias": shape}
        self._norms |= norm
        self.shapes |= norm

    def initialize(self, rng: np.random.Generator) -> None:
        """Initialize with orthogonal weights; layer norms start with gain 1 and offset 0."""
        layers = {name: shape for name, shape in self.shapes.items() if name not in self._norms}
        found = orthogonal_weights(layers, rng, {})
        found |= {
            name: np.full(shape, name.endswith("weight"), np.float32) for name, shape in self._norms.items()
        }  # fmt: skip
        self.parameters = {name: found[name] for name in self.shapes}


def _dense_layer(index: int, is_norm: bool = False) -> str:
    """Return CleanRL's name of a fully connected layer, or of the layer norm after it; the output follows the last."""
    return f"network.{10 + 3 * index + is_norm}"


def q_values(weights: Weights, images: Tensor, architecture: Architecture = CONV_NETWORK) -> Tensor:
    """Return the Q-values [rows, actions] for images [rows, 84, 84, channels]; a layer norm follows every layer."""
    from torch import relu_
    from torch.nn.functional import conv2d, layer_norm, linear

    from cleanrl_worker.learners.torch_dense import ACTIVATIONS

    features = images.permute(0, 3, 1, 2).float()
    for number, (_, stride) in enumerate(KERNEL_SIZES_AND_STRIDES):
        name, norm = f"network.{3 * number}", f"network.{3 * number + 1}"
        weight = weights[f"{name}.weight"]
        # Bytes are scaled to 0..1 by the first layer's weights.
        features = conv2d(features, weight if number else weight / 255, weights[f"{name}.bias"], stride=stride)
        last = features.permute(0, 2, 3, 1)
        scale, shift = (weights[f"{norm}.{part}"].permute(1, 2, 0) for part in ("weight", "bias"))
        features = relu_(layer_norm(last, last.shape[1:], scale, shift)).permute(0, 3, 1, 2)
    activate, _ = ACTIVATIONS[architecture.activation]
    hidden = features.flatten(1)
    for index in range(len(architecture.hidden)):
        layer, norm = _dense_layer(index), _dense_layer(index, is_norm=True)
        hidden = linear(hidden, weights[f"{layer}.weight"], weights[f"{layer}.bias"])
        hidden = activate(layer_norm(hidden, hidden.shape[1:], weights[f"{norm}.weight"], weights[f"{norm}.bias"]))
    head = _dense_layer(len(architecture.hidden))
    return linear(hidden, weights[f"{head}.weight"], weights[f"{head}.bias"])


def loss(
    weights: Weights, batch: Any, architecture: Architecture = CONV_NETWORK
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the squared distance of the Q-values of a minibatch's actions to their returns, and the metrics."""
    from torch.nn.functional import mse_loss

    values = q_values(weights, batch.images, architecture).gather(1, batch.actions[:, None])[:, 0]
    error = mse_loss(values, batch.returns)
    return error, (error.detach(), values.detach().mean())


def make_learner(
    arrays: Mapping[str, Array], shape: tuple[int, ...], config: PqnSettings, compute: TorchContext
) -> RolloutLearner:
    from cleanrl_worker.learners.torch_backend import TorchRAdam
    from cleanrl_worker.learners.torch_conv import RolloutLearner

    count = len(arrays[f"{_dense_layer(len(config.architecture.hidden))}.bias"])
    forward = functools.partial(q_values, architecture=config.architecture)
    td_loss = functools.partial(loss, architecture=config.architecture)
    return RolloutLearner(
        arrays, shape, count, forward, td_loss, ("returns",), METRIC_NAMES, config, compute, RADAM_EPSILON, TorchRAdam
    )


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    actions = check_envpool_env(NAME, env)
    return describe_run(Agent(actions, SIZES.with_architecture(config.architecture)), actions)


class Training(AverageReturn):
    """Acts epsilon-greedily and fits the Q-values of the rollout's actions to their λ-returns."""

    name = NAME
    make_learner = staticmethod(make_learner)
    config: Config

    def begin_rollout(self) -> None:
        config, shape = self.config, self.actions.shape
        epsilons = config.epsilons(self.global_step + config.num_envs * np.arange(1, config.num_steps + 1))
        self._is_greedy = self.rng.random(shape) >= epsilons[:, None]
        self.actions = self.rng.integers(self.action_count, size=shape)

    def act(self, t: int) -> None:
        # The Q-values that select the actions are stored, because the returns need them.
        self.outputs[t] = self.learner.act(self.observations[t])
        np.copyto(self.actions[t], self.outputs[t].argmax(1), where=self._is_greedy[t])

    def state_values(self, outputs: Array) -> Array:
        return np.asarray(outputs.max(-1))

    def estimate(self, rewards: Array) -> Columns:
        config = self.config
        self.outputs[-1] = self.last_outputs()
        self.bootstrap_truncated(rewards)
        next_values = self.state_values(self.outputs[1:])
        returns = value_kernels.q_lambda_returns(rewards, next_values, self.dones, config.gamma, config.q_lambda)
        return {"actions": self._rows(self.actions), "returns": self._rows(returns)}


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    with closing(open_games(config, STICKINESS, run.frames)) as games:
        agent = Agent(games.action_count, SIZES.with_architecture(config.architecture))
        Training(config, run, games, agent).train(resume)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    def make_saved(sizes: ConvNetworkSizes) -> Agent:
        return Agent(checkpoint.facts["shape"]["actions"], sizes)

    return base.load_conv_agent(NAME, checkpoint, make_saved, convolutions=("network.0", "network.3", "network.6"))


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    import torch

    from cleanrl_worker.learners.torch_conv import as_tensors

    weights = as_tensors(state_dict_of(checkpoint), torch.device("cpu"), is_learned=False)
    values = functools.partial(q_values, weights, architecture=base.saved_architecture(checkpoint))
    return greedy_image_policy(checkpoint, values)


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save, if it saved one."""
    return _load_agent(checkpoint).state_dict()
