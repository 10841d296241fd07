"""The learner of the value methods over torch: an algorithm's reference loss, differentiated by autograd.

Same interface and same checkpoint as the numpy kernels. It is imported only where a config asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch

from cleanrl_worker.perceptron import Perceptron
from cleanrl_worker.value_kernels import BETA_1, BETA_2, Judged

Loss = Callable[..., tuple[torch.Tensor, dict[str, torch.Tensor]]]
"""Of the module, of the target's module where there is one, and of a batch of tensors."""
MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
_TRANSITION = ("observations", "actions", "rewards", "terminals", "next_observations")


class Agent(Protocol):
    network: Perceptron

    def module(self) -> torch.nn.Module: ...


class Settings(Protocol):
    """What it needs to know of a Config."""

    @property
    def cuda(self) -> bool: ...
    @property
    def torch_deterministic(self) -> bool: ...


def adam_of(parameters: Iterable[torch.nn.Parameter], epsilon: float = 1e-8) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, betas=(BETA_1, BETA_2), eps=epsilon)


def radam_of(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.RAdam(parameters, betas=(BETA_1, BETA_2))


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
        torch.set_num_threads(1)  # more threads make small networks slower, and the result depend on their number
        torch.backends.cudnn.deterministic = settings.torch_deterministic
        self.device = torch.device("cuda" if settings.cuda and torch.cuda.is_available() else "cpu")
        self.network = agent.network
        self.module = agent.module().to(self.device)
        self.target = target
        self.modules = [self.module] if target is None else [self.module, target.module().to(self.device)]
        self.first = agent.network.vector()
        self.second = agent.network.vector()
        self.count = 0
        self._loss = loss
        self._make_optimizer = make_optimizer
        self._max_norm = max_norm
        self._optimizer: torch.optim.Optimizer | None = None
        self._losses: dict[str, torch.Tensor] = {}

    def _optimiser(self) -> torch.optim.Optimizer:
        """Made at the first update, when a resumed run has filled in the moments."""
        if self._optimizer is None:
            self._optimizer = self._make_optimizer(self.module.parameters())
            first, second = self.network.named(self.first), self.network.named(self.second)
            for name, parameter in self.module.named_parameters() if self.count else ():
                self._optimizer.state[parameter] = {
                    "step": torch.tensor(float(self.count)),
                    "exp_avg": torch.from_numpy(first[name]).to(self.device),
                    "exp_avg_sq": torch.from_numpy(second[name]).to(self.device),
                }
        return self._optimizer

    def update(self, batch: Any, learning_rate: float) -> bool:
        optimizer = self._optimiser()
        optimizer.param_groups[0]["lr"] = learning_rate
        loss, self._losses = self._loss(*self.modules, self._tensors(batch))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self._max_norm)
        if not math.isfinite(float(norm)):
            return False
        optimizer.step()
        self.count += 1
        return True

    def _tensors(self, batch: Any) -> Any:
        fields = Judged._fields if self.target is None else _TRANSITION
        arrays = {name: np.ascontiguousarray(getattr(batch, name)) for name in fields}
        found = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
        return SimpleNamespace(**{name: part if name == "actions" else part.float() for name, part in found.items()})

    def follow(self, share: float) -> None:
        assert self.target is not None
        learned, target = self.modules
        with torch.no_grad():
            for old, new in zip(target.parameters(), learned.parameters(), strict=True):
                old.lerp_(new, share)
        _copy(target, self.target.network)

    def losses(self) -> dict[str, float]:
        return {name: float(value) for name, value in self._losses.items()}

    def collect(self) -> None:
        _copy(self.module, self.network)
        state = self._optimiser().state
        for views, key in ((self.first, "exp_avg"), (self.second, "exp_avg_sq")) if self.count else ():
            named = {name: _array(state[part][key]) for name, part in self.module.named_parameters()}
            self.network.assign(views, named)


def _copy(module: torch.nn.Module, network: Perceptron) -> None:
    network.assign(network.parameters, {name: _array(part) for name, part in module.named_parameters()})


def _array(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().numpy()
