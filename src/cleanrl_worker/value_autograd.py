"""The learner of the value methods over torch: an algorithm's reference loss, differentiated by autograd.

Same interface and same checkpoint as the numpy kernels. It is imported only where a config asks for it. On a GPU an
update is one CUDA graph and so is an act; nobody waits for an update. Needs torch and numpy, and nothing of ours that
needs more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cleanrl_worker.autograd import ModuleLearner, arrays_of
from cleanrl_worker.perceptron import Perceptron
from cleanrl_worker.torch_backend import Acting, Adam, Compute, RAdam, Step, Trouble, Watch
from cleanrl_worker.value_kernels import Judged

Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""Of the module, of the target's module where there is one, and of a batch of tensors."""
MakeAdam = Callable[[Sequence[Tensor], Compute], Adam]
Array = Any
_TRANSITION = ("observations", "actions", "rewards", "terminals", "next_observations")


class Agent(Protocol):
    network: Perceptron

    def module(self) -> torch.nn.Module: ...


class Settings(Protocol):
    """What it needs to know of a Config."""

    @property
    def seed(self) -> int: ...
    @property
    def cuda(self) -> bool: ...
    @property
    def torch_deterministic(self) -> bool: ...
    @property
    def cuda_graphs(self) -> bool: ...
    @property
    def compile(self) -> bool: ...


def adam_of(parameters: Sequence[Tensor], compute: Compute, epsilon: float = 1e-8) -> Adam:
    return Adam(parameters, 0.0, compute, epsilon)


def radam_of(parameters: Sequence[Tensor], compute: Compute) -> Adam:
    return RAdam(parameters, 0.0, compute)


class AutogradLearner(ModuleLearner):
    """Improves a torch module and acts by it."""

    def __init__(
        self,
        agent: Agent,
        loss: Loss,
        make_adam: MakeAdam,
        settings: Settings,
        figures: Sequence[str],
        target: Agent | None = None,
        max_norm: float | None = None,
    ) -> None:
        """`figures` are what the loss tells beside itself, in its order."""
        # One thread: more make small networks slower, and the result depend on their number.
        compute = Compute.prepared(
            cuda=settings.cuda,
            deterministic=settings.torch_deterministic,
            cuda_graphs=settings.cuda_graphs,
            compiles=settings.compile,
            seed=settings.seed,
        )
        super().__init__(agent.network, agent.module(), make_adam, compute)
        self.target = target
        self.modules = [self.module] if target is None else [self.module, target.module().to(compute.device)]
        self._perceptron = agent.network
        self._loss = loss
        self._max_norm = max_norm
        self._names = figures
        self._figures = torch.zeros(len(figures), device=compute.device)
        self._watch = Watch(figures, compute)
        self._shapes: dict[str, tuple[int, ...]] = {}
        """Of each part of a batch, without the rows."""
        self._packed = torch.zeros(0, device=compute.device)
        self._step = Step(self._improve, self._kept, compute, after=lambda: self._watch.look(self._figures))

    # --- acting

    def forward(self, rows: int) -> Callable[[Array], Array]:
        """What gives outputs [outputs, rows] by the newest weights for as many observations at a time."""
        network, shape = self.module.network, (rows, self._perceptron.inputs)
        acting = Acting(shape, torch.float32, self._perceptron.outputs, network, self.compute)  # type: ignore[arg-type]
        return lambda observations: acting(observations).T

    # --- the update

    def update(self, batch: Any, learning_rate: float) -> bool:
        """One gradient step. Nobody waits for it, so that what is infinite shows in `trouble`."""
        self.adam.set_learning_rate(learning_rate)
        self._take(batch)
        self._step()
        self._watch.count()
        return True

    def _take(self, batch: Any) -> None:
        """Copies a batch to where the update reads it."""
        names = Judged._fields if self.target is None else _TRANSITION
        parts = [getattr(batch, name) for name in names]
        packed = np.concatenate([part.reshape(len(part), -1) for part in parts], 1, dtype=np.float32, casting="unsafe")
        if not self._shapes:
            self._shapes = {name: part.shape[1:] for name, part in zip(names, parts, strict=True)}
            self._packed = torch.zeros(packed.shape, device=self.compute.device)
        self.compute.send(self._packed, packed)

    def _batch(self) -> SimpleNamespace:
        columns = torch.split(self._packed, [math.prod(shape) for shape in self._shapes.values()], 1)
        parts = {
            name: column if shape else column[:, 0]
            for (name, shape), column in zip(self._shapes.items(), columns, strict=True)
        }
        return SimpleNamespace(**{**parts, "actions": parts["actions"].long()})

    def _improve(self) -> None:
        loss, losses = self._loss(*self.modules, self._batch())
        if self._max_norm is None:
            self.adam.step(loss)
        else:
            self.adam.clipped_step(loss, self._max_norm)
        self._figures.copy_(torch.stack([losses[name] for name in self._names]))

    def _kept(self) -> list[Tensor]:
        return [*self.adam.kept(), self._figures, *self._watch.kept()]

    def follow(self, share: float) -> None:
        learned, target = self.modules
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(learned.parameters()), share)

    def losses(self) -> dict[str, float]:
        """Of the newest batch. Waits for the device."""
        return dict(zip(self._names, self._figures.tolist(), strict=True))

    def trouble(self) -> Trouble | None:
        return self._watch.trouble()

    def collect(self) -> None:
        super().collect()
        if self.target is not None:
            network = self.target.network
            network.assign(network.parameters, arrays_of(dict(self.modules[1].named_parameters())))
