"""The learner of random network distillation in torch: PPO with two value heads, a predictor and a target network.

Imports only torch, numpy and modules that need nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from cleanrl_worker.learners.ppo_kernels import ADAM_EPSILON
from cleanrl_worker.learners.protocols import RolloutSettings
from cleanrl_worker.learners.torch_backend import TorchContext
from cleanrl_worker.learners.torch_conv import (
    PPO_COLUMNS,
    PPO_METRIC_NAMES,
    Forward,
    Loss,
    RolloutLearner,
    Weights,
    as_arrays,
    as_tensors,
)

Array = Any
PREDICTOR, TARGET = "predictor", "target"
CLIP_LIMIT = 5.0
"""Normalized frames are clipped to plus and minus this."""
TARGET_CHUNK_ROWS = 512
"""Frames per forward pass of the target network: more would only take more memory."""


class RndLearner(RolloutLearner):
    """Acts, estimates intrinsic rewards, and trains policy and predictor."""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        shape: tuple[int, ...],
        forward: Forward,
        features: Callable[[Weights, str, Tensor], Tensor],
        loss: Loss,
        settings: RolloutSettings,
        compute: TorchContext,
    ) -> None:
        """`features` are those of the predictor or the target, by its name, for normalized frames [rows, 1, 84, 84].

        `loss` also gets the predictor's features and the mask of the rows that the predictor is trained on.
        """
        learned = {name: part for name, part in arrays.items() if not name.startswith(f"{TARGET}.")}
        outputs = len(arrays["actor.2.bias"]) + 2
        columns, metric_names = (*PPO_COLUMNS, "int_returns"), (*PPO_METRIC_NAMES, "fwd_loss")
        super().__init__(learned, shape, outputs, forward, loss, columns, metric_names, settings, compute, ADAM_EPSILON)
        self._features = features
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
            error = self._features(self._target, TARGET, frames) - self._features(self.weights, PREDICTOR, frames)
            return (error.square().sum(1) / 2).cpu().numpy()

    def compute_target_features(self, first_row: int) -> None:
        """Compute the target's features of `TARGET_CHUNK_ROWS` rows, once for all epochs because they never change."""
        rows = slice(first_row, first_row + TARGET_CHUNK_ROWS)
        with torch.no_grad():
            frames = self._normalize_frames(self._batch.next_frames[rows])
            self._batch.features[rows] = self._features(self._target, TARGET, frames)

    def update(self, rows: Array, predictor_mask: Array) -> None:  # type: ignore[override]
        """Do one gradient step on a minibatch without waiting for it; the predictor is trained on the masked rows."""
        self.compute.copy_to_device(self._predictor_mask, predictor_mask)
        super().update(rows)

    def _loss(self, batch: SimpleNamespace) -> tuple[Tensor, Sequence[Any]]:
        predicted = self._features(self.weights, PREDICTOR, self._normalize_frames(batch.next_frames))
        return self._loss_function(self.weights, batch, predicted, self._predictor_mask)
