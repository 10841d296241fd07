"""Multilayer perceptrons in numpy: one with its forward pass, and the actor and critics of SAC, TD3 and DDPG.

A layer is one matrix [outputs, inputs + 1] whose last column is the bias, and its input ends with a row of ones: one
product applies weights and bias, and one gives both gradients. Columns are observations, because operations over the
features (maximum, softmax, layer norm) are fastest over the first axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.learners.architecture import Architecture, activate
from cleanrl_worker.learners.flat_network import Array, FlatNetwork, FlatViews, orthogonal_matrix

NORM_EPSILON = 1e-5
"""The default of torch's LayerNorm."""


class PerceptronViews(FlatViews):
    def __init__(self, network: Perceptron, flat: Array) -> None:
        super().__init__(flat)
        self.layers: list[Array] = []
        """[outputs, inputs + 1] per layer; the last column is the bias."""
        self.gains: list[Array] = []
        self.offsets: list[Array] = []
        """[size, 1] per hidden layer: gain and offset of its layer norm; empty without layer norm."""
        width = network.inputs
        for size in (*network.hidden, network.outputs):
            self.layers.append(self._next_view(size, width + 1))
            width = size
        for size in network.hidden if network.has_layer_norm else ():
            self.gains.append(self._next_view(size, 1))
            self.offsets.append(self._next_view(size, 1))


class Perceptron(FlatNetwork[PerceptronViews]):
    """Hidden layers and a linear head; with `has_layer_norm`, each is normalized before its activation function."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        architecture: Architecture,
        has_layer_norm: bool = False,
        layer_names: Sequence[str] = (),
    ) -> None:
        """`layer_names` default to CleanRL's numbers; if there are more names than layers, the last share the head."""
        self.inputs = inputs
        self.outputs = outputs
        self.architecture = architecture
        self.hidden = hidden = architecture.hidden
        self.has_layer_norm = has_layer_norm
        sizes = (inputs, *hidden, outputs)
        stride = 3 if has_layer_norm else 2
        self._layer_names = layer_names or [f"network.{stride * index}" for index in range(len(hidden) + 1)]
        size = sum((before + 1) * after for before, after in itertools.pairwise(sizes))
        super().__init__(size + (2 * sum(hidden) if has_layer_norm else 0))
        for gain in self.parameters.gains:
            gain[...] = 1

    def zero_vector(self) -> PerceptronViews:
        return PerceptronViews(self, np.zeros(self.size, np.float32))

    def initialize(self, rng: np.random.Generator) -> None:
        """Initialize as torch does: weights and biases uniform within ±1/sqrt(inputs of the layer)."""
        for layer in self.parameters.layers:
            limit = 1 / math.sqrt(layer.shape[1] - 1)
            layer[...] = rng.uniform(-limit, limit, layer.shape)

    def initialize_orthogonal(self, rng: np.random.Generator) -> None:
        """Initialize with orthogonal weights (gain for ReLU) and zero biases."""
        for layer in self.parameters.layers:
            layer[:, :-1] = orthogonal_matrix(rng, layer[:, :-1].shape, math.sqrt(2))
            layer[:, -1] = 0

    def _named_views(self, views: PerceptronViews) -> dict[str, Array]:
        named: dict[str, Array] = {}
        *layers, head = views.layers
        heads = len(self._layer_names) - len(layers)
        rows = self.outputs // heads
        layers += [head[number * rows : (number + 1) * rows] for number in range(heads)]
        for index, (name, layer) in enumerate(zip(self._layer_names, layers, strict=True)):
            named |= {f"{name}.weight": layer[:, :-1], f"{name}.bias": layer[:, -1]}
            if index < len(views.gains):
                norm = f"network.{3 * index + 1}"
                named |= {f"{norm}.weight": views.gains[index][:, 0], f"{norm}.bias": views.offsets[index][:, 0]}
        return named

    def __call__(self, observations: npt.NDArray[Any]) -> Array:
        """Return the outputs [rows, outputs] for observations [rows, inputs]."""
        forward = ForwardPass(self, len(observations))
        outputs: Array = forward(observations).T
        return outputs


class ForwardPass:
    """The forward pass for a fixed number of observations, without allocations; intermediate results stay readable."""

    def __init__(self, network: Perceptron, rows: int) -> None:
        self.network = network
        self.rows = rows
        self.inputs = [np.ones((size + 1, rows), np.float32) for size in (network.inputs, *network.hidden)]
        """The input of each layer; its last row is ones."""
        self.out = np.empty((network.outputs, rows), np.float32)
        self._observations = self.inputs[0][:-1].T
        self._zeros = [
            np.zeros_like(layer) for layer in self.inputs[1:]
        ]  # np.maximum is faster with an array than with a scalar
        self._layers = list(zip(network.parameters.layers, self.inputs, strict=True))
        self._hidden = [layer[:-1] for layer in self.inputs[1:]]
        sizes = network.hidden if network.has_layer_norm else ()
        self.normalized = [np.empty((size, rows), np.float32) for size in sizes]
        """Hidden layers normalized to mean 0 and deviation 1 over their features."""
        self.inverse_deviations = [np.empty((1, rows), np.float32) for _ in sizes]
        """1 / deviation of each column, needed by the gradient."""
        # A product with this row is the mean over the features, and faster than a reduction.
        self.averaging_rows = [np.full((1, size), 1 / size, np.float32) for size in sizes]
        self._squares = [np.empty((size, rows), np.float32) for size in sizes]
        self._means = np.empty((1, rows), np.float32)
        self._is_relu = network.architecture.activation == "relu"

    def __call__(self, observations: npt.NDArray[Any]) -> Array:
        """Return the outputs [outputs, rows] for observations [rows, inputs]; the next call overwrites them."""
        self._observations[...] = observations
        for index, hidden in enumerate(self._hidden):
            layer, below = self._layers[index]
            np.dot(layer, below, out=hidden)
            if self.normalized:
                self._layer_norm(index, hidden)
            if self._is_relu:
                above = self.inputs[index + 1]
                np.maximum(above, self._zeros[index], out=above)
            else:
                activate(self.network.architecture.activation, hidden)
        layer, below = self._layers[-1]
        np.dot(layer, below, out=self.out)
        return self.out

    def _layer_norm(self, index: int, hidden: Array) -> None:
        normalized, inverse_deviation, squares = (
            self.normalized[index],
            self.inverse_deviations[index],
            self._squares[index],
        )
        np.dot(self.averaging_rows[index], hidden, out=self._means)
        np.subtract(hidden, self._means, out=normalized)
        np.multiply(normalized, normalized, out=squares)
        np.dot(self.averaging_rows[index], squares, out=inverse_deviation)
        np.add(inverse_deviation, NORM_EPSILON, out=inverse_deviation)
        np.sqrt(inverse_deviation, out=inverse_deviation)
        np.divide(1, inverse_deviation, out=inverse_deviation)
        np.multiply(normalized, inverse_deviation, out=normalized)
        np.multiply(normalized, self.network.parameters.gains[index], out=hidden)
        np.add(hidden, self.network.parameters.offsets[index], out=hidden)


class ActorCriticNetworks:
    """An actor, its critics and their target networks; saved under CleanRL's names in torch's layout."""

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        architecture: Architecture,
        heads: tuple[str, ...],
        critics: int,
        has_target_actor: bool,
        critic_outputs: int = 1,
    ) -> None:
        """`heads` are the names of the actor's output layers; each gives one number per action dimension."""
        self.observation_size = observation_size
        self.action_size = action_size
        layers = [f"fc{number}" for number in range(1, len(architecture.hidden) + 2)]

        def own(inputs: int, outputs: int, name: str) -> Any:
            from cleanrl_worker.learners.torch_dense import ModuleNetwork, dense_layers

            return ModuleNetwork(lambda: dense_layers(architecture, inputs, outputs), inputs, outputs, f"{name}.")

        def actor(name: str) -> Perceptron:
            if architecture.is_module:
                return own(observation_size, len(heads) * action_size, name)  # type: ignore[no-any-return]
            names = [f"{name}.{layer}" for layer in (*layers[:-1], *heads)]
            return Perceptron(observation_size, len(heads) * action_size, architecture, layer_names=names)

        def critic(name: str) -> Perceptron:
            if architecture.is_module:
                return own(observation_size + action_size, critic_outputs, name)  # type: ignore[no-any-return]
            names = [f"{name}.{layer}" for layer in layers]
            return Perceptron(observation_size + action_size, critic_outputs, architecture, layer_names=names)

        critic_names = [f"qf{number}" for number in range(1, critics + 1)]
        self.actor = actor("actor")
        self.critics = [critic(name) for name in critic_names]
        self.targets = [critic(f"{name}_target") for name in critic_names]
        self.target_actor = actor("target_actor") if has_target_actor else None
        self.trained_networks = {"actor": self.actor, **dict(zip(critic_names, self.critics, strict=True))}
        self.target_networks = self.targets + ([] if self.target_actor is None else [self.target_actor])

    @property
    def size(self) -> int:
        """The number of trained parameters."""
        return sum(part.size for part in self.trained_networks.values())

    def targeted_networks(self) -> list[tuple[Perceptron, Perceptron]]:
        """Return each network that has a target network, with that."""
        return list(zip((*self.critics, self.actor), self.target_networks, strict=False))

    def initialize(self, rng: np.random.Generator) -> None:
        for part in self.trained_networks.values():
            part.initialize(rng)
        for network, target in self.targeted_networks():
            target.copy_from(network)

    def state_dict(self) -> dict[str, Array]:
        """Return copies of all weights under names such as `qf1.fc1.weight`."""
        return {
            key: part
            for network in (*self.trained_networks.values(), *self.target_networks)
            for key, part in network.named_arrays(network.parameters).items()
        }

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        for network in (*self.trained_networks.values(), *self.target_networks):
            network.assign(network.parameters, state)
