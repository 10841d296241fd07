"""torch as the algorithms here use it: device, threads, Adam, random state, and whole steps as CUDA graphs.

On a GPU a small network's update is mostly the launching of its kernels. A `Step` is therefore a whole update that
reads and writes fixed tensors: captured once as a CUDA graph, then replayed with one launch. Nothing in it may wait for
the device (no `.item()`), and nothing may be allocated by the caller between replays.

Needs torch (2.11 and up) and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

WARM_UPS = 3
"""Calls before a capture: libraries get their workspaces, kernels are chosen."""


@dataclass(frozen=True)
class Compute:
    """Where and how tensors are computed with. It follows from the settings alone."""

    device: torch.device
    uses_graphs: bool
    is_compiled: bool

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @classmethod
    def prepared(
        cls,
        *,
        cuda: bool,
        deterministic: bool = True,
        threads: int = 1,
        cuda_graphs: bool = True,
        compiles: bool = False,
        seed: int = 1,
    ) -> Compute:
        """Sets the process up. One thread is the default: more wait for each other where another run is beside."""
        torch.set_num_threads(threads)
        torch.backends.cudnn.deterministic = deterministic
        torch.manual_seed(seed)
        is_cuda = cuda and torch.cuda.is_available()
        return cls(torch.device("cuda" if is_cuda else "cpu"), is_cuda and cuda_graphs, compiles)

    def random_state(self) -> Tensor:
        """Of the generator that steps on this device draw from, as bytes."""
        return torch.cuda.get_rng_state(self.device) if self.is_cuda else torch.get_rng_state()

    def restore_random_state(self, state: Tensor) -> None:
        """A state of another kind of device is left alone: it means nothing here."""
        if state.numel() != self.random_state().numel():
            return
        if self.is_cuda:
            torch.cuda.set_rng_state(state, self.device)
        else:
            torch.set_rng_state(state)

    def host(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Memory that the device is fed from: pinned where that makes copies asynchronous."""
        return torch.zeros(shape, dtype=dtype, pin_memory=self.is_cuda)


def _nothing() -> None:
    pass


class Step:
    """A piece of work on fixed tensors; captured and replayed where graphs are used, else simply called.

    Capturing needs a few calls that count for nothing: `kept` are the tensors that they must not change. What comes
    `before` and `after` the work (copies from and to the host) is captured with it and never compiled.
    """

    def __init__(
        self,
        work: Callable[[], None],
        kept: Callable[[], Iterable[Tensor]],
        compute: Compute,
        before: Callable[[], None] = _nothing,
        after: Callable[[], None] = _nothing,
    ) -> None:
        self._parts = (before, torch.compile(work) if compute.is_compiled else work, after)
        self._kept = kept
        self._compute = compute
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if not self._compute.uses_graphs:
            self._work()
            return
        if self._graph is None:
            self._graph = self._captured()
        self._graph.replay()

    def _work(self) -> None:
        for part in self._parts:
            part()

    def _captured(self) -> torch.cuda.CUDAGraph:
        before = [(tensor, tensor.detach().clone()) for tensor in self._kept()]
        random_state = self._compute.random_state()
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._work()
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)
        self._compute.restore_random_state(random_state)
        return graph


class Adam:
    """torch's fused Adam with its state made beforehand, so that it can be saved, restored and captured at any time.

    The function and not the optimizer: making that one imports torch's compiler, which takes as long as torch itself.
    """

    def __init__(self, parameters: Sequence[Tensor], learning_rate: float, compute: Compute, epsilon: float = 1e-8):
        self.parameters = list(parameters)
        # A captured graph reads the step size from the device; a plain number would be captured for good.
        self._rate = torch.tensor(learning_rate, device=compute.device) if compute.is_cuda else learning_rate
        self._epsilon = epsilon
        self._is_capturable = compute.is_cuda
        self.first = [torch.zeros_like(part) for part in self.parameters]
        self.second = [torch.zeros_like(part) for part in self.parameters]
        steps_on = compute.device if compute.is_cuda else torch.device("cpu")
        self._steps = [torch.zeros((), device=steps_on) for _ in self.parameters]

    def step(self, loss: Tensor, *, is_last: bool = True) -> None:
        """One step down a loss. Gradients of anything else that the loss depends on are not computed."""
        self._differentiate(loss, is_last)
        self._descend()

    def clipped_step(self, loss: Tensor, max_norm: float) -> Tensor:
        """The same with a gradient that is cut to a norm; the norm that it had."""
        self._differentiate(loss, True)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, max_norm, foreach=True)
        self._descend()
        return norm

    def _differentiate(self, loss: Tensor, is_last: bool) -> None:
        slopes = torch.autograd.grad(loss, self.parameters, retain_graph=not is_last)
        for part, slope in zip(self.parameters, slopes, strict=True):
            # The fused step goes through memory as it lies: a gradient that lies differently would be mixed up.
            part.grad = slope if slope.stride() == part.stride() else torch.empty_like(part).copy_(slope)

    @torch.no_grad()
    def _descend(self) -> None:
        slopes: Any = [part.grad for part in self.parameters]
        adam(
            self.parameters, slopes, self.first, self.second, [], self._steps, fused=True,
            capturable=self._is_capturable, lr=self._rate, eps=self._epsilon, beta1=0.9, beta2=0.999, weight_decay=0.0,
            amsgrad=False, maximize=False,
        )  # fmt: skip

    def set_learning_rate(self, learning_rate: float) -> None:
        if isinstance(self._rate, Tensor):
            self._rate.fill_(learning_rate)
        else:
            self._rate = learning_rate

    def kept(self) -> list[Tensor]:
        """Everything that a step changes."""
        return [*self.parameters, *self.first, *self.second, *self._steps]

    @property
    def count(self) -> int:
        return int(self._steps[0])

    @count.setter
    def count(self, count: int) -> None:
        for step in self._steps:
            step.fill_(count)


def fields_of(packed: Tensor, layout: Mapping[str, tuple[int, int, str]]) -> dict[str, Tensor]:
    """Views of packed rows [rows, bytes]: by name where they begin, how many they are, and their type."""
    found = {}
    for name, (offset, count, kind) in layout.items():
        dtype: torch.dtype = getattr(torch, kind)
        found[name] = packed[:, offset : offset + count * dtype.itemsize].view(dtype)
    return found
