"""The learner over torch: the reference loss of an algorithm, differentiated by autograd, on a CPU or a GPU.

Same interface and same checkpoint as the numpy kernels. It is imported only where a config asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from cleanrl_worker.kernels import BETA_1, BETA_2, EPSILON, Batch, Integers, Losses, Settings
from cleanrl_worker.network import Network

Loss = Callable[[torch.nn.Module, Any, Settings], tuple[torch.Tensor, Losses]]


class AutogradLearner:
    """Improves a torch module and copies it back to the network, which acts and is saved."""

    def __init__(
        self,
        network: Network,
        module: torch.nn.Module,
        loss: Loss,
        rows: int,
        settings: Settings,
        *,
        cuda: bool,
        deterministic: bool,
    ) -> None:
        torch.set_num_threads(1)  # more threads make small networks slower, and the result depend on their number
        torch.backends.cudnn.deterministic = deterministic
        self.device = torch.device("cuda" if cuda and torch.cuda.is_available() else "cpu")
        self.network = network
        self.module = module.to(self.device)
        self.loss = loss
        self.rows = rows
        self.settings = settings
        self.first = network.vector()
        self.second = network.vector()
        self.count = 0
        self._optimizer: torch.optim.Adam | None = None
        self._clipped: list[float] = []
        self._losses: Losses | None = None

    def _adam(self) -> torch.optim.Adam:
        """Made at the first update, when a resumed run has filled in the moments."""
        if self._optimizer is None:
            self._optimizer = torch.optim.Adam(self.module.parameters(), betas=(BETA_1, BETA_2), eps=EPSILON)
            first, second = self.network.named(self.first), self.network.named(self.second)
            for name, parameter in self.module.named_parameters() if self.count else ():
                self._optimizer.state[parameter] = {
                    "step": torch.tensor(float(self.count)),
                    "exp_avg": torch.from_numpy(first[name]).to(self.device),
                    "exp_avg_sq": torch.from_numpy(second[name]).to(self.device),
                }
        return self._optimizer

    def begin(self, learning_rate: float) -> None:
        self._clipped = []
        self._adam().param_groups[0]["lr"] = learning_rate

    def epoch(self, batch: Batch, order: Integers) -> None:
        optimizer = self._adam()
        parameters = list(self.module.parameters())
        for begin in range(0, len(order), self.rows):
            minibatch = part_of(batch, order[begin : begin + self.rows], self.device)
            loss, self._losses = self.loss(self.module, minibatch, self.settings)
            self._clipped.append(self._losses.clipfrac)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.clip_grad_norm_(parameters, self.settings.max_grad_norm)
            if not math.isfinite(float(norm)):
                return
            optimizer.step()
            self.count += 1

    def losses(self) -> Losses:
        assert self._losses is not None
        clipfrac = sum(float(part) for part in self._clipped) / len(self._clipped)
        return Losses(*[float(value) for value in self._losses])._replace(clipfrac=clipfrac)

    def collect(self) -> None:
        state = self._adam().state
        named = dict(self.module.named_parameters())
        self.network.assign(self.network.parameters, {name: _array(part) for name, part in named.items()})
        for views, key in ((self.first, "exp_avg"), (self.second, "exp_avg_sq")) if self.count else ():
            self.network.assign(views, {name: _array(state[part][key]) for name, part in named.items()})


def part_of(batch: Batch, rows: Integers, device: torch.device) -> Any:
    """Some rows of a batch, as tensors."""
    chosen: Any = {name: torch.from_numpy(values[rows]).to(device) for name, values in vars(batch).items()}
    return Batch(**chosen)


def _array(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().numpy()
