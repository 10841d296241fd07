"""The learner of the value methods over torch: an algorithm's reference loss, differentiated by autograd.

Same interface and same checkpoint as the numpy kernels. It is imported only where a config asks for it. On a GPU an
update is one CUDA graph; acting stays in numpy, which for one observation is faster than a GPU can be asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cleanrl_worker.perceptron import Perceptron, Views
from cleanrl_worker.torch_backend import Compute, Step
from cleanrl_worker.value_kernels import BETA_1, BETA_2, Judged

Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""Of the module, of the target's module where there is one, and of a batch of tensors."""
Rate = float | Tensor
MakeOptimizer = Callable[[Iterable[torch.nn.Parameter], Rate], torch.optim.Optimizer]
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


def adam_of(parameters: Iterable[torch.nn.Parameter], rate: Rate, epsilon: float = 1e-8) -> torch.optim.Optimizer:
    is_on_gpu = isinstance(rate, Tensor)
    return torch.optim.Adam(parameters, lr=rate, betas=(BETA_1, BETA_2), eps=epsilon, capturable=is_on_gpu)


def radam_of(parameters: Iterable[torch.nn.Parameter], rate: Rate) -> torch.optim.Optimizer:
    is_on_gpu = isinstance(rate, Tensor)
    return torch.optim.RAdam(parameters, lr=rate, betas=(BETA_1, BETA_2), capturable=is_on_gpu)


class AutogradLearner:
    """Improves a torch module and copies it back to the network, which acts and is saved."""

    def __init__(
        self,
        agent: Agent,
        loss: Loss,
        make_optimizer: MakeOptimizer,
        settings: Settings,
        target: Agent | None = None,
        max_norm: float = math.inf,
    ) -> None:
        # One thread: more make small networks slower, and the result depend on their number.
        self.compute = Compute.prepared(
            cuda=settings.cuda,
            deterministic=settings.torch_deterministic,
            cuda_graphs=settings.cuda_graphs,
            compiles=settings.compile,
            seed=settings.seed,
        )
        self.network = agent.network
        self.module = agent.module().to(self.compute.device)
        self.target = target
        self.modules = [self.module] if target is None else [self.module, target.module().to(self.compute.device)]
        self.count = 0
        self._parameters = dict(self.module.named_parameters())
        self._moments = {"exp_avg": agent.network.vector(), "exp_avg_sq": agent.network.vector()}
        self._loss = loss
        self._make_optimizer = make_optimizer
        self._max_norm = max_norm
        self._optimizer: torch.optim.Optimizer | None = None
        self._inputs: dict[str, Tensor] = {}
        self._losses: dict[str, Tensor] = {}
        self._norm = torch.zeros(())
        self._step = Step(self._work, self._kept, self.compute)

    # --- Adam's moments: the optimizer's own, from the first update on

    @property
    def first(self) -> Views:
        return self._moment("exp_avg")

    @property
    def second(self) -> Views:
        return self._moment("exp_avg_sq")

    def _moment(self, key: str) -> Views:
        views = self._moments[key]
        if self._optimizer is not None:
            parts = {name: self._optimizer.state[part][key] for name, part in self._parameters.items()}
            self.network.assign(views, _arrays(parts))
        return views

    def _optimiser(self) -> torch.optim.Optimizer:
        """Made at the first update, when a resumed run has filled in the moments."""
        if self._optimizer is None:
            device, is_cuda = self.compute.device, self.compute.is_cuda
            rate = torch.zeros((), device=device) if is_cuda else 0.0
            made = self._make_optimizer(self._parameters.values(), rate)
            moments = {key: self.network.named(views) for key, views in self._moments.items()}
            for name, parameter in self._parameters.items():
                made.state[parameter] = {
                    "step": torch.tensor(float(self.count), device=device if is_cuda else None),
                    **{key: torch.from_numpy(named[name]).to(device) for key, named in moments.items()},
                }
            self._optimizer = made
        return self._optimizer

    def _kept(self) -> list[Tensor]:
        state = self._optimiser().state
        return [*self._parameters.values(), *(part for own in state.values() for part in own.values())]

    # --- the update

    def update(self, batch: Any, learning_rate: float) -> bool:
        self._set_rate(learning_rate)
        self._take(batch)
        if self.compute.uses_graphs:
            self._step()
            is_finite = math.isfinite(float(self._norm))
        else:
            self._differentiate()
            is_finite = math.isfinite(float(self._norm))
            if is_finite:
                self._optimiser().step()
        self.count += is_finite
        return is_finite

    def _set_rate(self, learning_rate: float) -> None:
        group = self._optimiser().param_groups[0]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate

    def _take(self, batch: Any) -> None:
        """Copies a batch to where the update reads it."""
        for name in Judged._fields if self.target is None else _TRANSITION:
            found = torch.from_numpy(np.ascontiguousarray(getattr(batch, name)))
            if name not in self._inputs:
                kind = torch.int64 if name == "actions" else torch.float32
                self._inputs[name] = torch.zeros(found.shape, dtype=kind, device=self.compute.device)
            self._inputs[name].copy_(found)

    def _work(self) -> None:
        self._differentiate()
        self._optimiser().step()

    def _differentiate(self) -> None:
        loss, self._losses = self._loss(*self.modules, SimpleNamespace(**self._inputs))
        slopes = torch.autograd.grad(loss, list(self._parameters.values()))
        for parameter, slope in zip(self._parameters.values(), slopes, strict=True):
            parameter.grad = slope
        self._norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._max_norm)

    def follow(self, share: float) -> None:
        assert self.target is not None
        learned, target = self.modules
        with torch.no_grad():
            for old, new in zip(target.parameters(), learned.parameters(), strict=True):
                old.lerp_(new, share)
        self.target.network.assign(self.target.network.parameters, _arrays(dict(target.named_parameters())))

    def losses(self) -> dict[str, float]:
        return {name: float(value) for name, value in self._losses.items()}

    def collect(self) -> None:
        self.network.assign(self.network.parameters, _arrays(self._parameters))


def _arrays(tensors: dict[str, Any]) -> dict[str, Any]:
    """In one copy, which is what a GPU is waited for."""
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors.values()]).cpu().numpy()
    ends = np.cumsum([tensor.numel() for tensor in tensors.values()])
    parts = np.split(flat, ends[:-1])
    return {name: part.reshape(tuple(tensors[name].shape)) for name, part in zip(tensors, parts, strict=True)}
