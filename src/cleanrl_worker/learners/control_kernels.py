"""The updates of SAC, TD3 and DDPG in numpy with hand-written gradients.

Almost all of their time goes into products of 256-wide matrices, which numpy computes as fast as torch does. What is
saved is work whose result is not used: a critic's parameter gradient while the actor is updated, the backward pass
through the larger of two critics, a forward pass that was just computed. The losses in torch_control.py are the
reference: the tests compare these gradients with autograd's.

As in perceptron.py, a network's outputs are [outputs, rows]. N is the number of rows, d = 1 at a terminal transition.
Actions are a = scale · tanh(u) + bias, for the actor's output or sample u.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.learners.architecture import activation_gradient
from cleanrl_worker.learners.flat_network import (
    ADAM_BETA_1,
    ADAM_BETA_2,
    HALF_LOG_TWO_PI,
    Array,
    NumpyAdam,
    select_by_prefix,
)
from cleanrl_worker.learners.perceptron import ActorCriticNetworks, ForwardPass, Perceptron, PerceptronViews
from cleanrl_worker.learners.protocols import ActorCriticSettings
from cleanrl_worker.learners.value_kernels import BackwardPass, soft_update

if TYPE_CHECKING:
    from cleanrl_worker.replay.buffers import PackedBatch, Replay

EPSILON = 1e-8
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
LOG_EPSILON = 1e-6
"""Added to an action's density so that its logarithm is finite at the bounds (`c` in the comments below)."""


class ActorCriticKernel:
    """What SAC, TD3 and DDPG share: the update of the critics, and ∂Q/∂a."""

    is_asynchronous = False

    def __init__(
        self,
        networks: ActorCriticNetworks,
        replay: Replay,
        settings: ActorCriticSettings,
        learning_rates: tuple[float, float],
        scale: Array,
        bias: Array,
        rng: np.random.Generator,
    ) -> None:
        rows = settings.batch_size
        self.networks = networks
        self.batch: PackedBatch = replay.allocate_batch(rows)
        self.actor = BackwardPass(networks.actor, rows)
        self.critics = [BackwardPass(critic, rows) for critic in networks.critics]
        self._targets = [ForwardPass(target, rows) for target in networks.targets]
        self._actor_learning_rate, self._critic_learning_rate = learning_rates
        self._actor_adam = NumpyAdam(networks.actor)
        self._critic_adams = [NumpyAdam(critic) for critic in networks.critics]
        self._gamma, self._tau = settings.gamma, settings.tau
        self._scale, self._bias = scale.reshape(-1, 1).astype(np.float32), bias.reshape(-1, 1).astype(np.float32)
        self._rng = rng
        self._rows = rows
        self._actor_forward = ForwardPass(networks.actor, replay.num_envs)
        self._critic_inputs = np.empty((rows, networks.observation_size + networks.action_size), np.float32)
        self._td_targets = np.empty(rows, np.float32)
        self._out_delta = np.empty((1, rows), np.float32)
        self._action_grads = np.empty((networks.action_size, rows), np.float32)
        self._metrics: dict[str, float] = {}

    def act(self, observations: npt.NDArray[Any], meanwhile: Callable[[], None] = lambda: None) -> Array:
        outputs = self._actor_forward(observations).T
        meanwhile()
        return outputs

    def update(self, replay: Replay, is_policy_due: bool, is_target_due: bool) -> bool:
        replay.sample(self.batch)
        self._compute_td_targets(self._next_values())
        is_finite = self._update_critics()
        if is_policy_due:
            is_finite &= self._update_actor()
        if is_target_due:
            self._update_targets()
        return is_finite

    # --- implemented by the algorithm

    def _next_values(self) -> Array:
        """Return the value of the next observations according to the target networks."""
        raise NotImplementedError

    def _update_actor(self) -> bool:
        """Update the actor; return False if its gradient is not finite."""
        raise NotImplementedError

    # --- shared steps

    def _concat_actions(self, observations: npt.NDArray[Any], actions: Array) -> Array:
        """Return the critics' inputs [rows, observations + actions]; actions are [actions, rows]."""
        size = self.networks.observation_size
        self._critic_inputs[:, :size] = observations
        self._critic_inputs[:, size:] = actions.T
        return self._critic_inputs

    def _min_values(self, forwards: Sequence[ForwardPass], pairs: Array) -> Array:
        """Return min_k Q_k(s, a) for each row."""
        smallest: Array = forwards[0](pairs)[0]
        for forward in forwards[1:]:
            smallest = np.minimum(smallest, forward(pairs)[0])
        return smallest

    def _compute_td_targets(self, next_values: Array) -> None:
        """Fill the critics' targets: y = r + γ (1 - d) V(s')."""
        np.subtract(1, self.batch.terminals, out=self._td_targets)
        np.multiply(self._td_targets, self._gamma, out=self._td_targets)
        np.multiply(self._td_targets, next_values, out=self._td_targets)
        np.add(self._td_targets, self.batch.rewards, out=self._td_targets)

    def _update_critics(self) -> bool:
        """Take one step of each critic towards the targets."""
        # L_k = 1/N Σ (Q_k(s, a) - y)²,  ∂L_k/∂Q_k = 2/N (Q_k(s, a) - y)
        pairs = self._concat_actions(self.batch.observations, self.batch.actions.T)
        is_finite = True
        for number, (critic, adam) in enumerate(zip(self.critics, self._critic_adams, strict=True), start=1):
            values = critic.forward(pairs)[0]
            errors = values - self._td_targets
            np.multiply(errors, 2 / self._rows, out=self._out_delta[0])
            critic(self._out_delta)
            is_finite &= adam(critic.views, self._critic_learning_rate)
            self._metrics[f"qf{number}_values"] = float(np.add.reduce(values)) / self._rows
            self._metrics[f"qf{number}_loss"] = float(np.dot(errors, errors)) / self._rows
        return is_finite

    def _action_gradients(self, forward: ForwardPass, columns: npt.NDArray[np.intp] | slice) -> None:
        """Fill these columns of `_action_grads` with ∂Q/∂a of the last forward pass."""
        # G_L = W_Lᵀ,  G_{l-1} = W_lᵀ (G_l ⊙ f'(h_l)),  and at the first layer only the columns of the actions
        layers, inputs = forward.network.parameters.layers, forward.inputs
        grad: Array = layers[-1][0, :-1, None]
        activation = forward.network.architecture.activation
        for index in range(len(layers) - 2, -1, -1):
            grad = grad * activation_gradient(activation, inputs[index + 1][:-1, columns])
            weights = layers[index][:, :-1] if index else layers[0][:, self.networks.observation_size : -1]
            grad = np.dot(weights.T, grad)
        self._action_grads[:, columns] = grad

    def _update_targets(self) -> None:
        for network, target in self.networks.targeted_networks():
            soft_update(target, network, self._tau)

    def losses(self) -> dict[str, float]:
        losses = dict(self._metrics)
        if len(self.critics) > 1:
            losses["qf_loss"] = (losses["qf1_loss"] + losses["qf2_loss"]) / 2
        return losses

    def first_non_finite(self) -> None:
        """Return None: `update` itself reports a gradient that is not finite."""

    def sync_networks(self) -> None:
        """Do nothing: this learner updates the networks in place."""

    def _moments(self) -> Iterator[tuple[str, Perceptron, PerceptronViews]]:
        """Yield each moment of each optimizer: the prefix of its names, the network it belongs to, and its vector."""
        adams = (self._actor_adam, *self._critic_adams)
        for network, adam in zip(self.networks.trained_networks.values(), adams, strict=True):
            yield "adam.first.", network, adam.first_moment
            yield "adam.second.", network, adam.second_moment

    def optimizer_state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        arrays: dict[str, npt.NDArray[Any]] = {}
        for prefix, network, views in self._moments():
            arrays |= {f"{prefix}{name}": part for name, part in network.named_arrays(views).items()}
        counts = [adam.count for adam in (self._actor_adam, *self._critic_adams)]
        return arrays, {"counts": dict(zip(self.networks.trained_networks, counts, strict=True))}

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]) -> None:
        for prefix, network, views in self._moments():
            network.assign(views, select_by_prefix(prefix, arrays))
        for name, adam in zip(self.networks.trained_networks, (self._actor_adam, *self._critic_adams), strict=True):
            adam.count = facts["counts"][name]


class SacKernel(ActorCriticKernel):
    """Soft actor-critic (arXiv:1812.05905).

    y = r + γ (1 - d) (min_k Q_target,k(s', a') - α log π(a'|s')),  a' ~ π(s')
    L_π = 1/N Σ (α log π(a|s) - min_k Q_k(s, a)),  a ~ π(s)
    """

    def __init__(self, *args: Any, policy_steps: int, alpha: float, log_alpha: Array | None) -> None:
        super().__init__(*args)
        rows, size = self._rows, self.networks.action_size
        self._policy_steps = policy_steps
        self._alpha = alpha
        self._log_alpha = log_alpha
        """log α [1], updated in place; None where the temperature is fixed."""
        self._alpha_adam = ScalarAdam(log_alpha, self._critic_learning_rate) if log_alpha is not None else None
        self._target_entropy = -float(size)
        self._noise, self._tanh_log_stds, self._stds, self._squashed, self._tanh_grads = np.empty(
            (5, size, rows), np.float32
        )
        self._actions = np.empty((size, rows), np.float32)
        self._actor_delta = np.empty((2 * size, rows), np.float32)

    @property
    def alpha(self) -> float:
        if self._log_alpha is None:
            return self._alpha
        return math.exp(min(float(self._log_alpha[0]), 700.0))  # math.exp raises above; the losses overflow earlier

    def _next_values(self) -> Array:
        log_probs = self._sample_actions(self.actor.forward(self.batch.next_observations))
        values = self._min_values(self._targets, self._concat_actions(self.batch.next_observations, self._actions))
        return values - self.alpha * log_probs

    def _sample_actions(self, outputs: Array) -> Array:
        """Sample actions, squashed into their bounds, and return their log-probabilities."""
        # log σ = LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) / 2 · (tanh(output) + 1)
        # u = μ + σ ξ, ξ ~ N(0, 1)     a = scale · tanh(u) + bias
        size = self.networks.action_size
        self._rng.standard_normal(dtype=np.float32, out=self._noise)
        np.tanh(outputs[size:], out=self._tanh_log_stds)
        log_stds = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (self._tanh_log_stds + 1)
        np.exp(log_stds, out=self._stds)
        np.multiply(self._stds, self._noise, out=self._squashed)
        np.add(self._squashed, outputs[:size], out=self._squashed)
        np.tanh(self._squashed, out=self._squashed)
        np.multiply(self._squashed, self._scale, out=self._actions)
        np.add(self._actions, self._bias, out=self._actions)
        # log π(a|s) = -Σ_j (ξ_j² / 2 + log σ_j + log(2π) / 2 + log(scale_j (1 - tanh² u_j) + c))
        np.multiply(self._squashed, self._squashed, out=self._tanh_grads)
        np.subtract(1, self._tanh_grads, out=self._tanh_grads)
        density = self._tanh_grads * self._scale + LOG_EPSILON
        np.log(density, out=density)
        density += log_stds
        density += 0.5 * self._noise * self._noise
        return np.asarray(-np.add.reduce(density, 0) - size * HALF_LOG_TWO_PI)

    def _update_actor(self) -> bool:
        """Take `policy_steps` steps of the actor, to make up for the delay, and one of the temperature after each."""
        observations, forwards = self.batch.observations, [critic.forward for critic in self.critics]
        outputs, is_finite = self.actor.forward(observations), True
        for step in range(self._policy_steps):
            log_probs = self._sample_actions(outputs)
            pairs = self._concat_actions(observations, self._actions)
            first, second = (forward(pairs)[0] for forward in forwards)
            is_first = first <= second
            # Only the smaller value is in the loss: ∂ min_k Q_k/∂a is that of its critic.
            for forward, is_chosen in zip(forwards, (is_first, ~is_first), strict=True):
                self._action_gradients(forward, np.flatnonzero(is_chosen))
            alpha = self.alpha
            smallest = np.minimum(first, second)
            self._metrics["actor_loss"] = float(np.add.reduce(alpha * log_probs - smallest)) / self._rows
            self._backward_actor_loss(alpha)
            self.actor(self._actor_delta)
            is_finite &= self._actor_adam(self.actor.views, self._actor_learning_rate)
            # The next step uses the same observations: one forward pass serves it and the temperature.
            if self._alpha_adam is not None or step + 1 < self._policy_steps:
                outputs = self.actor.forward(observations)
            if self._alpha_adam is not None:
                # L_α = -α (mean log π(a|s) + H_target);  as α = exp(log α), ∂L_α/∂log α = L_α
                excess = float(np.add.reduce(self._sample_actions(outputs))) / self._rows + self._target_entropy
                self._metrics["alpha_loss"] = alpha_loss = -alpha * excess
                self._alpha_adam(alpha_loss)
        return is_finite

    def _backward_actor_loss(self, alpha: float) -> None:
        """Fill `_actor_delta` with ∂L_π/∂outputs, given ∂Q/∂a in `_action_grads`."""
        # With t = tanh(u), f = 1 - t² and the density term log(scale f + c) of log π, per row and action:
        #   ∂(-log(scale f + c))/∂u = 2 t scale f / (scale f + c)
        #   ∂L/∂μ = ∂L/∂u = scale f (2 α t / (scale f + c) - ∂Q/∂a)
        #   ∂L/∂log σ = ∂L/∂u · σ ξ - α          (u = μ + σ ξ; log π also contains -log σ)
        #   ∂L/∂output = ∂L/∂log σ · (1 - tanh²(output)) (LOG_STD_MAX - LOG_STD_MIN) / 2
        # and all of it divided by N.
        size = self.networks.action_size
        means, log_stds = self._actor_delta[:size], self._actor_delta[size:]
        np.multiply(self._tanh_grads, self._scale, out=means)
        np.add(means, LOG_EPSILON, out=means)
        np.divide(self._squashed, means, out=means)
        np.multiply(means, 2 * alpha, out=means)
        np.subtract(means, self._action_grads, out=means)
        np.multiply(means, self._scale, out=means)
        np.multiply(means, self._tanh_grads, out=means)
        np.multiply(means, self._stds, out=log_stds)
        np.multiply(log_stds, self._noise, out=log_stds)
        np.subtract(log_stds, alpha, out=log_stds)
        np.multiply(self._tanh_log_stds, self._tanh_log_stds, out=self._tanh_log_stds)
        np.subtract(1, self._tanh_log_stds, out=self._tanh_log_stds)
        np.multiply(log_stds, self._tanh_log_stds, out=log_stds)
        np.multiply(log_stds, 0.5 * (LOG_STD_MAX - LOG_STD_MIN), out=log_stds)
        np.multiply(self._actor_delta, 1 / self._rows, out=self._actor_delta)

    def losses(self) -> dict[str, float]:
        return {**super().losses(), "alpha": self.alpha}

    def optimizer_state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        arrays, facts = super().optimizer_state()
        if self._alpha_adam is not None:
            arrays |= self._alpha_adam.arrays()
            facts["counts"]["log_alpha"] = self._alpha_adam.count
        return arrays, facts

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]) -> None:
        super().restore(arrays, facts)
        if self._alpha_adam is not None:
            self._alpha_adam.restore(arrays, facts["counts"]["log_alpha"])


class DeterministicKernel(ActorCriticKernel):
    """TD3 (arXiv:1802.09477) and DDPG (arXiv:1509.02971), which has one critic and no noise on the target actions.

    y = r + γ (1 - d) min_k Q_target,k(s', clip(μ_target(s') + scale · clip(noise, -c, c), low, high))
    L_μ = -1/N Σ Q_1(s, μ(s))
    """

    def __init__(self, *args: Any, policy_noise: float, noise_clip: float) -> None:
        super().__init__(*args)
        rows, size = self._rows, self.networks.action_size
        assert self.networks.target_actor is not None
        self._target_actor = ForwardPass(self.networks.target_actor, rows)
        self._policy_noise, self._noise_clip = policy_noise, noise_clip
        self._noise, self._squashed, self._actions, self._actor_delta = np.empty((4, size, rows), np.float32)
        self._low, self._high = self._bias - self._scale, self._bias + self._scale

    def _next_values(self) -> Array:
        self._squash_actions(self._target_actor(self.batch.next_observations))
        if self._policy_noise:
            noise, reach = self._noise, self._noise_clip
            self._rng.standard_normal(dtype=np.float32, out=noise)
            np.multiply(noise, self._policy_noise, out=noise)
            np.clip(noise, -reach, reach, out=noise)
            np.multiply(noise, self._scale, out=noise)
            np.add(self._actions, noise, out=self._actions)
            np.clip(self._actions, self._low, self._high, out=self._actions)
        return self._min_values(self._targets, self._concat_actions(self.batch.next_observations, self._actions))

    def _squash_actions(self, outputs: Array) -> None:
        np.tanh(outputs, out=self._squashed)
        np.multiply(self._squashed, self._scale, out=self._actions)
        np.add(self._actions, self._bias, out=self._actions)

    def _update_actor(self) -> bool:
        observations, forward = self.batch.observations, self.critics[0].forward
        self._squash_actions(self.actor.forward(observations))
        values = forward(self._concat_actions(observations, self._actions))[0]
        self._metrics["actor_loss"] = -float(np.add.reduce(values)) / self._rows
        self._action_gradients(forward, slice(None))
        # ∂L_μ/∂output = -1/N · ∂Q_1/∂a · scale (1 - tanh²(output))
        delta = self._actor_delta
        np.multiply(self._squashed, self._squashed, out=delta)
        np.subtract(1, delta, out=delta)
        np.multiply(delta, self._scale * (-1 / self._rows), out=delta)
        np.multiply(delta, self._action_grads, out=delta)
        self.actor(delta)
        return self._actor_adam(self.actor.views, self._actor_learning_rate)


class ScalarAdam:
    """Adam for a single number, updated in place (equations: NumpyAdam)."""

    def __init__(self, value: Array, learning_rate: float) -> None:
        self.count = 0
        self._value = value
        self._learning_rate = learning_rate
        self._first_moment = self._second_moment = 0.0

    def __call__(self, gradient: float) -> None:
        self.count += 1
        self._first_moment += (1 - ADAM_BETA_1) * (gradient - self._first_moment)
        self._second_moment += (1 - ADAM_BETA_2) * (gradient * gradient - self._second_moment)
        denominator = math.sqrt(self._second_moment / (1 - ADAM_BETA_2**self.count)) + EPSILON
        self._value[0] -= self._learning_rate * self._first_moment / (1 - ADAM_BETA_1**self.count) / denominator

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {
            "adam.first.log_alpha": np.array([self._first_moment]),
            "adam.second.log_alpha": np.array([self._second_moment]),
        }

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], count: int) -> None:
        self._first_moment, self._second_moment = (
            float(arrays[f"adam.{kind}.log_alpha"][0]) for kind in ("first", "second")
        )
        self.count = count
