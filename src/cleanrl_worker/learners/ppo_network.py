"""PPO's actor and critic in numpy: their parameters as views of one flat vector, and their forward passes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cleanrl_worker.learners.architecture import Architecture, activate
from cleanrl_worker.learners.flat_network import Array, FlatNetwork, FlatViews, orthogonal_matrix

ACTOR, CRITIC = 0, 1
"""Their indices in the stacked hidden layers."""


class PpoNetworkViews(FlatViews):
    def __init__(self, network: PpoNetwork, flat: Array) -> None:
        super().__init__(flat)
        width = network.inputs
        self.weights: list[Array] = []
        self.biases: list[Array] = []
        for size in network.hidden:
            self.weights.append(self._next_view(2, width, size))
            self.biases.append(self._next_view(2, 1, size))
            width = size
        self.actor_weight = self._next_view(network.outputs, width)
        self.actor_bias = self._next_view(network.outputs, 1)
        self.critic_weight = self._next_view(1, width)
        self.critic_bias = self._next_view(1, 1)
        self.log_std = self._next_view(network.outputs, 1) if network.has_log_std else None


class PpoNetwork(FlatNetwork[PpoNetworkViews]):
    """An actor and a critic with hidden layers of equal sizes, which are therefore stored stacked."""

    def __init__(
        self, inputs: int, outputs: int, architecture: Architecture, actor: str = "actor", has_log_std: bool = False
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.architecture = architecture
        self.hidden = hidden = architecture.hidden
        self.actor = actor
        """The actor's name in the state dict."""
        self.has_log_std = has_log_std
        sizes = (inputs, *hidden)
        trunk = sum(2 * (before + 1) * after for before, after in zip(sizes, hidden, strict=False))
        super().__init__(trunk + (outputs + 1) * (sizes[-1] + 1) + (outputs if has_log_std else 0))

    def zero_vector(self) -> PpoNetworkViews:
        return PpoNetworkViews(self, np.zeros(self.size, np.float32))

    def initialize(self, rng: np.random.Generator) -> None:
        """Initialize with orthogonal weights and zero biases; a small last layer makes the policy nearly uniform."""
        for weight in self.parameters.weights:
            for side in (ACTOR, CRITIC):
                weight[side] = orthogonal_matrix(rng, weight[side].shape, math.sqrt(2))
        self.parameters.actor_weight[...] = orthogonal_matrix(rng, self.parameters.actor_weight.shape, 0.01)
        self.parameters.critic_weight[...] = orthogonal_matrix(rng, self.parameters.critic_weight.shape, 1.0)

    def _named_views(self, views: PpoNetworkViews) -> dict[str, Array]:
        named: dict[str, Array] = {}
        if views.log_std is not None:  # torch lists a module's own parameters before those of its children
            named[f"{self.actor}_logstd".replace("_mean", "")] = views.log_std.T
        last = 2 * len(self.hidden)
        for side, name in ((CRITIC, "critic"), (ACTOR, self.actor)):
            for layer, (weight, bias) in enumerate(zip(views.weights, views.biases, strict=True)):
                named[f"{name}.{2 * layer}.weight"] = weight[side].T
                named[f"{name}.{2 * layer}.bias"] = bias[side, 0]
            head = (views.actor_weight, views.actor_bias) if side == ACTOR else (views.critic_weight, views.critic_bias)
            named[f"{name}.{last}.weight"] = head[0]
            named[f"{name}.{last}.bias"] = head[1][:, 0]
        return named

    @property
    def log_std(self) -> Array | None:
        """The logarithms of the standard deviations [outputs, 1], if it has them."""
        return self.parameters.log_std

    def critic_values(self, observations: Array) -> Array:
        """Return the values of a batch of observations."""
        hidden = observations
        for weight, bias in zip(self.parameters.weights, self.parameters.biases, strict=True):
            hidden = hidden @ weight[CRITIC]
            hidden += bias[CRITIC]
            activate(self.architecture.activation, hidden)
        values: Array = hidden @ self.parameters.critic_weight[0]
        values += self.parameters.critic_bias[0, 0]
        return values


class PpoActor:
    """The actor's forward pass for a fixed number of observations, without allocations."""

    def __init__(self, network: PpoNetwork, rows: int) -> None:
        views = network.parameters
        self._hidden = [np.empty((rows, size), np.float32) for size in network.hidden]
        # Adding a bias that is already broadcast over the rows takes half the time of broadcasting it at each step.
        self._biases = [np.empty_like(hidden) for hidden in self._hidden]
        self._layers = [
            (weight[ACTOR], bias, hidden)
            for weight, bias, hidden in zip(views.weights, self._biases, self._hidden, strict=True)
        ]
        self._head = np.empty((network.hidden[-1], network.outputs), np.float32)
        self._head_bias = np.empty((rows, network.outputs), np.float32)
        self._views = views
        self._activation = network.architecture.activation

    def refresh(self) -> None:
        """Read the parameters again; call after each update."""
        for broadcast_bias, bias in zip(self._biases, self._views.biases, strict=True):
            broadcast_bias[...] = bias[ACTOR]
        self._head[...] = self._views.actor_weight.T
        self._head_bias[...] = self._views.actor_bias[:, 0]

    def __call__(self, observations: Array, out: Array) -> None:
        below = observations
        for weight, bias, hidden in self._layers:
            np.dot(below, weight, out=hidden)
            np.add(hidden, bias, out=hidden)
            activate(self._activation, hidden)
            below = hidden
        np.dot(below, self._head, out=out)
        np.add(out, self._head_bias, out=out)


class FrozenPpoActor:
    """An actor whose weights no longer change, for any number of observations."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._actors: dict[int, PpoActor] = {}

    def __call__(self, observations: Array) -> Array:
        if not isinstance(self._network, PpoNetwork):  # torch computes it
            return np.asarray(self._network.actor_outputs(observations))
        rows = len(observations)
        if rows not in self._actors:
            self._actors[rows] = PpoActor(self._network, rows)
            self._actors[rows].refresh()
        outputs = np.empty((rows, self._network.outputs), np.float32)
        self._actors[rows](observations, outputs)
        return outputs
