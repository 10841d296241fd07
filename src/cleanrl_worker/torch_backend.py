"""torch as the algorithms here use it: device, threads, Adam, random state, and whole steps as CUDA graphs.

On a GPU a small network's update is mostly the launching of its kernels. A `Step` is therefore a whole update that
reads and writes fixed tensors: captured once as a CUDA graph, then replayed with one launch. Nothing in it may wait for
the device (no `.item()`), and nothing may be allocated by the caller between replays.

Needs torch (2.11 and up) and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.radam import radam

CAPTURE_WARM_UP_CALLS = 3
"""Calls before a capture: libraries get their workspaces, kernels are chosen."""


@dataclass(frozen=True)
class TorchContext:
    """Where and how tensors are computed with. It follows from the settings alone."""

    device: torch.device
    uses_graphs: bool
    is_compiled: bool

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @classmethod
    def set_up(
        cls,
        *,
        cuda: bool,
        deterministic: bool = True,
        threads: int = 1,
        cuda_graphs: bool = True,
        compiles: bool = False,
        seed: int = 1,
    ) -> TorchContext:
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

    def host_buffer(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Memory that the device is fed from: pinned where that makes copies asynchronous."""
        return torch.zeros(shape, dtype=dtype, pin_memory=self.is_cuda)

    def device_buffer(self, host: Tensor) -> Tensor:
        """The device's side of such memory; on a CPU the same."""
        return host.to(self.device) if self.is_cuda else host

    def copy_to_device(self, target: Tensor, array: Any) -> None:
        """Copies an array to the device, and nobody waits: torch keeps the pinned copy until it has been read."""
        source = torch.as_tensor(array).to(target.dtype)
        target.copy_(source.pin_memory() if self.is_cuda else source, non_blocking=True)


class NonFiniteReport(NamedTuple):
    """What was first seen not to be finite."""

    steps_ago: int
    """0: in the newest step."""
    names: list[str]


def _do_nothing() -> None:
    pass


class GraphedStep:
    """A piece of work on fixed tensors; captured and replayed where graphs are used, else simply called.

    Capturing needs a few calls that count for nothing: `kept` are the tensors that they must not change. What comes
    `before` and `after` the work (copies from and to the host) is captured with it and never compiled.
    """

    def __init__(
        self,
        work: Callable[[], None],
        state_tensors: Callable[[], Iterable[Tensor]],
        compute: TorchContext,
        before: Callable[[], None] = _do_nothing,
        after: Callable[[], None] = _do_nothing,
    ) -> None:
        self._parts = (before, torch.compile(work) if compute.is_compiled else work, after)
        self._state_tensors = state_tensors
        self._compute = compute
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if not self._compute.uses_graphs:
            self._run_parts()
            return
        if self._graph is None:
            self._graph = self._capture()
        self._graph.replay()

    def _run_parts(self) -> None:
        for part in self._parts:
            part()

    def _capture(self) -> torch.cuda.CUDAGraph:
        before = [(tensor, tensor.detach().clone()) for tensor in self._state_tensors()]
        random_state = self._compute.random_state()
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(CAPTURE_WARM_UP_CALLS):
                self._run_parts()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run_parts()
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)
        self._compute.restore_random_state(random_state)
        return graph


class InferenceStep:
    """What a network sees and says at each step, in fixed memory: on a GPU one launch, and one wait for the answer."""

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        outputs: int,
        work: Callable[[Tensor], Tensor],
        compute: TorchContext,
        state_tensors: Callable[[], Iterable[Tensor]] = lambda: (),
        extra_inputs: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> None:
        """`state_tensors` change during the work; `extra_inputs` are read by it, as (device, host) pairs."""
        host, said_host = (
            compute.host_buffer(*shape, dtype=dtype),
            compute.host_buffer(shape[0], outputs, dtype=torch.float32),
        )
        self._inputs, self._outputs = compute.device_buffer(host), compute.device_buffer(said_host)
        self._input_copies = [(self._inputs, host), *extra_inputs] if compute.is_cuda else []
        self._output_copies = [(said_host, self._outputs)] if compute.is_cuda else []
        self._work = work
        # Made once: at each step they would take longer than the network does.
        self._host_inputs, self._host_outputs = host.numpy(), said_host.numpy()
        self._synchronize: Callable[[], object] = (
            torch.cuda.current_stream().synchronize if compute.is_cuda else _do_nothing
        )
        self._is_single_row = shape[0] == 1 and not compute.is_cuda
        self._step = GraphedStep(self._run_network, state_tensors, compute, self._copy_inputs, self._copy_outputs)

    def _copy_inputs(self) -> None:
        for device, host in self._input_copies:
            device.copy_(host, non_blocking=True)

    def _run_network(self) -> None:
        with torch.no_grad():
            self._outputs.copy_(self._work(self._inputs))

    def _copy_outputs(self) -> None:
        for host, device in self._output_copies:
            host.copy_(device, non_blocking=True)

    def __call__(self, observations: Any) -> Any:
        """Outputs [rows, outputs] for as many observations as there is room for; the next call overwrites them."""
        self._host_inputs[...] = observations
        threads = torch.get_num_threads()
        # One observation gains nothing from more threads, and beside another program they wait long for each other.
        torch.set_num_threads(1 if self._is_single_row else threads)
        self._step()
        torch.set_num_threads(threads)
        self._synchronize()
        return self._host_outputs


class NonFiniteMonitor:
    """Notices on the device when a figure is not finite, and after how many steps, so that no step is waited for."""

    def __init__(self, names: Sequence[str], compute: TorchContext) -> None:
        self._names = names
        self._nan_marks = torch.zeros(len(names), device=compute.device)
        """0, until a figure is not finite; from then on not a number."""
        self._finite_steps = torch.zeros(len(names), dtype=torch.int64, device=compute.device)
        """Steps before that."""
        self._step_count = 0

    def check(self, metrics: Tensor) -> None:
        """Part of the step, and never compiled: a compiler may hold nothing times a number for nothing."""
        self._nan_marks.add_(metrics, alpha=0)
        self._finite_steps.add_(self._nan_marks == 0)

    def count_step(self) -> None:
        """Another step has been launched."""
        self._step_count += 1

    def state_tensors(self) -> list[Tensor]:
        return [self._nan_marks, self._finite_steps]

    def first_non_finite(self) -> NonFiniteReport | None:
        """Of the first step that was bad. Waits for the device."""
        first = min(fine := self._finite_steps.tolist())
        if first == self._step_count:
            return None
        return NonFiniteReport(
            self._step_count - first - 1,
            [name for name, count in zip(self._names, fine, strict=True) if count == first],
        )


class TorchAdam:
    """torch's fused Adam with its state made beforehand, so that it can be saved, restored and captured at any time.

    The function and not the optimizer: making that one imports torch's compiler, which takes as long as torch itself.
    """

    def __init__(
        self, parameters: Sequence[Tensor], learning_rate: float, compute: TorchContext, epsilon: float = 1e-8
    ):
        self.parameters = list(parameters)
        self._learning_rate = learning_rate
        # A captured graph reads the step size from the device; a plain number would be captured for good.
        self._device_learning_rate = (
            torch.tensor(learning_rate, device=compute.device) if compute.is_cuda else learning_rate
        )
        self._epsilon = epsilon
        self._is_capturable = compute.is_cuda
        self.first_moment = [torch.zeros_like(part) for part in self.parameters]
        self.second_moment = [torch.zeros_like(part) for part in self.parameters]
        steps_on = compute.device if compute.is_cuda else torch.device("cpu")
        self._steps = [torch.zeros((), device=steps_on) for _ in self.parameters]

    def step(self, loss: Tensor, *, is_last: bool = True) -> None:
        """One step down a loss. Gradients of anything else that the loss depends on are not computed."""
        self._compute_gradients(loss, is_last)
        self._apply_gradients()

    def clipped_step(self, loss: Tensor, max_norm: float) -> Tensor:
        """The same with a gradient that is cut to a norm; the norm that it had."""
        self._compute_gradients(loss, True)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, max_norm, foreach=True)
        self._apply_gradients()
        return norm

    def _compute_gradients(self, loss: Tensor, is_last: bool) -> None:
        slopes = torch.autograd.grad(loss, self.parameters, retain_graph=not is_last)
        for part, slope in zip(self.parameters, slopes, strict=True):
            # The fused step goes through memory as it lies: a gradient that lies differently would be mixed up.
            part.grad = slope if slope.stride() == part.stride() else torch.empty_like(part).copy_(slope)

    @torch.no_grad()
    def _apply_gradients(self) -> None:
        adam(
            self.parameters, self._gradients(), self.first_moment, self.second_moment, [], self._steps,
            fused=True, amsgrad=False, maximize=False, **self._settings(),
        )  # fmt: skip

    def _gradients(self) -> Any:
        return [part.grad for part in self.parameters]

    def _settings(self) -> dict[str, Any]:
        return {
            "capturable": self._is_capturable, "lr": self._device_learning_rate, "eps": self._epsilon,
            "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0,
        }  # fmt: skip

    def set_learning_rate(self, learning_rate: float) -> None:
        if learning_rate == self._learning_rate:
            return
        self._learning_rate = learning_rate
        if isinstance(self._device_learning_rate, Tensor):
            self._device_learning_rate.fill_(learning_rate)
        else:
            self._device_learning_rate = learning_rate

    def state_tensors(self) -> list[Tensor]:
        """Everything that a step changes."""
        return [*self.parameters, *self.first_moment, *self.second_moment, *self._steps]

    @property
    def count(self) -> int:
        return int(self._steps[0])

    @count.setter
    def count(self, count: int) -> None:
        for step in self._steps:
            step.fill_(count)


class TorchRAdam(TorchAdam):
    """Adam that trusts its second moment only as far as enough gradients were seen (arXiv:1908.03265)."""

    @torch.no_grad()
    def _apply_gradients(self) -> None:
        radam(
            self.parameters, self._gradients(), self.first_moment, self.second_moment, self._steps, **self._settings()
        )


def unpack_fields(packed: Tensor, layout: Mapping[str, tuple[int, int, str]]) -> dict[str, Tensor]:
    """Views of packed rows [rows, bytes]: by name where they begin, how many they are, and their type."""
    found = {}
    for name, (offset, count, kind) in layout.items():
        dtype: torch.dtype = getattr(torch, kind)
        found[name] = packed[:, offset : offset + count * dtype.itemsize].view(dtype)
    return found
