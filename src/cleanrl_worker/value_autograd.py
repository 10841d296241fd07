"""The learner of value-based methods in torch: an algorithm's reference loss, differentiated by autograd.

Same interface and same checkpoint as the numpy kernels. It is imported only if a config selects torch. On a GPU an
update is one CUDA graph, and so is each action; the host does not wait for an update. Imports only torch, numpy and
modules that need nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cleanrl_worker.learners import TorchSettings
from cleanrl_worker.perceptron import Perceptron
from cleanrl_worker.ppo_autograd import ModuleLearner, to_arrays
from cleanrl_worker.torch_backend import (
    GraphedStep,
    InferenceStep,
    NonFiniteReport,
    StepMetrics,
    TorchAdam,
    TorchContext,
)
from cleanrl_worker.value_kernels import ReturnBatch

Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""Computes loss and metrics from the module, the target's module if there is one, and a batch of tensors."""
Array = Any
_TRANSITION_FIELDS = ("observations", "actions", "rewards", "terminals", "next_observations")


class ValueAgent(Protocol):
    network: Perceptron

    def module(self) -> torch.nn.Module: ...


class ValueAutogradLearner(ModuleLearner):
    """Trains a torch module and acts with it."""

    def __init__(
        self,
        agent: ValueAgent,
        loss: Loss,
        settings: TorchSettings,
        metric_names: Sequence[str],
        target: ValueAgent | None = None,
        max_norm: float | None = None,
        epsilon: float = 1e-8,
        optimizer: type[TorchAdam] = TorchAdam,
    ) -> None:
        """`metric_names` are the metrics that the loss returns, in its order."""
        # One thread: more make small networks slower, and results would depend on their number.
        compute = TorchContext.set_up(
            cuda=settings.cuda,
            deterministic=settings.torch_deterministic,
            cuda_graphs=settings.cuda_graphs,
            compiles=settings.compile,
            seed=settings.seed,
        )
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
