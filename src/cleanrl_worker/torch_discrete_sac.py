"""The update of soft actor-critic for discrete actions and images in torch: on a CPU, or as a CUDA graph on a GPU.

Expectations over the few discrete actions are computed exactly, without sampling. Imports only torch, numpy and modules
that need nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, log_softmax, mse_loss

from cleanrl_worker.flat_network import select_by_prefix
from cleanrl_worker.learners import DiscreteSacSettings
from cleanrl_worker.torch_backend import GraphedStep, NonFiniteReport, StepMetrics, TorchContext
from cleanrl_worker.torch_conv import TorchLearner, as_arrays, as_tensors, conv_features
from cleanrl_worker.torch_replay import FrameBuffer, ReplayFeed

Array = Any
ADAM_EPSILON = 1e-4
SAC_METRIC_NAMES = ("qf1_values", "qf2_values", "qf1_loss", "qf2_loss", "qf_loss", "actor_loss", "alpha", "alpha_loss")


class DiscreteSacNetwork:
    """One network of a state dict with name prefixes; gives one number per action."""

    def __init__(self, weights: Mapping[str, Tensor], name: str) -> None:
        self._weights: dict[str, Tensor] = select_by_prefix(f"{name}.", weights)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the outputs [rows, actions] for images [rows, 84, 84, 4]."""
        return linear(conv_features(self._weights, images), self._weights["head.weight"], self._weights["head.bias"])


def soft_values(log_probs: Tensor, values: Tensor, alpha: Tensor) -> Tensor:
    """Return the soft state values [rows]: V(s) = sum_a pi(a|s) (Q(s, a) - alpha * log pi(a|s))."""
    return (log_probs.exp() * (values - alpha * log_probs)).sum(1)


class DiscreteSacLearner:
    """Trains the actor, two critics with target networks, and the temperature alpha."""

    def __init__(
        self,
        parameters: Mapping[str, Array],
        targets: Mapping[str, Array],
        feed: ReplayFeed,
        settings: DiscreteSacSettings,
        compute: TorchContext,
    ) -> None:
        """Parameters are named `actor.…`, `qf1.…`, `qf2.…` and `log_alpha`; the targets' like the critics'."""
        self.compute = compute
        parts = {
            kind: {name: part for name, part in parameters.items() if name.startswith(kind)} for kind in ("actor", "qf")
        }
        self._actor = TorchLearner(parts["actor"], settings.policy_lr, ADAM_EPSILON, compute)
        self._critics = TorchLearner(parts["qf"], settings.q_lr, ADAM_EPSILON, compute)
        self._targets = as_tensors(targets, compute.device, is_learned=False)
        self._alpha_learner = TorchLearner({"log_alpha": parameters["log_alpha"]}, settings.q_lr, ADAM_EPSILON, compute)
        self._learners = [self._actor, self._critics] + ([self._alpha_learner] if settings.autotune else [])
        self._alpha = torch.full((), settings.alpha, device=compute.device)
        if settings.autotune:
            self._alpha.copy_(self._log_alpha.detach().exp()[0])

        self.actor = DiscreteSacNetwork(self._actor.weights, "actor")
        self._qf1, self._qf2 = (DiscreteSacNetwork(self._critics.weights, name) for name in ("qf1", "qf2"))
        self._target1, self._target2 = (DiscreteSacNetwork(self._targets, name) for name in ("qf1", "qf2"))
        self._feed, self._settings = feed, settings
        actions = len(self._actor.weights["actor.head.bias"])
        self._target_entropy = settings.target_entropy_scale * math.log(actions)
        self._metrics = StepMetrics(SAC_METRIC_NAMES, compute)
        self._step = GraphedStep(
            self._gradient_step, self._state_tensors, compute, feed.copy_to_device, self._metrics.check
        )

    @property
    def _log_alpha(self) -> Tensor:
        return self._alpha_learner.weights["log_alpha"]

    def update(self, replay: FrameBuffer) -> None:
        """Update everything on a new sample without waiting for it; see `first_non_finite`."""
        self._feed.synchronize()
        replay.sample(self._feed.batch)
        self._feed.stage_columns()
        self._step()
        self._feed.record_launch()
        self._metrics.count_step()

    def _gradient_step(self) -> None:
        batch, alpha = self._feed.batch_tensors(), self._alpha
        with torch.no_grad():
            next_observations = batch.next_observations
            min_values = torch.min(self._target1(next_observations), self._target2(next_observations))
            next_values = soft_values(log_softmax(self.actor(next_observations), 1), min_values, alpha)
            td_targets = batch.rewards + self._settings.gamma * (1 - batch.terminals) * next_values
        values1, values2 = (
            critic(batch.observations).gather(1, batch.actions[:, None])[:, 0] for critic in (self._qf1, self._qf2)
        )
        loss1, loss2 = mse_loss(values1, td_targets), mse_loss(values2, td_targets)
        self._critics.adam.step(loss1 + loss2)

        with torch.no_grad():
            min_values = torch.min(self._qf1(batch.observations), self._qf2(batch.observations))
        log_probs = log_softmax(self.actor(batch.observations), 1)
        # The mean over rows and actions, as in CleanRL, whose learning rates are meant for it.
        actor_loss = -soft_values(log_probs, min_values, alpha).mean() / log_probs.shape[1]
        self._actor.adam.step(actor_loss)

        alpha_loss = torch.zeros_like(alpha)
        if self._settings.autotune:
            log_probs = log_probs.detach()
            entropy_gap = (log_probs.exp() * (log_probs + self._target_entropy)).mean()
            alpha_loss = -self._log_alpha.exp()[0] * entropy_gap
            self._alpha_learner.adam.step(alpha_loss)
            alpha.copy_(self._log_alpha.detach().exp()[0])
        metrics = [values1.mean(), values2.mean(), loss1, loss2, (loss1 + loss2) / 2, actor_loss, alpha, alpha_loss]
        self._metrics.values.copy_(torch.stack(metrics).detach())

    def _state_tensors(self) -> list[Tensor]:
        parts = [part for learner in self._learners for part in learner.adam.state_tensors()]
        return [*parts, self._alpha, *self._metrics.state_tensors()]

    def update_target(self, tau: float) -> None:
        """Move the targets towards the critics: target += tau * (critic - target)."""
        with torch.no_grad():
            torch._foreach_lerp_(list(self._targets.values()), list(self._critics.weights.values()), tau)

    def losses(self) -> dict[str, float]:
        """Return the losses of the latest step under CleanRL's names. Waits for the device."""
        metrics = self._metrics.to_dict()
        if not self._settings.autotune:
            del metrics["alpha_loss"]
        return metrics

    def first_non_finite(self) -> NonFiniteReport | None:
        return self._metrics.first_non_finite()

    # --- saving

    def arrays(self) -> dict[str, Array]:
        return {**self._actor.arrays(), **self._critics.arrays(), **self._alpha_learner.arrays()}

    def optimizer_state(self) -> dict[str, Array]:
        arrays = {f"target.{name}": part for name, part in as_arrays(self._targets).items()}
        for learner in self._learners:
            arrays |= learner.optimizer_state()
        return arrays

    def restore(self, arrays: Mapping[str, Array], count: int) -> None:
        for learner in self._learners:
            learner.restore(arrays, count)

    @property
    def count(self) -> int:
        """The number of updates."""
        return self._actor.adam.count
