"""The update of soft actor-critic for discrete actions and images in torch: on a CPU, or as a CUDA graph on a GPU.

Its losses are those of the algorithm's file. Imports only torch, numpy and modules that need nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, log_softmax

from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.conv_network import CONV_NETWORK
from cleanrl_worker.learners.flat_network import select_by_prefix
from cleanrl_worker.learners.protocols import DiscreteSacSettings
from cleanrl_worker.learners.torch_backend import TorchContext
from cleanrl_worker.learners.torch_conv import TorchLearner, conv_features
from cleanrl_worker.learners.torch_replay import FrameReplayLearner, ReplayFeed

Array = Any
ADAM_EPSILON = 1e-4
SAC_METRIC_NAMES = ("qf1_values", "qf2_values", "qf1_loss", "qf2_loss", "qf_loss", "actor_loss", "alpha", "alpha_loss")


class DiscreteSacNetwork:
    """One network of a state dict with name prefixes; gives one number per action."""

    def __init__(self, weights: Mapping[str, Tensor], name: str, architecture: Architecture = CONV_NETWORK) -> None:
        self._architecture = architecture
        self._weights: dict[str, Tensor] = select_by_prefix(f"{name}.", weights)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the outputs [rows, actions] for images [rows, 84, 84, 4]."""
        features = conv_features(self._weights, images, self._architecture)
        return linear(features, self._weights["head.weight"], self._weights["head.bias"])


class DiscreteSacLosses(NamedTuple):
    """The losses of the algorithm; the first two get the learner, whose networks they use."""

    critic_losses: Callable[[Any, Any, float], tuple[list[Tensor], list[Tensor]]]
    actor_loss: Callable[[Any, Any, Tensor], Tensor]
    alpha_loss: Callable[[Tensor, Tensor, float], Tensor]


class DiscreteSacLearner(FrameReplayLearner):
    """Trains two critics with target networks, the actor, and the temperature alpha."""

    def __init__(
        self,
        parameters: Mapping[str, Array],
        targets: Mapping[str, Array],
        feed: ReplayFeed,
        losses: DiscreteSacLosses,
        settings: DiscreteSacSettings,
        compute: TorchContext,
    ) -> None:
        """Parameters are named `actor.…`, `qf1.…`, `qf2.…` and `log_alpha`; the targets' like the critics'."""
        actor, critics = (
            {name: part for name, part in parameters.items() if name.startswith(kind)} for kind in ("actor", "qf")
        )
        super().__init__(critics, targets, feed, settings.q_lr, ADAM_EPSILON, SAC_METRIC_NAMES, compute)
        self._actor = TorchLearner(actor, settings.policy_lr, ADAM_EPSILON, compute)
        self._alpha_learner = TorchLearner({"log_alpha": parameters["log_alpha"]}, settings.q_lr, ADAM_EPSILON, compute)
        self._other_learners = [self._actor] + ([self._alpha_learner] if settings.autotune else [])
        self.alpha = torch.full((), settings.alpha, device=compute.device)
        if settings.autotune:
            self.alpha.copy_(self._log_alpha.detach().exp()[0])

        architecture = settings.architecture
        self.actor = DiscreteSacNetwork(self._actor.weights, "actor", architecture)
        self.critics, self.targets = (
            [DiscreteSacNetwork(weights, name, architecture) for name in ("qf1", "qf2")]
            for weights in (self.weights, self.target)
        )
        self._losses = losses
        self._settings = settings
        self._target_entropy = settings.target_entropy_scale * math.log(len(actor["actor.head.bias"]))

    @property
    def _log_alpha(self) -> Tensor:
        return self._alpha_learner.weights["log_alpha"]

    def _gradient_step(self) -> None:
        batch = self._feed.batch_tensors()
        (loss1, loss2), (values1, values2) = self._losses.critic_losses(self, batch, self._settings.gamma)
        self.adam.step(loss1 + loss2)
        log_probs = log_softmax(self.actor(batch.observations), 1)
        actor_loss = self._losses.actor_loss(self, batch, log_probs)
        self._actor.adam.step(actor_loss)
        alpha_loss = torch.zeros_like(self.alpha)
        if self._settings.autotune:
            alpha_loss = self._losses.alpha_loss(self._log_alpha, log_probs.detach(), self._target_entropy)
            self._alpha_learner.adam.step(alpha_loss)
            self.alpha.copy_(self._log_alpha.detach().exp()[0])
        metrics = [
            values1.mean(), values2.mean(), loss1, loss2, (loss1 + loss2) / 2, actor_loss, self.alpha, alpha_loss
        ]  # fmt: skip
        self._metrics.values.copy_(torch.stack(metrics).detach())

    def _state_tensors(self) -> list[Tensor]:
        others = [part for learner in self._other_learners for part in learner.adam.state_tensors()]
        return [*super()._state_tensors(), *others, self.alpha]

    def losses(self) -> dict[str, float]:
        metrics = super().losses()
        if not self._settings.autotune:
            del metrics["alpha_loss"]
        return metrics

    # --- saving

    def arrays(self) -> dict[str, Array]:
        return {**self._actor.arrays(), **super().arrays(), **self._alpha_learner.arrays()}

    def optimizer_state(self) -> dict[str, Array]:
        arrays = super().optimizer_state()
        for learner in self._other_learners:
            arrays |= learner.optimizer_state()
        return arrays

    def restore(self, arrays: Mapping[str, Array], count: int) -> None:
        super().restore(arrays, count)
        for learner in self._other_learners:
            learner.restore(arrays, count)
