"""The convolutional networks for frames in torch, and learners from rollouts: on a CPU, or as CUDA graphs.

Images are bytes with channels last, [rows, 84, 84, channels]: this halves the time of the first convolution on a CPU,
and bytes are converted to floats in one pass. The scaling to 0..1 is folded into the first layer's weights. Imports
only torch, numpy and modules that need nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, relu, relu_
from torch.func import functional_call
from torch.nn.functional import conv2d, linear, max_pool2d

from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.conv_network import (
    BODY,
    CONV_LAYERS,
    CONV_NETWORK,
    FIRST_IMPALA_DENSE_LAYER,
    IMPALA_LAYERS,
    KERNEL_SIZES_AND_STRIDES,
    dense_layer,
)
from cleanrl_worker.learners.flat_network import select_by_prefix
from cleanrl_worker.learners.ppo_kernels import ADAM_EPSILON, PpoLosses
from cleanrl_worker.learners.protocols import RolloutSettings
from cleanrl_worker.learners.torch_backend import GraphedStep, InferenceStep, TorchAdam, TorchContext
from cleanrl_worker.learners.torch_dense import ACTIVATIONS, probe_body

Weights = dict[str, Tensor]
Array = Any
Forward = Callable[[Weights, Tensor], Tensor]
"""A network: its outputs [rows, outputs] for images [rows, 84, 84, channels]."""
Loss = Callable[..., tuple[Tensor, Sequence[Any]]]
"""The loss of a minibatch and its metrics, from the weights and the batch."""


def as_tensors(arrays: Mapping[str, Array], device: torch.device, is_learned: bool = True) -> Weights:
    tensors = {}
    for name, array in arrays.items():
        tensor = torch.as_tensor(np.array(array, np.float32, order="C"), device=device)
        if tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        tensors[name] = tensor.requires_grad_(is_learned)
    return tensors


def as_arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Copy tensors to arrays in torch's default memory layout."""
    return {name: np.array(tensor.detach().cpu().contiguous().numpy()) for name, tensor in tensors.items()}


def channels_last(images: Tensor) -> Tensor:
    """Convert [rows, channels, …] to [rows, …, channels]."""
    return images.permute(0, 2, 3, 1).contiguous()


def conv_features(weights: Mapping[str, Tensor], images: Tensor, architecture: Architecture = CONV_NETWORK) -> Tensor:
    """Return the outputs of the last fully connected layer [rows, units] for images [rows, 84, 84, channels].

    A network of the user's own gets images [rows, channels, 84, 84] of numbers from 0 to 1 instead.
    """
    features = images.permute(0, 3, 1, 2).float()
    if architecture.body is not None:
        body = _frame_body(architecture.body, tuple(features.shape[1:]), features.device)
        return functional_call(body, select_by_prefix(BODY, weights), (features / 255,))  # type: ignore[no-any-return]
    for number, (name, (_, stride)) in enumerate(zip(CONV_LAYERS, KERNEL_SIZES_AND_STRIDES, strict=True)):
        weight = weights[f"{name}.weight"]
        features = relu_(conv2d(features, weight if number else weight / 255, weights[f"{name}.bias"], stride=stride))
    features = features.flatten(1)
    activate, _ = ACTIVATIONS[architecture.activation]
    for index in range(architecture.layer_count):
        name = dense_layer(index)
        features = activate(linear(features, weights[f"{name}.weight"], weights[f"{name}.bias"]))
    return features


def impala_features(weights: Mapping[str, Tensor], images: Tensor, architecture: Architecture) -> Tensor:
    """Return the outputs of the last fully connected layer of IMPALA's network for images [rows, …, channels]."""

    def convolve(name: str, inputs: Tensor, scale: float = 1.0) -> Tensor:
        weight = weights[f"{name}.weight"]
        return conv2d(inputs, weight if scale == 1.0 else weight * scale, weights[f"{name}.bias"], padding=1)

    features = images.permute(0, 3, 1, 2).float()
    for number, name in enumerate(IMPALA_LAYERS):
        features = convolve(f"{name}.conv", features, 1.0 if number else 1 / 255)
        features = max_pool2d(features, 3, 2, padding=1)
        for block in ("res_block0", "res_block1"):
            inner = relu_(convolve(f"{name}.{block}.conv0", relu(features)))
            features = features + convolve(f"{name}.{block}.conv1", inner)
    features = relu(features.flatten(1))
    activate, _ = ACTIVATIONS[architecture.activation]
    for index in range(architecture.layer_count):
        name = dense_layer(index, FIRST_IMPALA_DENSE_LAYER)
        features = activate(linear(features, weights[f"{name}.weight"], weights[f"{name}.bias"]))
    return features


@functools.cache
def _frame_body(name: str, shape: tuple[int, ...], device: torch.device) -> torch.nn.Module:
    """Return the user's own network for frames; its parameters are replaced at each call."""
    body, _ = probe_body(name, shape)
    return body.to(device)


def actor_critic_heads(weights: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    """Return the actor's logits followed by the critic's value: [rows, actions + 1]."""
    heads = torch.cat([weights["actor.weight"], weights["critic.weight"]])
    return linear(hidden, heads, torch.cat([weights["actor.bias"], weights["critic.bias"]]))


class TorchLearner:
    """Weights and their optimizer, with save and restore."""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        learning_rate: float,
        epsilon: float,
        compute: TorchContext,
        optimizer: Callable[..., TorchAdam] = TorchAdam,
    ) -> None:
        self.compute = compute
        self.weights = as_tensors(arrays, compute.device)
        self.adam = optimizer(list(self.weights.values()), learning_rate, compute, epsilon)

    def arrays(self) -> dict[str, Array]:
        return as_arrays(self.weights)

    def optimizer_state(self) -> dict[str, Array]:
        kinds = {"adam.first": self.adam.first_moment, "adam.second": self.adam.second_moment}
        return {
            f"{kind}.{name}": part
            for kind, tensors in kinds.items()
            for name, part in as_arrays(dict(zip(self.weights, tensors, strict=True))).items()
        }

    def restore(self, arrays: Mapping[str, Array], count: int) -> None:
        for kind, tensors in (("adam.first", self.adam.first_moment), ("adam.second", self.adam.second_moment)):
            for name, tensor in zip(self.weights, tensors, strict=True):
                tensor.copy_(torch.as_tensor(arrays[f"{kind}.{name}"]))
        self.adam.count = count


class ImageInferenceStep(InferenceStep):
    """Runs a network on images: bytes [rows, channels, 84, 84] in, floats [rows, outputs] out."""

    def __init__(
        self,
        shape: Sequence[int],
        outputs: int,
        work: Callable[[Tensor], Tensor],
        compute: TorchContext,
        **options: Any,
    ) -> None:
        super().__init__(shape, torch.uint8, outputs, lambda images: work(channels_last(images)), compute, **options)


class RolloutLearner(TorchLearner):
    """Acts, and learns from a rollout of images, minibatch by minibatch."""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        shape: tuple[int, ...],
        outputs: int,
        forward: Forward,
        loss: Loss,
        columns: Sequence[str],
        metric_names: Sequence[str],
        settings: RolloutSettings,
        compute: TorchContext,
        epsilon: float,
        optimizer: Callable[..., TorchAdam] = TorchAdam,
    ) -> None:
        """`columns` are the numbers per row that the loss needs; `metric_names` the metrics that it returns."""
        super().__init__(arrays, settings.learning_rate, epsilon, compute, optimizer)
        self._settings = settings
        self._network, self._loss_function = forward, loss
        self._metric_names = metric_names
        device, total = compute.device, settings.batch_size
        self.act = ImageInferenceStep(
            (settings.num_envs, *shape), outputs, self._forward, compute, **self._inference_options()
        )
        channels, *sides = shape
        self._batch = SimpleNamespace(
            images=torch.zeros(total, *sides, channels, dtype=torch.uint8, device=device),
            actions=torch.zeros(total, dtype=torch.int64, device=device),
            **{name: torch.zeros(total, device=device) for name in columns},
        )
        self._order = torch.zeros(settings.minibatch_size, dtype=torch.int64, device=device)
        self._metrics = torch.zeros(len(metric_names), device=device)
        self._sums = torch.zeros(2, device=device)
        """Sums over the update so far: the last metric, gradient norms."""
        self._updates = 0
        self._step = GraphedStep(self._gradient_step, self._state_tensors, compute)

    # --- overridden by learners with a state of their own

    def _inference_options(self) -> dict[str, Any]:
        """Return the options of the inference step: tensors that acting changes, and inputs besides images."""
        return {}

    def _forward(self, images: Tensor) -> Tensor:
        return self._network(self.weights, images)

    def _loss(self, batch: SimpleNamespace) -> tuple[Tensor, Sequence[Any]]:
        return self._loss_function(self.weights, batch)

    # --- the update

    def outputs(self, observations: Array) -> Array:
        """Return the network's outputs for any number of observations [rows, channels, 84, 84]."""
        with torch.no_grad():
            images = channels_last(torch.as_tensor(observations, device=self.compute.device))
            return self._forward(images).cpu().numpy()

    def load_rollout(self, learning_rate: float, images: Array, **columns: Array) -> None:
        """Start an update on a rollout: images [rows, channels, 84, 84], `actions`, `returns` etc. [rows]."""
        self.adam.set_learning_rate(learning_rate)
        # To the device first: it reorders the bytes many times as fast as one thread does.
        self._batch.images.copy_(torch.from_numpy(images).to(self.compute.device).permute(0, 2, 3, 1))
        for name, column in columns.items():
            self.compute.copy_to_device(getattr(self._batch, name), column)
        self._sums.zero_()
        self._updates = 0

    def update(self, rows: Array) -> None:
        """Do one gradient step on a minibatch without waiting for it."""
        self.compute.copy_to_device(self._order, rows)
        self._step()
        self._updates += 1

    def _gradient_step(self) -> None:
        batch = SimpleNamespace(**{name: part[self._order] for name, part in vars(self._batch).items()})
        loss, parts = self._loss(batch)
        norm = self.adam.clipped_step(loss, self._settings.max_grad_norm)
        metrics = torch.stack(list(parts)).detach()
        self._metrics.copy_(metrics)
        self._sums += torch.stack([metrics[-1], norm])

    def _state_tensors(self) -> list[Tensor]:
        return [*self.adam.state_tensors(), self._metrics, self._sums]

    def losses(self) -> tuple[dict[str, float], bool]:
        """Return the losses of the latest step, and whether every gradient was finite. Waits for the device."""
        metrics = dict(zip(self._metric_names, self._metrics.tolist(), strict=True))
        return metrics, self._sums[1].item() < float("inf")


PPO_COLUMNS = ("log_probs", "advantages", "returns", "values")
PPO_METRIC_NAMES = PpoLosses._fields


class PpoImageLearner(RolloutLearner):
    """A learner of PPO; `clipfrac` is the mean over the update."""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        shape: tuple[int, ...],
        forward: Forward,
        loss: Loss,
        settings: RolloutSettings,
        compute: TorchContext,
        optimizer: Callable[..., TorchAdam] = TorchAdam,
        epsilon: float = ADAM_EPSILON,
    ) -> None:
        outputs = len(arrays["actor.bias"]) + 1
        super().__init__(
            arrays,
            shape,
            outputs,
            forward,
            loss,
            PPO_COLUMNS,
            PPO_METRIC_NAMES,
            settings,
            compute,
            epsilon,
            optimizer,
        )

    def losses(self) -> tuple[dict[str, float], bool]:
        metrics, is_finite = super().losses()
        return metrics | {"clipfrac": self._sums[0].item() / self._updates}, is_finite
