"""The updates of DQN, C51 and PQN written out by hand in numpy: forward, backward, Adam over one flat vector.

Why by hand, see ppo_kernels.py. The torch loss in each algorithm's file is the reference: the tests hold these
gradients against autograd's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from cleanrl_worker.perceptron import Array, ForwardPass, Perceptron, PerceptronViews

ADAM_BETA_1, ADAM_BETA_2 = 0.9, 0.999
MIN_PROBABILITY = 1e-5
"""C51's logarithm takes no probability nearer to 0 or 1 than this."""


class Transitions(Protocol):
    """Rows of a replay buffer."""

    observations: npt.NDArray[Any]
    actions: npt.NDArray[Any]
    """[rows, 1], counted from 0."""
    rewards: npt.NDArray[Any]
    terminals: npt.NDArray[Any]
    next_observations: npt.NDArray[Any]


class ReturnBatch(NamedTuple):
    """Rows of a rollout whose returns are known."""

    observations: npt.NDArray[Any]
    actions: npt.NDArray[Any]
    """[rows], counted from 0."""
    returns: npt.NDArray[Any]


class ValueLearner(Protocol):
    """Improves the parameters; there is one over numpy for each loss (below) and one over torch (value_autograd.py)."""

    count: int
    """Adam's steps so far."""

    @property
    def first_moment(self) -> PerceptronViews:
        """Adam's running mean of the gradient."""

    @property
    def second_moment(self) -> PerceptronViews:
        """Adam's running mean of the squared gradient."""

    def update(self, batch: Any, learning_rate: float) -> bool:
        """One gradient step; False where the gradient is not finite, and nothing is worth going on with."""

    def losses(self) -> dict[str, float]:
        """Of the newest batch, by CleanRL's names."""

    def first_non_finite(self) -> tuple[int, list[str]] | None:
        """How many updates ago something was first not finite, and what; none where `update` would have said so."""

    def forward(self, rows: int) -> Callable[[npt.NDArray[Any]], Array]:
        """What gives outputs [outputs, rows] by the newest weights for as many observations at a time."""

    def sync_networks(self) -> None:
        """Brings the network up to date, where the learner keeps its own."""


class TargetValueLearner(ValueLearner, Protocol):
    """One that learns by a target network."""

    def update_target(self, tau: float) -> None:
        """Moves the target network towards the learned one: 1 makes them equal."""


def q_lambda_returns(
    rewards: npt.NDArray[np.float64],
    values: npt.NDArray[Any],
    dones: npt.NDArray[np.bool_],
    gamma: float,
    q_lambda: float,
) -> Array:
    """What followed each step: λ of the return behind it, the rest the value there. `values` are those after a step."""
    # Behind the last step there is only the value.
    lives = gamma * (1.0 - dones)
    bases = rewards + lives * values * (1 - q_lambda)
    bases[-1] = rewards[-1] + lives[-1] * values[-1]
    decays = lives * q_lambda
    decays[-1] = 0
    returns = np.empty(rewards.shape, np.float32)
    for env in range(rewards.shape[1]):
        # Plain floats: a few numpy calls for each step would take far longer.
        last = 0.0
        column = []
        for base, decay in zip(bases[::-1, env].tolist(), decays[::-1, env].tolist(), strict=True):
            last = base + decay * last
            column.append(last)
        returns[::-1, env] = column
    return returns


class BackwardPass:
    """The backward pass, behind a forward pass of the same rows."""

    def __init__(self, network: Perceptron, rows: int) -> None:
        self.forward = ForwardPass(network, rows)
        self.views = network.zero_vector()
        inputs = self.forward.inputs
        self._transposed_inputs = [layer.T for layer in inputs]
        self._transposed_layers = [layer[:, :-1].T for layer in network.parameters.layers]
        self._hidden = [layer[:-1] for layer in inputs[1:]]
        self._deltas = [np.empty((size, rows), np.float32) for size in network.hidden]
        self._is_active = [np.empty((size, rows), np.bool_) for size in network.hidden]
        self._zeros = [np.zeros((size, rows), np.float32) for size in network.hidden]
        self._product = [np.empty((size, rows), np.float32) for size in network.hidden if network.has_layer_norm]
        self._column = np.ones((rows, 1), np.float32)
        self._means = np.empty((1, rows), np.float32)

    def __call__(self, delta: Array) -> None:
        """Fills `views` from the loss's slope by the outputs, [outputs, rows]."""
        last = len(self._deltas)
        for index in range(last, 0, -1):
            np.dot(delta, self._transposed_inputs[index], out=self.views.layers[index])
            below, is_on = self._deltas[index - 1], self._is_active[index - 1]
            np.dot(self._transposed_layers[index], delta, out=below)
            np.greater(self._hidden[index - 1], self._zeros[index - 1], out=is_on)
            np.multiply(below, is_on, out=below)
            if self._product:
                self._backward_layer_norm(index - 1, below)
            delta = below
        np.dot(delta, self._transposed_inputs[0], out=self.views.layers[0])

    def _backward_layer_norm(self, index: int, delta: Array) -> None:
        scaled, product = self.forward.normalised[index], self._product[index]
        average = self.forward.averaging_rows[index]
        np.multiply(delta, scaled, out=product)
        np.dot(product, self._column, out=self.views.gains[index])
        np.dot(delta, self._column, out=self.views.offsets[index])
        # What would shift all features, or stretch them all, is taken away by the normalisation.
        np.multiply(delta, self.forward.network.parameters.gains[index], out=delta)
        np.multiply(delta, scaled, out=product)
        np.dot(average, product, out=self._means)
        np.multiply(scaled, self._means, out=product)
        np.dot(average, delta, out=self._means)
        np.subtract(delta, self._means, out=delta)
        np.subtract(delta, product, out=delta)
        np.multiply(delta, self.forward.inverse_deviations[index], out=delta)


class NumpyAdam:
    """Steps along a gradient, in the proportions that its own history suggests."""

    def __init__(self, network: Perceptron, epsilon: float = 1e-8, max_norm: float | None = None) -> None:
        self.first_moment = network.zero_vector()
        self.second_moment = network.zero_vector()
        self.count = 0
        self._flat = network.flat
        self._epsilon = epsilon
        self._max_norm = max_norm
        """The greatest norm of a gradient; a longer one is cut to it."""
        self._scratch = np.empty(network.size, np.float32)

    def __call__(self, gradient: PerceptronViews, learning_rate: float) -> bool:
        """One step; False where the gradient is not finite."""
        slope, first, second, scratch = gradient.flat, self.first_moment.flat, self.second_moment.flat, self._scratch
        norm = math.sqrt(np.dot(slope, slope))
        if not math.isfinite(norm):
            return False
        # The cut goes into the factors, which saves a pass over the vector.
        cut = 1.0 if self._max_norm is None else min(1.0, self._max_norm / (norm + 1e-6))
        self.count += 1
        np.multiply(first, ADAM_BETA_1, out=first)
        np.multiply(slope, (1 - ADAM_BETA_1) * cut, out=scratch)
        np.add(first, scratch, out=first)
        np.multiply(second, ADAM_BETA_2, out=second)
        np.multiply(slope, slope, out=scratch)
        np.multiply(scratch, (1 - ADAM_BETA_2) * cut * cut, out=scratch)
        np.add(second, scratch, out=second)
        self._apply_step(learning_rate / (1 - ADAM_BETA_1**self.count), math.sqrt(1 - ADAM_BETA_2**self.count))
        return True

    def _apply_step(self, learning_rate: float, correction: float) -> None:
        scratch = self._scratch
        np.sqrt(self.second_moment.flat, out=scratch)
        np.add(scratch, self._epsilon * correction, out=scratch)
        np.divide(self.first_moment.flat, scratch, out=scratch)
        np.multiply(scratch, learning_rate * correction, out=scratch)
        np.subtract(self._flat, scratch, out=self._flat)


class NumpyRAdam(NumpyAdam):
    """Adam that trusts its second moment only as far as enough gradients were seen (arXiv:1908.03265)."""

    _MAX_SMA_LENGTH = 2 / (1 - ADAM_BETA_2) - 1
    """How many gradients the second moment looks back on in the end."""

    def _apply_step(self, learning_rate: float, correction: float) -> None:
        longest = self._MAX_SMA_LENGTH
        length = longest - 2 * self.count * ADAM_BETA_2**self.count / (1 - ADAM_BETA_2**self.count)
        if length > 5:
            share = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            learning_rate *= math.sqrt(share)
            # Torch adds epsilon to the root of the moment as it is, before the correction.
            np.sqrt(self.second_moment.flat, out=self._scratch)
            np.add(self._scratch, self._epsilon, out=self._scratch)
            np.divide(self.first_moment.flat, self._scratch, out=self._scratch)
            np.multiply(self._scratch, learning_rate * correction, out=self._scratch)
        else:
            np.multiply(self.first_moment.flat, learning_rate, out=self._scratch)
        np.subtract(self._flat, self._scratch, out=self._flat)


class ValueKernel:
    """What the updates of the three have in common."""

    def __init__(self, network: Perceptron, rows: int, adam: NumpyAdam) -> None:
        self.network = network
        self.rows = rows
        self.gradient = BackwardPass(network, rows)
        self.first_moment = adam.first_moment
        self.second_moment = adam.second_moment
        self._adam = adam

    @property
    def count(self) -> int:
        return self._adam.count

    @count.setter
    def count(self, count: int) -> None:
        self._adam.count = count

    def first_non_finite(self) -> None:
        """Updates say themselves whether they were finite."""

    def forward(self, rows: int) -> ForwardPass:
        return ForwardPass(self.network, rows)

    def sync_networks(self) -> None:
        """Nothing to do: this learner works on the networks themselves."""


class RegressionKernel(ValueKernel):
    """Brings the values of the taken actions nearer to given targets, by the mean squared error."""

    def __init__(self, network: Perceptron, rows: int, adam: NumpyAdam) -> None:
        super().__init__(network, rows, adam)
        self._one_hot_rows = np.eye(network.outputs, dtype=np.float32)
        self._out_delta = np.empty((network.outputs, rows), np.float32)
        self._values, self._errors, self._value_grads = np.empty((3, rows), np.float32)

    def _fit(self, observations: Any, actions: Any, targets: Any, learning_rate: float) -> bool:
        out = self.gradient.forward(observations)
        is_taken = self._one_hot_rows.take(actions, 1)
        np.multiply(out, is_taken, out=self._out_delta)
        np.add.reduce(self._out_delta, 0, out=self._values)
        np.subtract(self._values, targets, out=self._errors)
        np.multiply(self._errors, 2 / self.rows, out=self._value_grads)
        np.multiply(is_taken, self._value_grads, out=self._out_delta)
        self.gradient(self._out_delta)
        return self._adam(self.gradient.views, learning_rate)

    def losses(self) -> dict[str, float]:
        return {"td_loss": float(np.mean(self._errors * self._errors)), "q_values": float(np.mean(self._values))}


class ReturnsKernel(RegressionKernel):
    """PQN's: the targets are the returns of a rollout."""

    def update(self, batch: ReturnBatch, learning_rate: float) -> bool:
        return self._fit(batch.observations, batch.actions, batch.returns, learning_rate)


class QKernel(RegressionKernel):
    """DQN's: the target is the reward and the discounted value of the best next action by the target network."""

    def __init__(self, network: Perceptron, target: Perceptron, rows: int, adam: NumpyAdam, gamma: float) -> None:
        super().__init__(network, rows, adam)
        self.target = target
        self._target_forward = ForwardPass(target, rows)
        self._gamma = gamma
        self._targets, self._continue_mask = np.empty((2, rows), np.float32)

    def update(self, batch: Transitions, learning_rate: float) -> bool:
        np.maximum.reduce(self._target_forward(batch.next_observations), 0, out=self._targets)
        np.subtract(1, batch.terminals, out=self._continue_mask)
        np.multiply(self._continue_mask, self._gamma, out=self._continue_mask)
        np.multiply(self._targets, self._continue_mask, out=self._targets)
        np.add(self._targets, batch.rewards, out=self._targets)
        return self._fit(batch.observations, batch.actions[:, 0], self._targets, learning_rate)

    def update_target(self, tau: float) -> None:
        soft_update(self.target, self.network, tau)


class DistributionKernel(ValueKernel):
    """C51's: brings the distribution of the taken action's return nearer to the projected one behind the step."""

    def __init__(
        self, network: Perceptron, target: Perceptron, rows: int, adam: NumpyAdam, atoms: Array, gamma: float
    ) -> None:
        super().__init__(network, rows, adam)
        self.target = target
        self._target_forward = ForwardPass(target, rows)
        count, actions = len(atoms), network.outputs // len(atoms)
        self._atoms = atoms[None]
        self._v_min, self._atom_spacing = float(atoms[0]), float(atoms[1] - atoms[0])
        self._steps = (gamma / self._atom_spacing) * atoms[:, None]
        self._one_hot_rows = np.eye(actions, dtype=np.float32)
        self._shape = (actions, count, rows)
        self._masked_outputs = np.empty(self._shape, np.float32)
        self._out_delta = np.empty((network.outputs, rows), np.float32)
        self._probs, self._targets, self._atom_positions, self._floors, self._upper = np.empty(
            (5, count, rows), np.float32
        )
        self._flat_indices = np.empty((count, rows), np.intp)
        self._columns = np.arange(rows)

    def update(self, batch: Transitions, learning_rate: float) -> bool:
        self._project(batch)
        out = self.gradient.forward(batch.observations).reshape(self._shape)
        is_taken = self._one_hot_rows.take(batch.actions[:, 0], 1)[:, None]
        np.multiply(out, is_taken, out=self._masked_outputs)
        np.add.reduce(self._masked_outputs, 0, out=self._probs)
        softmax(self._probs)
        # The slope of the cross-entropy by the logits, where the probability counts as it is.
        slopes, places = self._floors, self._atom_positions
        np.multiply(self._targets, (self._probs >= MIN_PROBABILITY) & (self._probs <= 1 - MIN_PROBABILITY), out=places)
        np.multiply(self._probs, np.add.reduce(places, 0), out=slopes)
        np.subtract(slopes, places, out=slopes)
        np.multiply(slopes, 1 / self.rows, out=slopes)
        np.multiply(slopes, is_taken, out=self._out_delta.reshape(self._shape))
        self.gradient(self._out_delta)
        return self._adam(self.gradient.views, learning_rate)

    def _project(self, batch: Transitions) -> None:
        """Fills the targets: the best next action's atoms, moved by the reward, their mass given to the neighbours."""
        out = self._target_forward(batch.next_observations).reshape(self._shape)
        softmax(out)
        best = np.matmul(self._atoms, out)[:, 0].argmax(0)
        np.multiply(out, self._one_hot_rows.take(best, 1)[:, None], out=self._masked_outputs)
        np.add.reduce(self._masked_outputs, 0, out=self._probs)

        places, floors, upper, spots = self._atom_positions, self._floors, self._upper, self._flat_indices
        np.multiply(self._steps, 1 - batch.terminals, out=places)
        np.add(places, (batch.rewards - self._v_min) / self._atom_spacing, out=places)
        np.maximum(places, 0, out=places)
        np.minimum(places, len(places) - 1, out=places)
        np.floor(places, out=floors)
        np.subtract(places, floors, out=upper)
        np.multiply(upper, self._probs, out=upper)
        np.subtract(self._probs, upper, out=self._probs)
        np.multiply(floors, self.rows, out=spots, casting="unsafe")
        np.add(spots, self._columns, out=spots)
        flat, size = spots.ravel(), spots.size
        self._targets[...] = np.bincount(flat, self._probs.ravel(), size).reshape(spots.shape)
        self._targets[1:] += np.bincount(flat, upper.ravel(), size).reshape(spots.shape)[:-1]

    def losses(self) -> dict[str, float]:
        logs = np.log(np.clip(self._probs, MIN_PROBABILITY, 1 - MIN_PROBABILITY))
        return {
            "loss": -float(np.sum(self._targets * logs)) / self.rows,
            "q_values": float(np.mean(self._atoms @ self._probs)),
        }

    def update_target(self, tau: float) -> None:
        soft_update(self.target, self.network, tau)


def softmax(logits: Array) -> None:
    """In place, over the last axis but one: the columns are rows of a batch."""
    np.subtract(logits, np.maximum.reduce(logits, -2, keepdims=True), out=logits)
    np.exp(logits, out=logits)
    np.divide(logits, np.add.reduce(logits, -2, keepdims=True), out=logits)


def soft_update(target: Perceptron, network: Perceptron, tau: float) -> None:
    if tau == 1:
        np.copyto(target.flat, network.flat)
    else:
        target.flat += tau * (network.flat - target.flat)
