"""Training from a replay buffer of frames in torch: the transfer of samples, and a learner with a target network.

A sample is drawn into (pinned) transfer memory; its copy to the device is part of the gradient step. The host does not
wait for a step: the next sample is drawn as soon as the previous one has been read. Imports only torch, numpy and
modules that need nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cleanrl_worker.learners.torch_backend import GraphedStep, NonFiniteReport, StepMetrics, TorchContext
from cleanrl_worker.learners.torch_conv import (
    ImageInferenceStep,
    TorchLearner,
    Weights,
    as_arrays,
    as_tensors,
    channels_last,
)
from cleanrl_worker.learners.torch_feeds import Feed

Array = Any
BATCH_COLUMNS = ("actions", "rewards", "terminals")


class FrameBuffer(Protocol):
    """Fills batches: frames [rows, frames, …], the first `stack` of them and the following, and columns by name."""

    num_envs: int
    stack: int
    shape: tuple[int, ...]

    def allocate_batch(self, rows: int, buffer: Array | None = None) -> Any: ...
    def sample(self, batch: Any) -> None: ...


class ReplayFeed(Feed):
    """Transfers samples to the device."""

    def __init__(
        self,
        replay: FrameBuffer,
        rows: int,
        frames_per_row: int,
        compute: TorchContext,
        columns: Sequence[str] = BATCH_COLUMNS,
    ) -> None:
        super().__init__(compute)
        self._columns = columns
        self._stack = replay.stack
        self._host_frames = compute.host_buffer(rows, frames_per_row, *replay.shape, dtype=torch.uint8)
        self.batch = replay.allocate_batch(rows, self._host_frames.numpy())
        self._host_column_values = compute.host_buffer(len(columns), rows, dtype=torch.float32)
        is_cuda = compute.is_cuda
        self._frames = self._host_frames.to(compute.device) if is_cuda else self._host_frames
        self._column_values = self._host_column_values.to(compute.device) if is_cuda else self._host_column_values
        self._is_cuda = is_cuda

    def stage_columns(self) -> None:
        """Copy the columns of a filled batch to the transfer memory."""
        column_values = self._host_column_values.numpy()
        for row, name in enumerate(self._columns):
            column_values[row] = getattr(self.batch, name)

    def copy_to_device(self) -> None:
        """Copy the batch to the device; the first part of the step."""
        if self._is_cuda:
            self._frames.copy_(self._host_frames, non_blocking=True)
            self._column_values.copy_(self._host_column_values, non_blocking=True)

    def batch_tensors(self) -> SimpleNamespace:
        """Return the batch for a loss: observations with channels last, and the columns."""
        columns = dict(zip(self._columns, self._column_values, strict=True))
        return SimpleNamespace(
            observations=channels_last(self._frames[:, : self._stack]),
            next_observations=channels_last(self._frames[:, -self._stack :]),
            **{**columns, "actions": columns["actions"].long()},
        )


Loss = Callable[[Weights, Weights, SimpleNamespace], tuple[Tensor, Tensor]]
"""Computes the loss and the metrics to report from the weights, the target weights and a batch.

With prioritized sampling the loss also fills the batch's `td_errors`.
"""


class FrameReplayLearner(TorchLearner):
    """Trains a network with a target network on samples of a replay buffer; the host does not wait for a step."""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        target: Mapping[str, Array],
        feed: ReplayFeed,
        learning_rate: float,
        epsilon: float,
        metric_names: Sequence[str],
        compute: TorchContext,
    ) -> None:
        super().__init__(arrays, learning_rate, epsilon, compute)
        self.target = as_tensors(target, compute.device, is_learned=False)
        self._feed = feed
        self._metrics = StepMetrics(metric_names, compute)
        self._step = GraphedStep(
            self._gradient_step, self._state_tensors, compute, feed.copy_to_device, self._after_step
        )

    def update(self, replay: FrameBuffer) -> None:
        """Do one gradient step on a new sample without waiting for it; see `first_non_finite`."""
        self.synchronize(replay)
        replay.sample(self._feed.batch)
        self._feed.stage_columns()
        self._step()
        self._feed.record_launch()
        self._metrics.count_step()

    def synchronize(self, replay: Any) -> None:
        """Wait for the latest step; with prioritized sampling, update the priorities."""
        self._feed.synchronize()

    def _gradient_step(self) -> None:
        """Update the weights on the feed's batch and write the metrics."""
        raise NotImplementedError

    def _after_step(self) -> None:
        """Run what must not be compiled."""
        self._metrics.check()

    def _state_tensors(self) -> list[Tensor]:
        return [*self.adam.state_tensors(), *self._metrics.state_tensors()]

    def update_target(self, tau: float) -> None:
        """Move the target network: target += tau * (weights - target)."""
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.values()), list(self.weights.values()), tau)

    def losses(self) -> dict[str, float]:
        """Return the losses of the latest step under CleanRL's names. Waits for the device."""
        return self._metrics.to_dict()

    def first_non_finite(self) -> NonFiniteReport | None:
        return self._metrics.first_non_finite()

    def optimizer_state(self) -> dict[str, Array]:
        targets = {f"target.{name}": part for name, part in as_arrays(self.target).items()}
        return {**super().optimizer_state(), **targets}


class TargetNetworkLearner(FrameReplayLearner):
    """Minimizes a loss of the network and its target network."""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        target: Mapping[str, Array],
        loss: Loss,
        feed: ReplayFeed,
        learning_rate: float,
        epsilon: float,
        metric_names: Sequence[str],
        compute: TorchContext,
        state_tensors: Sequence[Tensor] = (),
    ) -> None:
        """`state_tensors` are tensors that the loss itself changes."""
        super().__init__(arrays, target, feed, learning_rate, epsilon, metric_names, compute)
        self._loss = loss
        self._loss_state_tensors = state_tensors

    def _gradient_step(self) -> None:
        loss, metrics = self._loss(self.weights, self.target, self._batch_tensors())
        self.adam.step(loss)
        self._metrics.values.copy_(metrics)

    def _batch_tensors(self) -> SimpleNamespace:
        return self._feed.batch_tensors()

    def _state_tensors(self) -> list[Tensor]:
        return [*super()._state_tensors(), *self._loss_state_tensors]

    def optimizer_state(self) -> dict[str, Array]:
        return {**super().optimizer_state(), "torch.rng": self.compute.random_state().numpy()}

    def restore(self, arrays: Mapping[str, Array], count: int) -> None:
        super().restore(arrays, count)
        if "torch.rng" in arrays:
            self.compute.restore_random_state(torch.as_tensor(arrays["torch.rng"]))


class PrioritizedLearner(TargetNetworkLearner):
    """Trains from a prioritized replay buffer and updates its priorities with the TD errors."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        rows = self._feed.batch.rows
        self._td_errors = torch.zeros(rows, device=self.compute.device)
        self._host_td_errors = self.compute.host_buffer(rows, dtype=torch.float32)
        self._has_updated_priorities = True

    def synchronize(self, replay: Any) -> None:
        super().synchronize(replay)
        td_errors = self._host_td_errors.numpy()
        # A priority that is not finite would spoil every later draw; the run is about to fail because of it.
        if not self._has_updated_priorities and np.isfinite(td_errors).all():
            replay.update_priorities(self._feed.batch.indices, td_errors)
        self._has_updated_priorities = True

    def update(self, replay: FrameBuffer) -> None:
        super().update(replay)
        self._has_updated_priorities = False

    def _batch_tensors(self) -> SimpleNamespace:
        batch = super()._batch_tensors()
        batch.td_errors = self._td_errors
        return batch

    def _after_step(self) -> None:
        super()._after_step()
        self._host_td_errors.copy_(self._td_errors, non_blocking=True)


def make_inference_step(
    replay: FrameBuffer, outputs: int, work: Callable[[Tensor], Tensor], compute: TorchContext
) -> ImageInferenceStep:
    """Make the inference step for the latest frames of all environments of a buffer."""
    return ImageInferenceStep((replay.num_envs, replay.stack, *replay.shape), outputs, work, compute)
