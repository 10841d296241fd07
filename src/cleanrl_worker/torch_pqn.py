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
from cleanrl_worker.torch_backend import TorchContext, TorchRAdam
from cleanrl_worker.torch_conv import RolloutLearner

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


class PqnLearner(RolloutLearner):
    """Acts, estimates values, and fits the Q-values of a rollout's actions to their returns."""

    def __init__(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], settings: RolloutSettings, compute: TorchContext
    ) -> None:
        outputs = len(arrays["network.13.bias"])
        super().__init__(
            arrays, shape, outputs, ("returns",), PQN_METRIC_NAMES, settings, compute, ADAM_EPSILON, TorchRAdam
        )

    def _forward(self, images: Tensor) -> Tensor:
        return action_values(self.weights, images)

    def _values(self, outputs: Tensor) -> Tensor:
        return outputs.amax(1)

    def _loss(self, batch: SimpleNamespace) -> tuple[Tensor, Tensor]:
        values = self._forward(batch.images).gather(1, batch.actions[:, None])[:, 0]
        loss = mse_loss(values, batch.returns)
        return loss, torch.stack([loss.detach(), values.detach().mean()])
