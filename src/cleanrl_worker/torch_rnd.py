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
from cleanrl_worker.learners import PpoRolloutSettings
from cleanrl_worker.torch_backend import GraphedStep, TorchContext
from cleanrl_worker.torch_conv import (
    ADAM_EPSILON,
    PPO_METRIC_NAMES,
    ImageInferenceStep,
    TorchLearner,
    as_arrays,
    as_tensors,
    channels_last,
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


class RndLearner(TorchLearner):
    """Acts, estimates values and intrinsic rewards, and trains policy and predictor minibatch by minibatch."""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        shape: tuple[int, ...],
        settings: PpoRolloutSettings,
        compute: TorchContext,
    ) -> None:
        learned = {name: part for name, part in arrays.items() if not name.startswith(f"{TARGET}.")}
        super().__init__(learned, settings.learning_rate, ADAM_EPSILON, compute)
        fixed = {name: part for name, part in arrays.items() if name not in learned}
        self._target = as_tensors(fixed, compute.device, is_learned=False)
        self._settings = settings
        device, total = compute.device, settings.batch_size
        outputs = len(self.weights["actor.2.bias"]) + 2
        self.act = ImageInferenceStep((settings.num_envs, *shape), outputs, self._forward, compute)
        channels, *sides = shape
        columns = ("log_probs", "advantages", "returns", "values", "int_returns")
        self._batch = SimpleNamespace(
            images=torch.zeros(total, *sides, channels, dtype=torch.uint8, device=device),
            next_frames=torch.zeros(total, *sides, dtype=torch.uint8, device=device),
            features=torch.zeros(total, len(self._target[f"{TARGET}.7.bias"]), device=device),
            actions=torch.zeros(total, dtype=torch.int64, device=device),
            **{name: torch.zeros(total, device=device) for name in columns},
        )
        self._mean = torch.zeros(*sides, device=device)
        self._deviation = torch.ones(*sides, device=device)
        self._order = torch.zeros(settings.minibatch_size, dtype=torch.int64, device=device)
        self._predictor_mask = torch.zeros(settings.minibatch_size, device=device)
        """1 for rows that the predictor is trained on."""
        self._metrics = torch.zeros(len(PPO_METRIC_NAMES) + 1, device=device)
        self._norm_sum = torch.zeros((), device=device)
        """The sum of the gradient norms of the update so far."""
        self._step = GraphedStep(self._gradient_step, self._state_tensors, compute)

    def arrays(self) -> dict[str, Array]:
        return {**super().arrays(), **as_arrays(self._target)}

    def _forward(self, images: Tensor) -> Tensor:
        return rnd_heads(self.weights, images)

    def values(self, observations: Array) -> Array:
        """Return the extrinsic values of any number of observations [rows, channels, 84, 84]."""
        with torch.no_grad():
            images = channels_last(torch.as_tensor(observations, device=self.compute.device))
            return self._forward(images)[:, -2].cpu().numpy()

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

    # --- learning

    def load_rollout(self, learning_rate: float, images: Array, next_frames: Array, **columns: Array) -> None:
        """Start an update on a rollout: images, the latest frames after each step, `actions` etc. [rows]."""
        self.adam.set_learning_rate(learning_rate)
        self._batch.images.copy_(torch.from_numpy(images).permute(0, 2, 3, 1))
        self.compute.copy_to_device(self._batch.next_frames, next_frames)
        for name, column in columns.items():
            self.compute.copy_to_device(getattr(self._batch, name), column)
        self._norm_sum.zero_()

    def compute_target_features(self, first_row: int) -> None:
        """Compute the target's features of `TARGET_CHUNK_ROWS` rows, once for all epochs because they never change."""
        rows = slice(first_row, first_row + TARGET_CHUNK_ROWS)
        with torch.no_grad():
            frames = self._normalize_frames(self._batch.next_frames[rows])
            self._batch.features[rows] = rnd_features(self._target, TARGET, frames)

    def update(self, rows: Array, predictor_mask: Array) -> None:
        """Do one gradient step on a minibatch without waiting for it; the predictor is trained on the masked rows."""
        self.compute.copy_to_device(self._order, rows)
        self.compute.copy_to_device(self._predictor_mask, predictor_mask)
        self._step()

    def _gradient_step(self) -> None:
        batch = SimpleNamespace(**{name: part[self._order] for name, part in vars(self._batch).items()})
        loss, metrics, forward_loss = rnd_loss(
            self._forward(batch.images),
            rnd_features(self.weights, PREDICTOR, self._normalize_frames(batch.next_frames)),
            batch,
            self._predictor_mask,
            self._settings,
        )
        norm = self.adam.clipped_step(loss, self._settings.max_grad_norm)
        self._metrics.copy_(torch.cat([metrics, forward_loss[None]]))
        self._norm_sum += norm

    def _state_tensors(self) -> list[Tensor]:
        return [*self.adam.state_tensors(), self._metrics, self._norm_sum]

    def losses(self) -> tuple[dict[str, float], bool]:
        """Return the losses of the latest step, and whether every gradient was finite. Waits for the device."""
        metrics = dict(zip((*PPO_METRIC_NAMES, "fwd_loss"), self._metrics.tolist(), strict=True))
        return metrics, float(self._norm_sum) < float("inf")


def rnd_loss(
    outputs: Tensor, predicted: Tensor, batch: Any, predictor_mask: Tensor, settings: PpoRolloutSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Return PPO's loss with both value losses plus the predictor's loss, PPO's metrics, and the predictor's loss."""
    loss, metrics = ppo_loss(outputs[:, :-1], batch, settings)
    intrinsic_value_loss = 0.5 * (outputs[:, -1] - batch.int_returns).square().mean()
    errors = (predicted - batch.features).square().mean(1)
    forward_loss = (errors * predictor_mask).sum() / predictor_mask.sum().clamp(min=1)
    metrics = torch.cat(
        [metrics[:1] + intrinsic_value_loss.detach(), metrics[1:]]
    )  # report the sum of both value losses
    return loss + settings.vf_coef * intrinsic_value_loss + forward_loss, metrics, forward_loss.detach()
