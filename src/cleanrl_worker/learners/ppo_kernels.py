"""PPO's update in numpy with hand-written gradients: forward, backward, clipping and Adam over one flat vector.

For small networks on a CPU the matrix products take microseconds, and the overhead of a framework dominates. Therefore
all buffers are allocated once, actor and critic are stacked so that one call computes both, and work that is the same
for every minibatch is done once per epoch. The torch loss in the algorithm's file is the
reference: the tests compare these gradients with autograd's.

Notation, for a minibatch of N rows: r = π(a|s) / π_old(a|s), A advantages, R returns, V values, ε = clip_coef:

    L = -1/N Σ min(r A, clip(r, 1-ε, 1+ε) A) + vf_coef · L_V - ent_coef · H(π)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cleanrl_worker.environments.normalization import linear_recurrence
from cleanrl_worker.learners.flat_network import HALF_LOG_TWO_PI, Array, NumpyAdam, NumpyLearner
from cleanrl_worker.learners.ppo_network import ACTOR, CRITIC, PpoActor, PpoNetwork
from cleanrl_worker.learners.protocols import PpoSettings

Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.intp]

ADAM_EPSILON = 1e-5
"""Adam's epsilon in the original PPO code; torch's default is 1e-8."""


def gae_advantages(
    rewards: Doubles, values: Array, dones: npt.NDArray[np.bool_], gamma: float, gae_lambda: float
) -> Array:
    """Compute generalized advantage estimates (arXiv:1506.02438).

    `values` has one row more than `rewards`; a done at step t ends the sum there.
    """
    # d_t = 1 where the episode ended with step t.
    # δ_t = r_t + γ (1 - d_t) V(s_{t+1}) - V(s_t)
    # A_t = δ_t + γ λ (1 - d_t) A_{t+1}
    not_done = 1.0 - dones
    deltas = rewards + gamma * not_done * values[1:] - values[:-1]
    decays = gamma * gae_lambda * not_done
    advantages = np.empty(deltas.shape, np.float32)
    advantages[::-1] = linear_recurrence(deltas[::-1], decays[::-1], np.zeros(deltas.shape[1]))
    return advantages


def explained_variance(returns: Array, values: Array) -> dict[str, float]:
    """Return the fraction of the returns' variance that the values explain, unless there is none."""
    variance = float(returns.var())
    return {"explained_variance": 1 - float((returns - values).var()) / variance} if variance > 0 else {}


def categorical_log_probs(logits: Array, actions: Integers) -> Array:
    """Return the log-probabilities of actions [rows] under the softmax distribution of logits [rows, actions]."""
    shifted = logits - logits.max(1, keepdims=True)
    log_probs: Array = shifted[np.arange(len(actions)), actions] - np.log(np.exp(shifted).sum(1))
    return log_probs


def gaussian_log_probs(noise: Array, log_std: Array) -> Array:
    """Return the log-probabilities of samples μ + σ z for noise z [rows, size]; they do not depend on μ."""
    # log N(μ + σ z; μ, σ²) = -Σ_j (z_j² / 2 + log σ_j + log(2π) / 2)
    constant = float(log_std.sum()) + len(log_std) * HALF_LOG_TWO_PI
    log_probs: Array = -0.5 * (noise * noise).sum(1) - constant
    return log_probs


@dataclass
class RolloutBatch:
    """One rollout, flattened: one row per environment step."""

    observations: Array
    actions: npt.NDArray[Any]
    """Indices [rows], or vectors [rows, size]."""
    log_probs: Array
    advantages: Array
    returns: Array
    values: Array


class PpoLosses(NamedTuple):
    """Losses of the last minibatch; `clipfrac` is the mean over the update."""

    value_loss: float
    policy_loss: float
    entropy: float
    old_approx_kl: float
    approx_kl: float
    clipfrac: float


class PpoKernel(NumpyLearner):
    """The part of the update that is the same for a categorical and a Gaussian policy."""

    def __init__(self, network: PpoNetwork, rows: int, settings: PpoSettings) -> None:
        super().__init__(rows, NumpyAdam(network, ADAM_EPSILON, settings.max_grad_norm))
        self.network = network
        self.settings = settings
        self._is_tanh = network.architecture.activation == "tanh"
        self.gradient = network.zero_vector()
        self._learning_rate = 0.0
        self._clip_fractions: list[float] = []
        self.is_gradient_finite = True
        self.is_stopped: Callable[[], bool] = bool
        self._hidden = [np.empty((2, rows, size), np.float32) for size in network.hidden]
        self._deltas = [np.empty((2, rows, size), np.float32) for size in network.hidden]
        self._slopes = [np.empty((2, rows, size), np.float32) for size in network.hidden]
        self._transposed_weights = [
            np.empty((2, *weight.shape[:0:-1]), np.float32) for weight in network.parameters.weights
        ]
        self._ones = np.ones((1, rows), np.float32)
        self._ones_column = np.ones((rows, 1), np.float32)
        self._out = np.empty((network.outputs, rows), np.float32)
        self._out_delta = np.empty((network.outputs, rows), np.float32)
        self._log_ratio, self._ratio, self._clip, self._unclipped_loss, self._clipped_loss = np.empty(
            (5, rows), np.float32
        )
        self._value_row, self._value_delta_row = np.empty((2, 1, rows), np.float32)
        # The same buffers as plain vectors: broadcasting over a dimension of 1 takes numpy twice as long.
        self._value, self._value_delta = self._value_row[0], self._value_delta_row[0]
        self._error, self._clipped_error, self._error_size, self._clipped_error_size = np.empty((4, rows), np.float32)
        self._is_unclipped = np.empty(rows, np.bool_)

    # --- implemented by the policy

    def _arrange_actions(self, batch: RolloutBatch, order: Integers) -> npt.NDArray[Any]:
        """Return the actions of an epoch as [minibatches, outputs, rows]."""
        raise NotImplementedError

    def _log_probs(self, actions: npt.NDArray[Any]) -> Array:
        """Return log π(a|s) of the actions under the outputs in `_out`."""
        raise NotImplementedError

    def _backward_outputs(self, log_prob_grad: Array, actions: npt.NDArray[Any]) -> None:
        """Fill `_out_delta` with ∂L/∂output, given ∂L/∂log π(a|s); includes the entropy term."""
        raise NotImplementedError

    def _entropy(self) -> float:
        raise NotImplementedError

    # --- the update

    def begin_update(self, learning_rate: float) -> None:
        self._learning_rate = learning_rate
        self._clip_fractions = []
        self.is_gradient_finite = True

    def run_epoch(self, batch: RolloutBatch, order: Integers) -> None:
        rows = self.rows
        observations = batch.observations.take(order, 0)
        actions = self._arrange_actions(batch, order)
        log_probs = batch.log_probs.take(order)
        values = batch.values.take(order)
        value_errors = values - batch.returns.take(order)
        advantages = batch.advantages.take(order).reshape(-1, rows)
        if self.settings.norm_adv:
            # A ← (A - mean A) / (std A + 1e-8), per minibatch
            advantages -= advantages.mean(1, keepdims=True)
            advantages /= advantages.std(1, ddof=1, keepdims=True) + 1e-8
        advantages *= -1 / rows  # the loss is the negative mean
        for index in range(len(order) // rows):
            part = slice(index * rows, (index + 1) * rows)
            self.compute_gradient(
                observations[part], actions[index], log_probs[part], advantages[index], values[part], value_errors[part]
            )
            # clipfrac = share of rows with |r - 1| > ε
            np.subtract(self._ratio, 1, out=self._clip)
            np.abs(self._clip, out=self._clip)
            self._clip_fractions.append(np.count_nonzero(self._clip > self.settings.clip_coef) / rows)
            if not self._adam(self.gradient, self._learning_rate):
                self.is_gradient_finite = False
            if not self.is_gradient_finite or self.is_stopped():
                return

    def compute_gradient(
        self,
        observations: Array,
        actions: npt.NDArray[Any],
        log_probs: Array,
        scaled_advantages: Array,
        values: Array,
        value_errors: Array,
    ) -> None:
        """Fill the gradient. `scaled_advantages` are -A/N, `value_errors` are V_old - R."""
        views, gradient, hidden = self.network.parameters, self.gradient, self._hidden
        # h_l = f(h_{l-1} W_l + b_l) with f = tanh or ReLU, for actor and critic at once; the heads are linear.
        below: Array = observations
        for weight, bias, layer in zip(views.weights, views.biases, hidden, strict=True):
            np.matmul(below, weight, out=layer)
            np.add(layer, bias, out=layer)
            if self._is_tanh:
                np.tanh(layer, out=layer)
            else:
                np.maximum(layer, 0, out=layer)
            below = layer
        np.dot(views.actor_weight, below[ACTOR].T, out=self._out)
        np.add(self._out, views.actor_bias, out=self._out)
        np.dot(views.critic_weight, below[CRITIC].T, out=self._value_row)
        np.add(self._value, views.critic_bias[0, 0], out=self._value)

        # Clipped surrogate, per row with w = -A/N:
        #   r = exp(log π - log π_old)
        #   L_π = max(w r, w clip(r, 1-ε, 1+ε))
        #   ∂L_π/∂log π = w r  where w r ≥ w clip(r, 1-ε, 1+ε), else 0   (as ∂r/∂log π = r)
        # Inside the range both products are bit-identical, so the comparison needs no tolerance.
        low, high = 1 - self.settings.clip_coef, 1 + self.settings.clip_coef
        np.subtract(self._log_probs(actions), log_probs, out=self._log_ratio)
        np.exp(self._log_ratio, out=self._ratio)
        np.maximum(self._ratio, low, out=self._clip)
        np.minimum(self._clip, high, out=self._clip)
        np.multiply(scaled_advantages, self._ratio, out=self._unclipped_loss)
        np.multiply(scaled_advantages, self._clip, out=self._clipped_loss)
        np.greater_equal(self._unclipped_loss, self._clipped_loss, out=self._is_unclipped)
        np.multiply(self._unclipped_loss, self._is_unclipped, out=self._clip)
        self._backward_outputs(self._clip, actions)

        # Value loss: e = V - R, and, with clip_vloss, e_clip = V_old + clip(V - V_old, -ε, ε) - R.
        #   L_V = 1/(2N) Σ max(e², e_clip²)
        #   ∂(vf_coef L_V)/∂V = vf_coef/N · e  where |e| ≥ |e_clip|, else 0   (the clipped value is constant in V)
        if self.settings.clip_vloss:
            reach = self.settings.clip_coef
            np.subtract(self._value, values, out=self._value_delta)
            np.maximum(self._value_delta, -reach, out=self._clipped_error)
            np.minimum(self._clipped_error, reach, out=self._clipped_error)
            np.add(self._clipped_error, value_errors, out=self._clipped_error)
            np.add(self._value_delta, value_errors, out=self._error)
            np.abs(self._error, out=self._error_size)
            np.abs(self._clipped_error, out=self._clipped_error_size)
            np.greater_equal(self._error_size, self._clipped_error_size, out=self._is_unclipped)
            np.multiply(self._error, self._is_unclipped, out=self._value_delta)
        else:
            np.subtract(self._value, values, out=self._error)
            np.add(self._error, value_errors, out=self._error)
            np.copyto(self._clipped_error, self._error)
            np.copyto(self._value_delta, self._error)
        np.multiply(self._value_delta, self.settings.vf_coef / self.rows, out=self._value_delta)

        # Backward pass, with Δ = ∂L/∂(output of a layer before its activation function f):
        #   ∂L/∂W_l = h_{l-1}ᵀ Δ_l     ∂L/∂b_l = Σ_rows Δ_l     Δ_{l-1} = (Δ_l W_lᵀ) ⊙ f'
        # where f' = 1 - h_{l-1}² for tanh, 1[h_{l-1} > 0] for ReLU.
        delta = self._deltas[-1]
        for side, out_delta, head, head_grad, bias_grad in (
            (ACTOR, self._out_delta, views.actor_weight, gradient.actor_weight, gradient.actor_bias),
            (CRITIC, self._value_delta_row, views.critic_weight, gradient.critic_weight, gradient.critic_bias),
        ):
            np.dot(out_delta, below[side], out=head_grad)
            np.dot(out_delta, self._ones_column, out=bias_grad)
            np.dot(out_delta.T, head, out=delta[side])
        for index in range(len(hidden) - 1, -1, -1):
            delta, slope = self._deltas[index], self._slopes[index]
            if self._is_tanh:
                np.multiply(hidden[index], hidden[index], out=slope)
                np.subtract(1, slope, out=slope)
            else:
                np.greater(hidden[index], 0, out=slope)
            np.multiply(delta, slope, out=delta)
            np.matmul(self._ones, delta, out=gradient.biases[index])
            if index == 0:
                np.matmul(observations.T, delta, out=gradient.weights[0])
            else:
                np.matmul(hidden[index - 1].transpose(0, 2, 1), delta, out=gradient.weights[index])
                # Copying the transposed weights first is faster than a product with a transposed view.
                transposed = self._transposed_weights[index]
                np.copyto(transposed, views.weights[index].transpose(0, 2, 1))
                np.matmul(delta, transposed, out=self._deltas[index - 1])

    def losses(self) -> PpoLosses:
        # old_approx_kl = E[-log r];  approx_kl = E[(r - 1) - log r]  (http://joschu.net/blog/kl-approx.html)
        log_ratio = self._log_ratio.astype(np.float64)
        return PpoLosses(
            value_loss=0.5 * float(np.mean(np.maximum(self._error**2, self._clipped_error**2))),
            policy_loss=float(np.sum(np.maximum(self._unclipped_loss, self._clipped_loss))),
            entropy=self._entropy(),
            old_approx_kl=float(np.mean(-log_ratio)),
            approx_kl=float(np.mean(np.expm1(log_ratio) - log_ratio)),
            clipfrac=sum(self._clip_fractions) / len(self._clip_fractions),
        )

    def actor(self, rows: int) -> PpoActor:
        return PpoActor(self.network, rows)


class CategoricalKernel(PpoKernel):
    """The update for discrete actions: the outputs are logits z, π = softmax(z)."""

    def __init__(self, network: PpoNetwork, rows: int, settings: PpoSettings) -> None:
        super().__init__(network, rows, settings)
        self._one_hot_rows = np.eye(network.outputs, dtype=np.float32)
        self._probs, self._logs, self._product = np.empty((3, network.outputs, rows), np.float32)
        self._total = np.empty(rows, np.float32)
        self._taken_log_probs = np.empty(rows, np.float32)

    def _arrange_actions(self, batch: RolloutBatch, order: Integers) -> npt.NDArray[Any]:
        chosen = batch.actions.take(order).reshape(-1, self.rows)
        return self._one_hot_rows.take(chosen, 0).transpose(0, 2, 1).copy()

    def _reduce(self, operation: np.ufunc, values: Array) -> None:
        """Fill `_total` with the maximum or the sum of values [outputs, rows] over the actions of a choice."""
        operation.reduce(values, 0, out=self._total)

    def _log_probs(self, actions: npt.NDArray[Any]) -> Array:
        # log π_i = z_i - max z - log Σ_j exp(z_j - max z); the one-hot actions select the row's action.
        self._reduce(np.maximum, self._out)
        np.subtract(self._out, self._total, out=self._logs)
        np.exp(self._logs, out=self._probs)
        self._reduce(np.add, self._probs)
        np.divide(self._probs, self._total, out=self._probs)
        np.log(self._total, out=self._total)
        np.subtract(self._logs, self._total, out=self._logs)
        np.multiply(self._logs, actions, out=self._product)
        np.add.reduce(self._product, 0, out=self._taken_log_probs)
        return self._taken_log_probs

    def _backward_outputs(self, log_prob_grad: Array, actions: npt.NDArray[Any]) -> None:
        # ∂log π(a)/∂z_i = 1[i = a] - π_i
        np.subtract(actions, self._probs, out=self._out_delta)
        np.multiply(self._out_delta, log_prob_grad, out=self._out_delta)
        if self.settings.ent_coef:
            # H = -Σ π log π,  ∂H/∂z_i = -π_i (log π_i + H)
            # ∂(-ent_coef/N · H)/∂z_i = ent_coef/N · π_i (log π_i - Σ_j π_j log π_j)
            np.multiply(self._probs, self._logs, out=self._product)
            self._reduce(np.add, self._product)
            np.subtract(self._logs, self._total, out=self._product)
            np.multiply(self._product, self._probs, out=self._product)
            np.multiply(self._product, self.settings.ent_coef / self.rows, out=self._product)
            np.add(self._out_delta, self._product, out=self._out_delta)

    def _entropy(self) -> float:
        return -float(np.sum(self._probs * self._logs)) / self.rows


class MultiCategoricalKernel(CategoricalKernel):
    """The update for several independent choices: a softmax over the logits of each; log π and entropy are sums."""

    def __init__(self, network: PpoNetwork, rows: int, settings: PpoSettings, counts: Sequence[int]) -> None:
        super().__init__(network, rows, settings)
        self._counts = np.array(counts)
        self._starts = np.cumsum(self._counts) - self._counts
        """The first output of each choice."""
        self._total = np.empty((network.outputs, rows), np.float32)

    def _arrange_actions(self, batch: RolloutBatch, order: Integers) -> npt.NDArray[Any]:
        selected = (batch.actions.take(order, 0) + self._starts).reshape(-1, self.rows, len(self._counts))
        return np.asarray(self._one_hot_rows.take(selected, 0).sum(2).transpose(0, 2, 1).copy())

    def _reduce(self, operation: np.ufunc, values: Array) -> None:
        self._total[...] = np.repeat(operation.reduceat(values, self._starts, 0), self._counts, 0)


class GaussianKernel(PpoKernel):
    """The update for continuous actions: the outputs are means μ; one log σ per action dimension is a parameter."""

    def __init__(self, network: PpoNetwork, rows: int, settings: PpoSettings) -> None:
        super().__init__(network, rows, settings)
        self._scaled, self._product = np.empty((2, network.outputs, rows), np.float32)
        self._sum = np.empty(rows, np.float32)
        self._inverse = np.empty((network.outputs, 1), np.float32)
        self._log_stds = 0.0

    def _arrange_actions(self, batch: RolloutBatch, order: Integers) -> npt.NDArray[Any]:
        return batch.actions.take(order, 0).reshape(-1, self.rows, self.network.outputs).transpose(0, 2, 1).copy()

    def _log_probs(self, actions: npt.NDArray[Any]) -> Array:
        log_std = self.network.parameters.log_std
        assert log_std is not None
        # z = (a - μ) / σ,  log π(a|s) = Σ_j (-z_j² / 2 - log σ_j - log(2π) / 2)
        self._inverse = np.exp(-log_std)
        self._log_stds = float(log_std.sum())
        np.subtract(actions, self._out, out=self._scaled)
        np.multiply(self._scaled, self._inverse, out=self._scaled)
        np.multiply(self._scaled, self._scaled, out=self._product)
        np.add.reduce(self._product, 0, out=self._sum)
        np.multiply(self._sum, -0.5, out=self._sum)
        np.subtract(self._sum, self._log_stds + self.network.outputs * HALF_LOG_TWO_PI, out=self._sum)
        return self._sum

    def _backward_outputs(self, log_prob_grad: Array, actions: npt.NDArray[Any]) -> None:
        log_std_grad = self.gradient.log_std
        assert log_std_grad is not None
        # ∂log π/∂log σ_j = z_j² - 1   (`_product` holds z²),   ∂log π/∂μ_j = z_j / σ_j
        np.subtract(self._product, 1, out=self._product)
        np.dot(self._product, log_prob_grad, out=log_std_grad[:, 0])
        # H = Σ_j (log σ_j + 1/2 + log(2π) / 2), so ∂(-ent_coef H)/∂log σ_j = -ent_coef
        np.subtract(log_std_grad, self.settings.ent_coef, out=log_std_grad)
        np.multiply(self._scaled, self._inverse, out=self._out_delta)
        np.multiply(self._out_delta, log_prob_grad, out=self._out_delta)

    def _entropy(self) -> float:
        return self._log_stds + self.network.outputs * (0.5 + HALF_LOG_TWO_PI)
