"""The learners of PPO and of value-based methods in torch: an algorithm's reference loss, differentiated by autograd.

Same interface and same checkpoint as the numpy kernels. They are imported only if a config selects torch. On a GPU each
update is one CUDA graph, and so is each action; the host does not wait for an update. Imports only torch, numpy and
modules that need nothing else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cleanrl_worker.learners.perceptron import Perceptron
from cleanrl_worker.learners.ppo_kernels import ADAM_EPSILON, Integers, PpoLosses, RolloutBatch
from cleanrl_worker.learners.ppo_network import PpoNetwork
from cleanrl_worker.learners.protocols import NamedParameters, PpoSettings, TorchSettings
from cleanrl_worker.learners.torch_backend import (
    GraphedStep,
    InferenceStep,
    NonFiniteReport,
    StepMetrics,
    TorchAdam,
    TorchContext,
)
from cleanrl_worker.learners.value_kernels import ReturnBatch

PpoLoss = Callable[[torch.nn.Module, Any, PpoSettings], tuple[Tensor, PpoLosses]]
Array = Any
ValueLoss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""Computes loss and metrics from the module, the target's module if there is one, and a batch of tensors."""
_TRANSITION_FIELDS = ("observations", "actions", "rewards", "terminals", "next_observations")
_ROLLOUT_COLUMNS = ("log_probs", "advantages", "returns", "values")


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Copy tensors to arrays in one transfer, because each transfer waits for the GPU."""
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors.values()]).cpu().numpy()
    ends = np.cumsum([tensor.numel() for tensor in tensors.values()])
    parts = np.split(flat, ends[:-1])
    return {name: part.reshape(tuple(tensors[name].shape)) for name, part in zip(tensors, parts, strict=True)}


class ModuleLearner:
    """Trains a torch module and copies its weights and Adam moments to the numpy network that is saved."""

    def __init__(
        self,
        network: Any,
        module: torch.nn.Module,
        compute: TorchContext,
        epsilon: float = 1e-8,
        optimizer: type[TorchAdam] = TorchAdam,
    ) -> None:
        self.compute = compute
        self.network: NamedParameters = network
        self.module = module.to(compute.device)
        self._parameters = dict(self.module.named_parameters())
        self._views = network.zero_vector(), network.zero_vector()
        self._count = 0
        self._epsilon, self._optimizer = epsilon, optimizer
        self._adam: TorchAdam | None = None

    @property
    def adam(self) -> TorchAdam:
        """The optimizer, created on first use: by then a resumed run has restored the moments."""
        if self._adam is None:
            adam = self._optimizer(list(self._parameters.values()), 0.0, self.compute, self._epsilon)
            for tensors, views in zip((adam.first_moment, adam.second_moment), self._views, strict=True):
                named = self.network.named_arrays(views)
                for name, tensor in zip(self._parameters, tensors, strict=True):
                    tensor.copy_(torch.from_numpy(named[name]))
            adam.count = self._count
            self._adam = adam
        return self._adam

    @property
    def first_moment(self) -> Any:
        return self._moment(0)

    @property
    def second_moment(self) -> Any:
        return self._moment(1)

    def _moment(self, index: int) -> Any:
        """Return a moment in the network's shape. Waits for the device."""
        if self._adam is not None:
            tensors = (self._adam.first_moment, self._adam.second_moment)[index]
            self.network.assign(self._views[index], to_arrays(dict(zip(self._parameters, tensors, strict=True))))
        return self._views[index]

    @property
    def count(self) -> int:
        return self._count if self._adam is None else self._adam.count

    @count.setter
    def count(self, count: int) -> None:
        self._count = count
        if self._adam is not None:
            self._adam.count = count

    def sync_networks(self) -> None:
        """Copy the module's weights to the numpy network. Waits for the device."""
        self.network.assign(self.network.parameters, to_arrays(self._parameters))


# --- PPO


class PpoAutogradLearner(ModuleLearner):
    """Trains a torch module by PPO on rollouts, minibatch by minibatch, and acts with it."""

    _observation_dtype = torch.float32

    def __init__(
        self,
        network: PpoNetwork,
        module: torch.nn.Module,
        loss: PpoLoss,
        rows: int,
        settings: PpoSettings,
        compute: TorchContext,
    ) -> None:
        super().__init__(network, module, compute, ADAM_EPSILON)
        self._loss = loss
        self._rows = rows
        self._settings = settings
        self._outputs, self._head = network.outputs, network.actor
        self._rollout = torch.zeros(0, device=compute.device)
        """All rows in the order of the epoch, [minibatches, rows, numbers]."""
        self._observation_size = self._packed_size = network.inputs
        """Numbers of an observation, and those of them in a row of the rollout."""
        self._is_discrete = True
        self._minibatch_index = torch.zeros(1, dtype=torch.int64, device=compute.device)
        """The index of the next minibatch."""
        self._metrics = torch.zeros(len(PpoLosses._fields), device=compute.device)
        self._sums = torch.zeros(2, device=compute.device)
        """Sums over the update so far: fractions of clipped ratios, gradient norms."""
        self.is_stopped: Callable[[], bool] = bool
        self._updates = 0
        self._step = GraphedStep(self._gradient_step, self._state_tensors, compute)

    # --- acting

    def actor(self, rows: int) -> TorchActor:
        """Return an actor with the latest weights for `rows` observations at a time."""
        head = getattr(self.module, self._head)
        shape = (rows, self._observation_size)
        return TorchActor(InferenceStep(shape, self._observation_dtype, self._outputs, head, self.compute))

    # --- learning

    def begin_update(self, learning_rate: float) -> None:
        self.adam.set_learning_rate(learning_rate)
        self._sums.zero_()
        self._updates = 0

    def run_epoch(self, batch: RolloutBatch, order: Integers) -> None:
        """Do one gradient step per minibatch over all rows in this order, without waiting for the device."""
        self._is_discrete = batch.actions.ndim == 1
        actions = batch.actions.reshape(len(order), -1)
        columns = np.stack([getattr(batch, name) for name in _ROLLOUT_COLUMNS], 1)
        packed = np.concatenate([batch.observations, actions, columns], 1, dtype=np.float32)[order]
        if len(self._rollout) == 0:
            shape = (len(order) // self._rows, self._rows, packed.shape[1])
            self._rollout = torch.zeros(shape, device=self.compute.device)
        self.compute.copy_to_device(self._rollout, packed.reshape(self._rollout.shape))
        self._minibatch_index.zero_()
        for _ in range(len(self._rollout)):
            self._step()
            self._updates += 1
            if self.is_stopped():
                return

    def _minibatch(self) -> RolloutBatch:
        rows = self._rollout.index_select(0, self._minibatch_index)[0]
        actions = rows[:, self._packed_size : -len(_ROLLOUT_COLUMNS)]
        fields: Any = {
            "observations": rows[:, : self._packed_size],
            "actions": actions[:, 0].long() if self._is_discrete else actions,
            **dict(zip(_ROLLOUT_COLUMNS, rows[:, -len(_ROLLOUT_COLUMNS) :].unbind(1), strict=True)),
        }
        return RolloutBatch(**fields)

    def _gradient_step(self) -> None:
        loss, losses = self._loss(self.module, self._minibatch(), self._settings)
        norm = self.adam.clipped_step(loss, self._settings.max_grad_norm)
        metrics: Any = losses
        self._metrics.copy_(torch.stack(list(metrics)))
        self._sums += torch.stack([metrics.clipfrac, norm])
        # Wraps around, because the warm-up calls before a capture also count.
        self._minibatch_index.add_(1).remainder_(len(self._rollout))

    def _state_tensors(self) -> list[Tensor]:
        return [*self.adam.state_tensors(), self._metrics, self._sums, self._minibatch_index]

    @property
    def is_gradient_finite(self) -> bool:
        return math.isfinite(self._sums[1].item())

    def losses(self) -> PpoLosses:
        """Return the losses of the latest update. Waits for the device."""
        return PpoLosses(*self._metrics.tolist())._replace(clipfrac=self._sums[0].item() / self._updates)


class PpoByteLearner(PpoAutogradLearner):
    """The same for observations that are bytes, which are floats only inside of the module."""

    _observation_dtype = torch.uint8

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._packed_size = 0
        self._observations = torch.zeros(0, dtype=torch.uint8, device=self.compute.device)
        """The observations in the order of the epoch, [minibatches, rows, bytes]."""

    def run_epoch(self, batch: RolloutBatch, order: Integers) -> None:
        observations = torch.from_numpy(batch.observations[order]).view(-1, self._rows, self._observation_size)
        if len(self._observations) == 0:
            self._observations = torch.empty_like(observations, device=self.compute.device)
        self.compute.copy_to_device(self._observations, observations)
        super().run_epoch(dataclasses.replace(batch, observations=batch.observations[:, :0]), order)

    def _minibatch(self) -> RolloutBatch:
        observations: Any = self._observations.index_select(0, self._minibatch_index)[0]
        return dataclasses.replace(super()._minibatch(), observations=observations)

    def state_values(self, observations: Array) -> Array:
        """Return the critic's values, computed on the device by a minibatch at a time. Waits for the device."""
        critic: Any = self.module.critic
        with torch.no_grad():
            parts = torch.split(torch.as_tensor(observations), self._rows)
            return torch.cat([critic(part.to(self.compute.device))[:, 0] for part in parts]).cpu().numpy()


class TorchActor:
    """Fills an array with the policy's outputs; same interface as the numpy actor."""

    def __init__(self, inference: InferenceStep) -> None:
        self._inference = inference

    def refresh(self) -> None:
        """Do nothing: it uses the weights themselves."""

    def __call__(self, observations: Array, out: Array) -> None:
        out[...] = self._inference(observations)


# --- value-based methods


class ValueAgent(Protocol):
    network: Perceptron

    def module(self) -> torch.nn.Module: ...


class ValueAutogradLearner(ModuleLearner):
    """Trains a torch module and acts with it."""

    def __init__(
        self,
        agent: ValueAgent,
        loss: ValueLoss,
        settings: TorchSettings,
        metric_names: Sequence[str],
        target: ValueAgent | None = None,
        max_norm: float | None = None,
        epsilon: float = 1e-8,
        optimizer: type[TorchAdam] = TorchAdam,
    ) -> None:
        """`metric_names` are the metrics that the loss returns, in its order."""
        # One thread: more make small networks slower, and results would depend on their number.
        compute = TorchContext.from_settings(settings, threads=1)
        super().__init__(agent.network, agent.module(), compute, epsilon, optimizer)
        self.target = target
        self.modules = [self.module] if target is None else [self.module, target.module().to(compute.device)]
        self._perceptron = agent.network
        self._loss = loss
        self._max_norm = max_norm
        self._metric_names = metric_names
        self._metrics = StepMetrics(metric_names, compute)
        self._shapes: dict[str, tuple[int, ...]] = {}
        """The shape of each part of a batch, without the rows."""
        self._packed = torch.zeros(0, device=compute.device)
        self._step = GraphedStep(self._gradient_step, self._state_tensors, compute, after=self._metrics.check)

    # --- acting

    def forward(self, rows: int) -> Callable[[Array], Array]:
        """Return a function from `rows` observations to outputs [outputs, rows] with the latest weights."""
        network, shape = self.module.network, (rows, self._perceptron.inputs)
        inference = InferenceStep(shape, torch.float32, self._perceptron.outputs, network, self.compute)  # type: ignore[arg-type]
        return lambda observations: inference(observations).T

    # --- the update

    def update(self, batch: Any, learning_rate: float) -> bool:
        """Do one gradient step without waiting for it; see `first_non_finite`."""
        self.adam.set_learning_rate(learning_rate)
        self._copy_batch(batch)
        self._step()
        self._metrics.count_step()
        return True

    def _copy_batch(self, batch: Any) -> None:
        """Copy a batch to the device."""
        names = ReturnBatch._fields if self.target is None else _TRANSITION_FIELDS
        parts = [getattr(batch, name) for name in names]
        packed = np.concatenate([part.reshape(len(part), -1) for part in parts], 1, dtype=np.float32, casting="unsafe")
        if not self._shapes:
            self._shapes = {name: part.shape[1:] for name, part in zip(names, parts, strict=True)}
            self._packed = torch.zeros(packed.shape, device=self.compute.device)
        self.compute.copy_to_device(self._packed, packed)

    def _unpack_batch(self) -> SimpleNamespace:
        columns = torch.split(self._packed, [math.prod(shape) for shape in self._shapes.values()], 1)
        parts = {
            name: column if shape else column[:, 0]
            for (name, shape), column in zip(self._shapes.items(), columns, strict=True)
        }
        return SimpleNamespace(**{**parts, "actions": parts["actions"].long()})

    def _gradient_step(self) -> None:
        loss, losses = self._loss(*self.modules, self._unpack_batch())
        if self._max_norm is None:
            self.adam.step(loss)
        else:
            self.adam.clipped_step(loss, self._max_norm)
        self._metrics.values.copy_(torch.stack([losses[name] for name in self._metric_names]))

    def _state_tensors(self) -> list[Tensor]:
        return [*self.adam.state_tensors(), *self._metrics.state_tensors()]

    def update_target(self, tau: float) -> None:
        online, target = self.modules
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)

    def losses(self) -> dict[str, float]:
        """Return the losses of the latest batch. Waits for the device."""
        return self._metrics.to_dict()

    def first_non_finite(self) -> NonFiniteReport | None:
        return self._metrics.first_non_finite()

    def sync_networks(self) -> None:
        super().sync_networks()
        if self.target is not None:
            network = self.target.network
            network.assign(network.parameters, to_arrays(dict(self.modules[1].named_parameters())))
