"""PQN's network for Atari frames in torch, with a layer norm after every layer, and its learner.

Images, convolution outputs and layer norm weights have channels last, as in torch_conv.py. Imports only torch, numpy
and modules that need nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, relu_
from torch.nn.functional import conv2d, layer_norm, linear, mse_loss

from cleanrl_worker.conv_network import KERNEL_SIZES_AND_STRIDES
from cleanrl_worker.learners import RolloutSettings
from cleanrl_worker.torch_backend import GraphedStep, TorchContext, TorchRAdam
from cleanrl_worker.torch_conv import ImageInferenceStep, TorchLearner, channels_last

Array = Any
ADAM_EPSILON = 1e-8
"""torch's default for RAdam."""


def action_values(weights: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Return the Q-values [rows, actions] for images [rows, 84, 84, channels]."""
    features = images.permute(0, 3, 1, 2).float()
    for number, (_, stride) in enumerate(KERNEL_SIZES_AND_STRIDES):
        name, norm = f"network.{3 * number}", f"network.{3 * number + 1}"
        weight = weights[f"{name}.weight"]
        features = conv2d(features, weight if number else weight / 255, weights[f"{name}.bias"], stride=stride)
        channels_last_features = features.permute(0, 2, 3, 1)
        scale, shift = (weights[f"{norm}.{part}"].permute(1, 2, 0) for part in ("weight", "bias"))
        features = relu_(layer_norm(channels_last_features, channels_last_features.shape[1:], scale, shift)).permute(
            0, 3, 1, 2
        )
    hidden = linear(features.flatten(1), weights["network.10.weight"], weights["network.10.bias"])
    hidden = relu_(layer_norm(hidden, hidden.shape[1:], weights["network.11.weight"], weights["network.11.bias"]))
    return linear(hidden, weights["network.13.weight"], weights["network.13.bias"])


PQN_METRIC_NAMES = ("td_loss", "q_values")


class PqnLearner(TorchLearner):
    """Acts, estimates values, and fits the Q-values of a rollout's actions to their returns, minibatch by minibatch."""

    def __init__(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], settings: RolloutSettings, compute: TorchContext
    ) -> None:
        super().__init__(arrays, settings.learning_rate, ADAM_EPSILON, compute, TorchRAdam)
        self._settings = settings
        device, total = compute.device, settings.batch_size
        self.act = ImageInferenceStep(
            (settings.num_envs, *shape), len(self.weights["network.13.bias"]), self._forward, compute
        )
        channels, *sides = shape
        self._batch = SimpleNamespace(
            images=torch.zeros(total, *sides, channels, dtype=torch.uint8, device=device),
            actions=torch.zeros(total, dtype=torch.int64, device=device),
            returns=torch.zeros(total, device=device),
        )
        self._order = torch.zeros(settings.minibatch_size, dtype=torch.int64, device=device)
        self._metrics = torch.zeros(len(PQN_METRIC_NAMES), device=device)
        self._norm_sum = torch.zeros((), device=device)
        """The sum of the gradient norms of the update so far."""
        self._step = GraphedStep(self._gradient_step, self._state_tensors, compute)

    def _forward(self, images: Tensor) -> Tensor:
        return action_values(self.weights, images)

    def values(self, observations: Array) -> Array:
        """Return the maximum Q-values of any number of observations [rows, channels, 84, 84]."""
        with torch.no_grad():
            images = channels_last(torch.as_tensor(observations, device=self.compute.device))
            return self._forward(images).amax(1).cpu().numpy()

    def load_rollout(self, learning_rate: float, images: Array, actions: Array, returns: Array) -> None:
        """Start an update on a rollout: images [rows, channels, 84, 84], actions and returns [rows]."""
        self.adam.set_learning_rate(learning_rate)
        self._batch.images.copy_(torch.from_numpy(images).permute(0, 2, 3, 1))
        self.compute.copy_to_device(self._batch.actions, actions)
        self.compute.copy_to_device(self._batch.returns, returns)
        self._norm_sum.zero_()

    def update(self, rows: Array) -> None:
        """Do one gradient step on a minibatch without waiting for it."""
        self.compute.copy_to_device(self._order, rows)
        self._step()

    def _gradient_step(self) -> None:
        batch = SimpleNamespace(**{name: part[self._order] for name, part in vars(self._batch).items()})
        values = self._forward(batch.images).gather(1, batch.actions[:, None])[:, 0]
        loss = mse_loss(values, batch.returns)
        norm = self.adam.clipped_step(loss, self._settings.max_grad_norm)
        self._metrics.copy_(torch.stack([loss.detach(), values.detach().mean()]))
        self._norm_sum += norm

    def _state_tensors(self) -> list[Tensor]:
        return [*self.adam.state_tensors(), self._metrics, self._norm_sum]

    def losses(self) -> tuple[dict[str, float], bool]:
        """Return the losses of the latest step, and whether every gradient was finite. Waits for the device."""
        metrics = dict(zip(PQN_METRIC_NAMES, self._metrics.tolist(), strict=True))
        return metrics, float(self._norm_sum) < float("inf")
