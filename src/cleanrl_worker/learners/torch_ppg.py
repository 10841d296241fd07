"""The learner of phasic policy gradient in torch: PPO, and gradient steps on all rollouts of a phase.

The rollouts of a phase are gigabytes, so they stay in the host's memory; a minibatch of them is copied to the device
while the previous one is computed. Imports only torch, numpy and modules that need nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cleanrl_worker.learners.protocols import PpgSettings
from cleanrl_worker.learners.torch_backend import GraphedStep, TorchContext, clipped_joint_step
from cleanrl_worker.learners.torch_conv import Forward, Loss, PpoImageLearner, TorchLearner, channels_last
from cleanrl_worker.learners.torch_feeds import Feed

Array = Any
AUXILIARY_HEAD = "aux_critic"
AUXILIARY_METRIC_NAMES = ("kl_loss", "aux_value_loss", "real_value_loss")
ADAM_EPSILON = 1e-8
"""Adam's epsilon in CleanRL's PPG; in its PPO it is larger."""


class PpgLearner(PpoImageLearner):
    """Learns by PPO from each rollout, and by the auxiliary loss from all rollouts of a phase.

    "Rollout" means that of one game here: `num_steps` consecutive steps.
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        shape: tuple[int, ...],
        forward: Forward,
        loss: Loss,
        auxiliary_loss: Loss,
        settings: PpgSettings,
        compute: TorchContext,
    ) -> None:
        """`auxiliary_loss` gets all weights and a minibatch of images, returns and the logits of the old policy."""
        head = {name: part for name, part in arrays.items() if name.startswith(f"{AUXILIARY_HEAD}.")}
        shared = {name: part for name, part in arrays.items() if name not in head}
        super().__init__(shared, shape, forward, loss, settings, compute, epsilon=ADAM_EPSILON)
        # Its Adam does not step in policy phases, in which the head has no gradient.
        self.auxiliary_head = TorchLearner(head, settings.learning_rate, ADAM_EPSILON, compute)
        self._auxiliary_loss = auxiliary_loss
        actions, count, steps = len(arrays["actor.bias"]), settings.phase_rollouts, settings.num_steps
        self._stored = SimpleNamespace(
            images=np.zeros((count, steps, *shape), np.uint8),
            returns=np.zeros((count, steps), np.float32),
            logits=np.zeros((count, steps, actions), np.float32),
        )
        """The rollouts of the phase, and the logits of the policy at its end."""
        minibatches = (settings.n_aux_grad_accum, settings.num_aux_rollouts, steps)
        self._staged = {
            "images": compute.host_buffer(*minibatches, *shape, dtype=torch.uint8),
            "returns": compute.host_buffer(*minibatches, dtype=torch.float32),
            "logits": compute.host_buffer(*minibatches, actions, dtype=torch.float32),
        }
        """The minibatches of a gradient step on the host."""
        self._minibatches = {name: compute.device_buffer(part) for name, part in self._staged.items()}
        self._transfer = Feed(compute)
        self._auxiliary_metrics = torch.zeros(len(AUXILIARY_METRIC_NAMES), device=compute.device)
        self._auxiliary_norms = torch.zeros((), device=compute.device)
        """The sum of the gradient norms of the phase so far."""
        self._auxiliary_step = GraphedStep(self._auxiliary_gradient_step, self._auxiliary_state_tensors, compute)

    def arrays(self) -> dict[str, Array]:
        return {**super().arrays(), **self.auxiliary_head.arrays()}

    def optimizer_state(self) -> dict[str, Array]:
        return {**super().optimizer_state(), **self.auxiliary_head.optimizer_state()}

    def load_rollout(self, learning_rate: float, images: Array, **columns: Array) -> None:
        super().load_rollout(learning_rate, images, **columns)
        self.auxiliary_head.adam.set_learning_rate(learning_rate)

    # --- the rollouts of a phase

    def store_rollouts(self, first: int, images: Array, returns: Array) -> None:
        """Store the rollouts of all games, images [steps, games, …] and returns [steps, games], from number `first`."""
        rollouts = slice(first, first + images.shape[1])
        self._stored.images[rollouts] = images.swapaxes(0, 1)
        self._stored.returns[rollouts] = returns.T

    def store_old_policy(self, rollouts: Array) -> None:
        """Store the logits of the current policy for some rollouts, given by their numbers."""
        images = self._stored.images[rollouts]
        logits = self.outputs(images.reshape(-1, *images.shape[2:]))[:, :-1]
        self._stored.logits[rollouts] = logits.reshape(*images.shape[:2], -1)

    # --- the auxiliary phase

    def begin_auxiliary_phase(self) -> None:
        self._auxiliary_norms.zero_()

    def update_auxiliary(self, rollouts: Array) -> None:
        """Do one gradient step on the rollouts with these numbers [minibatches, rollouts] without waiting for it."""
        self._transfer.synchronize()
        for name, staged in self._staged.items():
            # Any mode but "raise" writes without a temporary copy.
            np.take(getattr(self._stored, name), rollouts, axis=0, out=staged.numpy(), mode="clip")
        if self.compute.is_cuda:
            for name, staged in self._staged.items():
                self._minibatches[name].copy_(staged, non_blocking=True)
            self._transfer.record_launch()
        self._auxiliary_step()

    def _auxiliary_gradient_step(self) -> None:
        adams = (self.adam, self.auxiliary_head.adam)
        self._auxiliary_norms += clipped_joint_step(adams, self._auxiliary_losses(), self._settings.max_grad_norm)

    def _auxiliary_losses(self) -> Iterator[Tensor]:
        """Yield each minibatch's part of the loss of a gradient step, and write its metrics."""
        weights = {**self.weights, **self.auxiliary_head.weights}
        count = len(self._minibatches["images"])
        for number in range(count):
            rows = {name: part[number].flatten(0, 1) for name, part in self._minibatches.items()}
            batch = SimpleNamespace(**{**rows, "images": channels_last(rows["images"])})
            loss, metrics = self._auxiliary_loss(weights, batch)
            self._auxiliary_metrics.copy_(torch.stack(list(metrics)).detach())
            yield loss / count

    def _auxiliary_state_tensors(self) -> Sequence[Tensor]:
        adams = (self.adam, self.auxiliary_head.adam)
        state = [part for adam in adams for part in adam.state_tensors()]
        return [*state, self._auxiliary_metrics, self._auxiliary_norms]

    def auxiliary_losses(self) -> tuple[dict[str, float], bool]:
        """Return the losses of the latest minibatch, and whether every gradient of the phase was finite. Waits."""
        metrics = dict(zip(AUXILIARY_METRIC_NAMES, self._auxiliary_metrics.tolist(), strict=True))
        return metrics, self._auxiliary_norms.item() < float("inf")
