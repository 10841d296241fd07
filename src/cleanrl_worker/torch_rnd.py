"""Random network distillation for Atari frames in torch: PPO with two value heads, a predictor and a target network.

Imports only torch, numpy and modules that need nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, relu_
from torch.nn.functional import conv2d, leaky_relu_, linear

from cleanrl_worker.conv_network import KERNEL_SIZES_AND_STRIDES
from cleanrl_worker.learners import PpoRolloutSettings, PpoSettings
from cleanrl_worker.torch_backend import TorchContext
from cleanrl_worker.torch_conv import (
    ADAM_EPSILON,
    PPO_COLUMNS,
    PPO_METRIC_NAMES,
    RolloutLearner,
    as_arrays,
    as_tensors,
    conv_features,
    ppo_loss,
)

Array = Any
PREDICTOR, TARGET = "predictor", "target"
CLIP_LIMIT = 5.0
"""Normalized frames are clipped to plus and minus this."""
TARGET_CHUNK_ROWS = 512
"""Frames per forward pass of the target network: more would only take more memory."""


def rnd_heads(weights: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Return the actor's logits, the extrinsic and the intrinsic value: [rows, actions + 2]."""
    hidden = relu_(_linear_layer(weights, "network.9", conv_features(weights, images)))
    logits = _linear_layer(weights, "actor.2", relu_(_linear_layer(weights, "actor.0", hidden)))
    features = relu_(_linear_layer(weights, "extra_layer.0", hidden)) + hidden
    heads = torch.cat([weights["critic_ext.weight"], weights["critic_int.weight"]])
    values = linear(features, heads, torch.cat([weights["critic_ext.bias"], weights["critic_int.bias"]]))
    return torch.cat([logits, values], 1)


def rnd_features(weights: Mapping[str, Tensor], name: str, frames: Tensor) -> Tensor:
    """Return the features [rows, features] of the predictor or the target for normalized frames [rows, 1, 84, 84]."""
    features = frames
    for number, (_, stride) in enumerate(KERNEL_SIZES_AND_STRIDES):
        layer = f"{name}.{2 * number}"
        features = leaky_relu_(conv2d(features, weights[f"{layer}.weight"], weights[f"{layer}.bias"], stride=stride))
    features = _linear_layer(weights, f"{name}.7", features.flatten(1))
    for layer in (f"{name}.9", f"{name}.11") if name == PREDICTOR else ():
        features = _linear_layer(weights, layer, relu_(features))
    return features


def _linear_layer(weights: Mapping[str, Tensor], layer: str, inputs: Tensor) -> Tensor:
    return linear(inputs, weights[f"{layer}.weight"], weights[f"{layer}.bias"])


class RndLearner(RolloutLearner):
    """Acts, estimates extrinsic values and intrinsic rewards, and trains policy and predictor."""

    def __init__(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], settings: PpoRolloutSettings, compute: TorchContext
    ) -> None:
        learned = {name: part for name, part in arrays.items() if not name.startswith(f"{TARGET}.")}
        outputs = len(arrays["actor.2.bias"]) + 2
        columns, metric_names = (*PPO_COLUMNS, "int_returns"), (*PPO_METRIC_NAMES, "fwd_loss")
        super().__init__(learned, shape, outputs, columns, metric_names, settings, compute, ADAM_EPSILON)
        self._ppo_settings = settings
        fixed = {name: part for name, part in arrays.items() if name not in learned}
        self._target = as_tensors(fixed, compute.device, is_learned=False)
        device, total, sides = compute.device, settings.batch_size, shape[1:]
        self._batch.next_frames = torch.zeros(total, *sides, dtype=torch.uint8, device=device)
        self._batch.features = torch.zeros(total, len(self._target[f"{TARGET}.7.bias"]), device=device)
        self._mean = torch.zeros(*sides, device=device)
        self._deviation = torch.ones(*sides, device=device)
        self._predictor_mask = torch.zeros(settings.minibatch_size, device=device)
        """1 for rows that the predictor is trained on."""

    def arrays(self) -> dict[str, Array]:
        return {**super().arrays(), **as_arrays(self._target)}

    def _forward(self, images: Tensor) -> Tensor:
        return rnd_heads(self.weights, images)

    def _values(self, outputs: Tensor) -> Tensor:
        return outputs[:, -2]

    # --- intrinsic rewards

    def set_normalization(self, mean: Array, variance: Array) -> None:
        """Set the moments that frames are normalized with."""
        self._mean.copy_(torch.as_tensor(mean))
        self._deviation.copy_(torch.as_tensor(variance).sqrt())

    def _normalize_frames(self, frames: Tensor) -> Tensor:
        return ((frames.float() - self._mean) / self._deviation).clamp(-CLIP_LIMIT, CLIP_LIMIT)[:, None]

    def intrinsic_rewards(self, next_frames: Array) -> Array:
        """Return half the squared error of the predictor for the latest frames [rows, 84, 84]."""
        with torch.no_grad():
            frames = self._normalize_frames(torch.from_numpy(next_frames).to(self.compute.device))
            error = rnd_features(self._target, TARGET, frames) - rnd_features(self.weights, PREDICTOR, frames)
            return (error.square().sum(1) / 2).cpu().numpy()

    def compute_target_features(self, first_row: int) -> None:
        """Compute the target's features of `TARGET_CHUNK_ROWS` rows, once for all epochs because they never change."""
        rows = slice(first_row, first_row + TARGET_CHUNK_ROWS)
        with torch.no_grad():
            frames = self._normalize_frames(self._batch.next_frames[rows])
            self._batch.features[rows] = rnd_features(self._target, TARGET, frames)

    def update(self, rows: Array, predictor_mask: Array) -> None:  # type: ignore[override]
        """Do one gradient step on a minibatch without waiting for it; the predictor is trained on the masked rows."""
        self.compute.copy_to_device(self._predictor_mask, predictor_mask)
        super().update(rows)

    def _loss(self, batch: SimpleNamespace) -> tuple[Tensor, Tensor]:
        predicted = rnd_features(self.weights, PREDICTOR, self._normalize_frames(batch.next_frames))
        return rnd_loss(self._forward(batch.images), predicted, batch, self._predictor_mask, self._ppo_settings)


def rnd_loss(
    outputs: Tensor, predicted: Tensor, batch: Any, predictor_mask: Tensor, settings: PpoSettings
) -> tuple[Tensor, Tensor]:
    """Return PPO's loss with both value losses plus the predictor's loss, and PPO's metrics with the latter."""
    loss, metrics = ppo_loss(outputs[:, :-1], batch, settings)
    intrinsic_value_loss = 0.5 * (outputs[:, -1] - batch.int_returns).square().mean()
    errors = (predicted - batch.features).square().mean(1)
    forward_loss = (errors * predictor_mask).sum() / predictor_mask.sum().clamp(min=1)
    value_loss = metrics[:1] + intrinsic_value_loss.detach()
    metrics = torch.cat([value_loss, metrics[1:], forward_loss.detach()[None]])
    return loss + settings.vf_coef * intrinsic_value_loss + forward_loss, metrics
