"""The learner over torch: the reference loss of an algorithm, differentiated by autograd, on a CPU or a GPU.

Same interface and same checkpoint as the numpy kernels. It is imported only where a config asks for it. On a GPU each
gradient step is one CUDA graph and so is each act; a rollout is sent once for each pass over it, and nobody waits for
a step. Needs torch and numpy, and nothing of ours that needs more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cleanrl_worker.kernels import EPSILON, Batch, Integers, Losses, Settings
from cleanrl_worker.network import Network
from cleanrl_worker.torch_backend import Acting, Adam, Compute, Step

Loss = Callable[[torch.nn.Module, Any, Settings], tuple[Tensor, Losses]]
Array = Any
_NUMBERS = ("log_probs", "advantages", "returns", "values")


class Shaped(Protocol):
    """A numpy network: what a module is copied back to."""

    parameters: Any

    def vector(self) -> Any: ...
    def named(self, views: Any) -> Mapping[str, Array]: ...
    def assign(self, views: Any, named: Mapping[str, Array]) -> None: ...


class ModuleLearner:
    """A torch module that learns; the network that is saved and Adam's moments in that network's shape follow it."""

    def __init__(
        self,
        network: Any,
        module: torch.nn.Module,
        make_adam: Callable[[Sequence[Tensor], Compute], Adam],
        compute: Compute,
    ) -> None:
        self.compute = compute
        self.network: Shaped = network
        self.module = module.to(compute.device)
        self._parameters = dict(self.module.named_parameters())
        self._views = network.vector(), network.vector()
        self._count = 0
        self._make_adam = make_adam
        self._made: Adam | None = None

    @property
    def adam(self) -> Adam:
        """Made when it is first needed: by then a resumed run has filled in the moments."""
        if self._made is None:
            made = self._make_adam(list(self._parameters.values()), self.compute)
            for tensors, views in zip((made.first, made.second), self._views, strict=True):
                named = self.network.named(views)
                for name, tensor in zip(self._parameters, tensors, strict=True):
                    tensor.copy_(torch.from_numpy(named[name]))
            made.count = self._count
            self._made = made
        return self._made

    @property
    def first(self) -> Any:
        return self._moment(0)

    @property
    def second(self) -> Any:
        return self._moment(1)

    def _moment(self, index: int) -> Any:
        """Waits for the device."""
        if self._made is not None:
            tensors = (self._made.first, self._made.second)[index]
            self.network.assign(self._views[index], arrays_of(dict(zip(self._parameters, tensors, strict=True))))
        return self._views[index]

    @property
    def count(self) -> int:
        return self._count if self._made is None else self._made.count

    @count.setter
    def count(self, count: int) -> None:
        self._count = count
        if self._made is not None:
            self._made.count = count

    def collect(self) -> None:
        """Brings the network up to date. Waits for the device."""
        self.network.assign(self.network.parameters, arrays_of(self._parameters))


class AutogradLearner(ModuleLearner):
    """PPO's. Improves a torch module on a rollout, minibatch by minibatch, and acts by it."""

    def __init__(
        self,
        network: Network,
        module: torch.nn.Module,
        loss: Loss,
        rows: int,
        settings: Settings,
        compute: Compute,
    ) -> None:
        def make_adam(parameters: Sequence[Tensor], compute: Compute) -> Adam:
            return Adam(parameters, 0.0, compute, EPSILON)

        super().__init__(network, module, make_adam, compute)
        self._loss = loss
        self._rows = rows
        self._settings = settings
        self._outputs, self._head = network.outputs, network.actor
        self._rollout = torch.zeros(0, device=compute.device)
        """All rows in the order in which they are learned from, [minibatches, rows, numbers]."""
        self._size = network.inputs
        self._has_choices = True
        self._turn = torch.zeros(1, dtype=torch.int64, device=compute.device)
        """The number of the next minibatch."""
        self._figures = torch.zeros(len(Losses._fields), device=compute.device)
        self._clipped = torch.zeros((), device=compute.device)
        """Shares of clipped ratios, summed over the update so far."""
        self._updates = 0
        self._step = Step(self._improve, self._kept, compute)

    # --- acting

    def actor(self, rows: int) -> Player:
        """Acts by the newest weights, on as many observations at a time."""
        head = getattr(self.module, self._head)
        return Player(Acting((rows, self._size), torch.float32, self._outputs, head, self.compute))

    # --- learning

    def begin(self, learning_rate: float) -> None:
        self.adam.set_learning_rate(learning_rate)
        self._clipped.zero_()
        self._updates = 0

    def epoch(self, batch: Batch, order: Integers) -> None:
        """One gradient step a minibatch, over all rows in this order. Nobody waits for them."""
        self._has_choices = batch.actions.ndim == 1
        actions = batch.actions.reshape(len(order), -1)
        numbers = np.stack([getattr(batch, name) for name in _NUMBERS], 1)
        packed = np.concatenate([batch.observations, actions, numbers], 1, dtype=np.float32)[order]
        if len(self._rollout) == 0:
            shape = (len(order) // self._rows, self._rows, packed.shape[1])
            self._rollout = torch.zeros(shape, device=self.compute.device)
        self.compute.send(self._rollout, packed.reshape(self._rollout.shape))
        self._turn.zero_()
        for _ in range(len(self._rollout)):
            self._step()
            self._updates += 1

    def _minibatch(self) -> Batch:
        rows = self._rollout.index_select(0, self._turn)[0]
        actions = rows[:, self._size : -len(_NUMBERS)]
        chosen: Any = {
            "observations": rows[:, : self._size],
            "actions": actions[:, 0].long() if self._has_choices else actions,
            **dict(zip(_NUMBERS, rows[:, -len(_NUMBERS) :].unbind(1), strict=True)),
        }
        return Batch(**chosen)

    def _improve(self) -> None:
        loss, losses = self._loss(self.module, self._minibatch(), self._settings)
        self.adam.clipped_step(loss, self._settings.max_grad_norm)
        figures: Any = losses
        self._figures.copy_(torch.stack(list(figures)))
        self._clipped += figures.clipfrac
        # Around: the calls that come before a capture go on counting.
        self._turn.add_(1).remainder_(len(self._rollout))

    def _kept(self) -> list[Tensor]:
        return [*self.adam.kept(), self._figures, self._clipped, self._turn]

    def losses(self) -> Losses:
        """Waits for the device."""
        return Losses(*self._figures.tolist())._replace(clipfrac=self._clipped.item() / self._updates)


class Player:
    """As the numpy network's actor: fills an array with what the policy says."""

    def __init__(self, acting: Acting) -> None:
        self._acting = acting

    def refresh(self) -> None:
        """Nothing to do: it acts by the weights themselves."""

    def __call__(self, observations: Array, out: Array) -> None:
        out[...] = self._acting(observations)


def arrays_of(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """In one copy, which is what a GPU is waited for."""
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors.values()]).cpu().numpy()
    ends = np.cumsum([tensor.numel() for tensor in tensors.values()])
    parts = np.split(flat, ends[:-1])
    return {name: part.reshape(tuple(tensors[name].shape)) for name, part in zip(tensors, parts, strict=True)}
