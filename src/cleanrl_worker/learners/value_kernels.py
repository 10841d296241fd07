"""The updates of DQN, C51 and PQN in numpy with hand-written gradients: forward, backward, Adam over one flat vector.

ppo_kernels.py gives the reason. The torch loss in each algorithm's file is the reference: the tests compare these
gradients with autograd's. Arrays are [features, rows]: a batch of N transitions has N columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cleanrl_worker.environments.normalization import linear_recurrence
from cleanrl_worker.learners.architecture import activation_gradient
from cleanrl_worker.learners.flat_network import Array, NumpyAdam, NumpyLearner
from cleanrl_worker.learners.perceptron import ForwardPass, Perceptron

if TYPE_CHECKING:
    from cleanrl_worker.replay.ring import TransitionBatch

MIN_PROBABILITY = 1e-5
"""Probabilities are clamped to [this, 1 - this] before C51 takes their logarithm."""


class ReturnBatch(NamedTuple):
    """Rows of a rollout with their returns."""

    observations: npt.NDArray[Any]
    actions: npt.NDArray[Any]
    """Indices [rows]."""
    returns: npt.NDArray[Any]


def q_lambda_returns(
    rewards: npt.NDArray[np.float64],
    values: npt.NDArray[Any],
    dones: npt.NDArray[np.bool_],
    gamma: float,
    q_lambda: float,
) -> Array:
    """Compute the Q(λ) returns of a rollout; `values` are max_a Q(s_{t+1}, a), one for each step."""
    # R_t = r_t + γ (1 - d_t) [(1 - λ) max_a Q(s_{t+1}, a) + λ R_{t+1}],  d_t = 1 where the episode ended with step t;
    # at the last step there is no R_{t+1}: R_T = r_T + γ (1 - d_T) max_a Q(s_{T+1}, a).
    discounts = gamma * (1.0 - dones)
    bases = rewards + discounts * values * (1 - q_lambda)
    bases[-1] = rewards[-1] + discounts[-1] * values[-1]
    decays = discounts * q_lambda
    decays[-1] = 0
    returns = np.empty(rewards.shape, np.float32)
    returns[::-1] = linear_recurrence(bases[::-1], decays[::-1], np.zeros(rewards.shape[1]))
    return returns


class BackwardPass:
    """The backward pass; it uses what the last call of `forward` computed."""

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
        self._is_relu = network.architecture.activation == "relu"
        self._column = np.ones((rows, 1), np.float32)
        self._means = np.empty((1, rows), np.float32)

    def __call__(self, delta: Array) -> None:
        """Fill `views` with the gradient, given delta = ∂L/∂outputs, [outputs, rows]."""
        # With h_l = f(W_l [h_{l-1}; 1]), f = ReLU or tanh, and Δ_l = ∂L/∂(W_l [h_{l-1}; 1]):
        #   ∂L/∂W_l = Δ_l [h_{l-1}; 1]ᵀ     Δ_{l-1} = (W_lᵀ Δ_l) ⊙ f'
        # where f' = 1[h_{l-1} > 0] for ReLU, 1 - h_{l-1}² for tanh.
        last = len(self._deltas)
        for index in range(last, 0, -1):
            np.dot(delta, self._transposed_inputs[index], out=self.views.layers[index])
            below, hidden = self._deltas[index - 1], self._hidden[index - 1]
            np.dot(self._transposed_layers[index], delta, out=below)
            if self._is_relu:
                np.greater(hidden, self._zeros[index - 1], out=self._is_active[index - 1])
                np.multiply(below, self._is_active[index - 1], out=below)
            else:
                np.multiply(below, activation_gradient("tanh", hidden), out=below)
            if self._product:
                self._backward_layer_norm(index - 1, below)
            delta = below
        np.dot(delta, self._transposed_inputs[0], out=self.views.layers[0])

    def _backward_layer_norm(self, index: int, delta: Array) -> None:
        # y = g ⊙ x̂ + o,  x̂ = (x - mean x) / s,  s = √(var x + eps); with D = ∂L/∂y:
        #   ∂L/∂g = Σ_rows D ⊙ x̂     ∂L/∂o = Σ_rows D
        scaled, product = self.forward.normalized[index], self._product[index]
        average = self.forward.averaging_rows[index]
        np.multiply(delta, scaled, out=product)
        np.dot(product, self._column, out=self.views.gains[index])
        np.dot(delta, self._column, out=self.views.offsets[index])
        #   ∂L/∂x = (E - mean E - x̂ mean(E ⊙ x̂)) / s  with  E = g ⊙ D, means over the features
        np.multiply(delta, self.forward.network.parameters.gains[index], out=delta)
        np.multiply(delta, scaled, out=product)
        np.dot(average, product, out=self._means)
        np.multiply(scaled, self._means, out=product)
        np.dot(average, delta, out=self._means)
        np.subtract(delta, self._means, out=delta)
        np.subtract(delta, product, out=delta)
        np.multiply(delta, self.forward.inverse_deviations[index], out=delta)


class ValueKernel(NumpyLearner):
    """The part of the update that DQN, C51 and PQN share."""

    def __init__(self, network: Perceptron, rows: int, adam: NumpyAdam) -> None:
        super().__init__(rows, adam)
        self.network = network
        self.gradient = BackwardPass(network, rows)

    def forward(self, rows: int) -> ForwardPass:
        return ForwardPass(self.network, rows)


class RegressionKernel(ValueKernel):
    """Regression of the taken actions' values on given targets, by the mean squared error."""

    def __init__(self, network: Perceptron, rows: int, adam: NumpyAdam) -> None:
        super().__init__(network, rows, adam)
        self._one_hot_rows = np.eye(network.outputs, dtype=np.float32)
        self._out_delta = np.empty((network.outputs, rows), np.float32)
        self._values, self._errors, self._value_grads = np.empty((3, rows), np.float32)

    def _fit(self, observations: Any, actions: Any, targets: Any, learning_rate: float) -> bool:
        # L = 1/N Σ (Q(s, a) - y)²,  ∂L/∂Q(s, a) = 2/N (Q(s, a) - y), and 0 for the actions that were not taken
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
    """PQN's update: the targets y are the Q(λ) returns of a rollout."""

    def update(self, batch: ReturnBatch, learning_rate: float) -> bool:
        return self._fit(batch.observations, batch.actions, batch.returns, learning_rate)


class QKernel(RegressionKernel):
    """DQN's update: y = r + γ (1 - d) max_a Q_target(s', a)."""

    def __init__(self, network: Perceptron, target: Perceptron, rows: int, adam: NumpyAdam, gamma: float) -> None:
        super().__init__(network, rows, adam)
        self.target = target
        self._target_forward = ForwardPass(target, rows)
        self._gamma = gamma
        self._targets, self._continue_mask = np.empty((2, rows), np.float32)

    def update(self, batch: TransitionBatch, learning_rate: float) -> bool:
        np.maximum.reduce(self._target_forward(batch.next_observations), 0, out=self._targets)
        np.subtract(1, batch.terminals, out=self._continue_mask)
        np.multiply(self._continue_mask, self._gamma, out=self._continue_mask)
        np.multiply(self._targets, self._continue_mask, out=self._targets)
        np.add(self._targets, batch.rewards, out=self._targets)
        return self._fit(batch.observations, batch.actions[:, 0], self._targets, learning_rate)

    def update_target(self, tau: float) -> None:
        soft_update(self.target, self.network, tau)


class DistributionKernel(ValueKernel):
    """C51's update (arXiv:1707.06887): cross-entropy with the projected distribution of the return.

    Atoms are z_i = v_min + i Δz; each action has probabilities p_i over them, Q(s, a) = Σ_i z_i p_i(s, a).
    """

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

    def update(self, batch: TransitionBatch, learning_rate: float) -> bool:
        self._project(batch)
        out = self.gradient.forward(batch.observations).reshape(self._shape)
        is_taken = self._one_hot_rows.take(batch.actions[:, 0], 1)[:, None]
        np.multiply(out, is_taken, out=self._masked_outputs)
        np.add.reduce(self._masked_outputs, 0, out=self._probs)
        softmax(self._probs)
        # L = -1/N Σ_rows Σ_i m_i log clamp(p_i),  p = softmax(logits x) of the taken action.
        # ∂L/∂x_i = 1/N (p_i Σ_j m̃_j - m̃_i)  with  m̃_i = m_i where p_i is inside the clamp, else 0
        logit_grads, masked = self._floors, self._atom_positions  # buffers that the projection no longer needs
        np.multiply(self._targets, (self._probs >= MIN_PROBABILITY) & (self._probs <= 1 - MIN_PROBABILITY), out=masked)
        np.multiply(self._probs, np.add.reduce(masked, 0), out=logit_grads)
        np.subtract(logit_grads, masked, out=logit_grads)
        np.multiply(logit_grads, 1 / self.rows, out=logit_grads)
        np.multiply(logit_grads, is_taken, out=self._out_delta.reshape(self._shape))
        self.gradient(self._out_delta)
        return self._adam(self.gradient.views, learning_rate)

    def _project(self, batch: TransitionBatch) -> None:
        """Fill the targets m: the best next action's distribution, shifted by the reward and projected on the atoms."""
        # a* = argmax_a Σ_i z_i p_i(s', a)
        out = self._target_forward(batch.next_observations).reshape(self._shape)
        softmax(out)
        best = np.matmul(self._atoms, out)[:, 0].argmax(0)
        np.multiply(out, self._one_hot_rows.take(best, 1)[:, None], out=self._masked_outputs)
        np.add.reduce(self._masked_outputs, 0, out=self._probs)

        # b_j = clip((r + γ (1 - d) z_j - v_min) / Δz, 0, atoms - 1),  l = floor(b_j)
        positions, floors, upper, indices = self._atom_positions, self._floors, self._upper, self._flat_indices
        np.multiply(self._steps, 1 - batch.terminals, out=positions)
        np.add(positions, (batch.rewards - self._v_min) / self._atom_spacing, out=positions)
        np.maximum(positions, 0, out=positions)
        np.minimum(positions, len(positions) - 1, out=positions)
        np.floor(positions, out=floors)
        # m_l += p_j (1 - (b_j - l))     m_{l+1} += p_j (b_j - l)
        np.subtract(positions, floors, out=upper)
        np.multiply(upper, self._probs, out=upper)
        np.subtract(self._probs, upper, out=self._probs)
        np.multiply(floors, self.rows, out=indices, casting="unsafe")
        np.add(indices, self._columns, out=indices)
        flat, size = indices.ravel(), indices.size
        self._targets[...] = np.bincount(flat, self._probs.ravel(), size).reshape(indices.shape)
        self._targets[1:] += np.bincount(flat, upper.ravel(), size).reshape(indices.shape)[:-1]

    def losses(self) -> dict[str, float]:
        logs = np.log(np.clip(self._probs, MIN_PROBABILITY, 1 - MIN_PROBABILITY))
        return {
            "loss": -float(np.sum(self._targets * logs)) / self.rows,
            "q_values": float(np.mean(self._atoms @ self._probs)),
        }

    def update_target(self, tau: float) -> None:
        soft_update(self.target, self.network, tau)


def softmax(logits: Array) -> None:
    """Replace logits by exp(x_i - max x) / Σ_j exp(x_j - max x), over the second-to-last axis."""
    np.subtract(logits, np.maximum.reduce(logits, -2, keepdims=True), out=logits)
    np.exp(logits, out=logits)
    np.divide(logits, np.add.reduce(logits, -2, keepdims=True), out=logits)


def soft_update(target: Perceptron, network: Perceptron, tau: float) -> None:
    """Set θ_target ← θ_target + τ (θ - θ_target)."""
    if tau == 1:
        np.copyto(target.flat, network.flat)
    else:
        target.flat += tau * (network.flat - target.flat)
