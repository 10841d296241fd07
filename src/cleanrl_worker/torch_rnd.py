"""Random network distillation over Atari pictures, in torch: PPO with two values, and a network that predicts another.

Needs torch and numpy, and nothing of ours that needs more.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, relu_
from torch.nn.functional import conv2d, leaky_relu_, linear

from cleanrl_worker.conv_network import KERNEL_SIZES_AND_STRIDES
from cleanrl_worker.torch_backend import GraphedStep, TorchContext
from cleanrl_worker.torch_conv import (
    ADAM_EPSILON,
    PPO_METRIC_NAMES,
    ImageInferenceStep,
    PolicyRolloutSettings,
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
"""Normalised pictures are cut to plus and minus this."""
TARGET_CHUNK_ROWS = 512
"""Pictures that the target describes at once: more only take more memory."""


def rnd_heads(weights: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """The actor's logits, the value of rewards and, last, that of surprises: [rows, actions + 2]."""
    hidden = relu_(_linear_layer(weights, "network.9", conv_features(weights, images)))
    logits = _linear_layer(weights, "actor.2", relu_(_linear_layer(weights, "actor.0", hidden)))
    features = relu_(_linear_layer(weights, "extra_layer.0", hidden)) + hidden
    heads = torch.cat([weights["critic_ext.weight"], weights["critic_int.weight"]])
    values = linear(features, heads, torch.cat([weights["critic_ext.bias"], weights["critic_int.bias"]]))
    return torch.cat([logits, values], 1)


def rnd_features(weights: Mapping[str, Tensor], name: str, frames: Tensor) -> Tensor:
    """What the predictor or the target says [rows, features] of normalised pictures [rows, 1, 84, 84]."""
    below = frames
    for number, (_, stride) in enumerate(KERNEL_SIZES_AND_STRIDES):
        layer = f"{name}.{2 * number}"
        below = leaky_relu_(conv2d(below, weights[f"{layer}.weight"], weights[f"{layer}.bias"], stride=stride))
    below = _linear_layer(weights, f"{name}.7", below.flatten(1))
    for layer in (f"{name}.9", f"{name}.11") if name == PREDICTOR else ():
        below = _linear_layer(weights, layer, relu_(below))
    return below


def _linear_layer(weights: Mapping[str, Tensor], layer: str, inputs: Tensor) -> Tensor:
    return linear(inputs, weights[f"{layer}.weight"], weights[f"{layer}.bias"])


class RndLearner(TorchLearner):
    """Acts, judges, is surprised, and improves policy and predictor on a rollout, minibatch by minibatch."""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        shape: tuple[int, ...],
        settings: PolicyRolloutSettings,
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
            pictures=torch.zeros(total, *sides, channels, dtype=torch.uint8, device=device),
            arrived=torch.zeros(total, *sides, dtype=torch.uint8, device=device),
            features=torch.zeros(total, len(self._target[f"{TARGET}.7.bias"]), device=device),
            actions=torch.zeros(total, dtype=torch.int64, device=device),
            **{name: torch.zeros(total, device=device) for name in columns},
        )
        self._mean = torch.zeros(*sides, device=device)
        self._deviation = torch.ones(*sides, device=device)
        self._order = torch.zeros(settings.minibatch_size, dtype=torch.int64, device=device)
        self._predictor_mask = torch.zeros(settings.minibatch_size, device=device)
        """1 for rows that the predictor learns from."""
        self._metrics = torch.zeros(len(PPO_METRIC_NAMES) + 1, device=device)
        self._norm_sum = torch.zeros((), device=device)
        """Of the gradients of the update so far, added up."""
        self._step = GraphedStep(self._gradient_step, self._state_tensors, compute)

    def arrays(self) -> dict[str, Array]:
        return {**super().arrays(), **as_arrays(self._target)}

    def _forward(self, images: Tensor) -> Tensor:
        return rnd_heads(self.weights, images)

    def values(self, observations: Array) -> Array:
        """Of rewards, for any number of observations [rows, channels, 84, 84]."""
        with torch.no_grad():
            pictures = channels_last(torch.as_tensor(observations, device=self.compute.device))
            return self._forward(pictures)[:, -2].cpu().numpy()

    # --- surprise

    def set_normalisation(self, mean: Array, variance: Array) -> None:
        """From now on pictures are normalised by these."""
        self._mean.copy_(torch.as_tensor(mean))
        self._deviation.copy_(torch.as_tensor(variance).sqrt())

    def _normalise_frames(self, frames: Tensor) -> Tensor:
        return ((frames.float() - self._mean) / self._deviation).clamp(-CLIP_LIMIT, CLIP_LIMIT)[:, None]

    def intrinsic_rewards(self, next_frames: Array) -> Array:
        """How far the prediction is from the target, for newest pictures [rows, 84, 84]."""
        with torch.no_grad():
            pictures = self._normalise_frames(torch.from_numpy(next_frames).to(self.compute.device))
            miss = rnd_features(self._target, TARGET, pictures) - rnd_features(self.weights, PREDICTOR, pictures)
            return (miss.square().sum(1) / 2).cpu().numpy()

    # --- learning

    def load_rollout(self, learning_rate: float, images: Array, next_frames: Array, **columns: Array) -> None:
        """An update on a rollout: what was seen, the newest pictures it led to, `actions` and so on [rows]."""
        self.adam.set_learning_rate(learning_rate)
        self._batch.pictures.copy_(torch.from_numpy(images).permute(0, 2, 3, 1))
        self.compute.copy_to_device(self._batch.arrived, next_frames)
        for name, column in columns.items():
            self.compute.copy_to_device(getattr(self._batch, name), column)
        self._norm_sum.zero_()

    def compute_target_features(self, first_row: int) -> None:
        """What the target says of `CHUNK` rows. It never changes, so that once is enough for all passes over them."""
        rows = slice(first_row, first_row + TARGET_CHUNK_ROWS)
        with torch.no_grad():
            pictures = self._normalise_frames(self._batch.arrived[rows])
            self._batch.features[rows] = rnd_features(self._target, TARGET, pictures)

    def update(self, rows: Array, predictor_mask: Array) -> None:
        """One step on a minibatch, of which the predictor learns from some rows. Nobody waits for it."""
        self.compute.copy_to_device(self._order, rows)
        self.compute.copy_to_device(self._predictor_mask, predictor_mask)
        self._step()

    def _gradient_step(self) -> None:
        batch = SimpleNamespace(**{name: part[self._order] for name, part in vars(self._batch).items()})
        loss, figures, forward_loss = rnd_loss(
            self._forward(batch.pictures),
            rnd_features(self.weights, PREDICTOR, self._normalise_frames(batch.arrived)),
            batch,
            self._predictor_mask,
            self._settings,
        )
        norm = self.adam.clipped_step(loss, self._settings.max_grad_norm)
        self._metrics.copy_(torch.cat([figures, forward_loss[None]]))
        self._norm_sum += norm

    def _state_tensors(self) -> list[Tensor]:
        return [*self.adam.state_tensors(), self._metrics, self._norm_sum]

    def losses(self) -> tuple[dict[str, float], bool]:
        """Of the newest step; whether every gradient was finite. Waits for the device."""
        figures = dict(zip((*PPO_METRIC_NAMES, "fwd_loss"), self._metrics.tolist(), strict=True))
        return figures, float(self._norm_sum) < float("inf")


def rnd_loss(
    outputs: Tensor, predicted: Tensor, batch: Any, predictor_mask: Tensor, settings: PolicyRolloutSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """PPO's with a second value, and the predictor's; PPO's figures, and the predictor's loss."""
    loss, figures = ppo_loss(outputs[:, :-1], batch, settings)
    second = 0.5 * (outputs[:, -1] - batch.int_returns).square().mean()
    misses = (predicted - batch.features).square().mean(1)
    forward_loss = (misses * predictor_mask).sum() / predictor_mask.sum().clamp(min=1)
    figures = torch.cat([figures[:1] + second.detach(), figures[1:]])  # what is reported is the loss of both values
    return loss + settings.vf_coef * second + forward_loss, figures, forward_loss.detach()
