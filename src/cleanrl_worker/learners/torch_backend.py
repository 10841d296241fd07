"""How the algorithms use torch: device, threads, Adam, random state, and whole updates as CUDA graphs.

On a GPU most of a small network's update is spent launching kernels. A `GraphedStep` is therefore a whole update that
reads and writes fixed tensors: captured once as a CUDA graph, then replayed with one launch. Nothing in it may wait for
the device (no `.item()`), and the caller must not replace the tensors between replays.

Needs torch (2.11 and up) and modules that need nothing else.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.radam import radam

from cleanrl_worker.learners.devices import thread_count
from cleanrl_worker.learners.protocols import TorchSettings

CAPTURE_WARM_UP_CALLS = 3
"""Calls before a capture, in which libraries allocate their workspaces and choose kernels."""


@dataclass(frozen=True)
class TorchContext:
    """The device and how it is used; determined by the settings alone."""

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
        """Configure torch for this process. The default is one thread: more slow each other down next to other runs."""
        torch.set_num_threads(threads)
        torch.backends.cudnn.deterministic = deterministic
        torch.manual_seed(seed)
        is_cuda = cuda and torch.cuda.is_available()
        return cls(torch.device("cuda" if is_cuda else "cpu"), is_cuda and cuda_graphs, compiles)

    @classmethod
    def from_settings(cls, settings: TorchSettings, threads: int | None = None) -> TorchContext:
        """Configure torch by an algorithm's settings, with the run's number of threads if none is given."""
        return cls.set_up(
            cuda=settings.cuda,
            deterministic=settings.torch_deterministic,
            threads=threads or thread_count(),
            cuda_graphs=settings.cuda_graphs,
            compiles=settings.compile,
            seed=settings.seed,
        )

    def random_state(self) -> Tensor:
        """Return the state of the device's random generator as bytes."""
        return torch.cuda.get_rng_state(self.device) if self.is_cuda else torch.get_rng_state()

    def restore_random_state(self, state: Tensor) -> None:
        """Restore the random state; the state of another kind of device is ignored."""
        if state.numel() != self.random_state().numel():
            return
        if self.is_cuda:
            torch.cuda.set_rng_state(state, self.device)
        else:
            torch.set_rng_state(state)

    def host_buffer(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Allocate host memory for transfers: pinned for CUDA, so that copies are asynchronous."""
        return torch.zeros(shape, dtype=dtype, pin_memory=self.is_cuda)

    def device_buffer(self, host: Tensor) -> Tensor:
        """Return the device's counterpart of a host buffer; on a CPU the buffer itself."""
        return host.to(self.device) if self.is_cuda else host

    def copy_to_device(self, target: Tensor, array: Any) -> None:
        """Copy an array to the device without waiting: torch keeps the pinned copy until it has been read."""
        source = torch.as_tensor(array).to(target.dtype)
        target.copy_(source.pin_memory() if self.is_cuda else source, non_blocking=True)


class NonFiniteReport(NamedTuple):
    """The first metrics that were not finite."""

    steps_ago: int
    """0: in the latest step."""
    names: list[str]


def _do_nothing() -> None:
    """Do nothing."""


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Collect garbage before, not during a capture: a graph of an earlier training that is deleted would break it."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class GraphedStep:
    """A function on fixed tensors; captured and replayed as a CUDA graph if graphs are used, otherwise just called.

    Capturing needs a few warm-up calls, whose effect on `state_tensors` is undone. `before` and `after` (copies from
    and to the host) are captured with `work` but never compiled.
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
        saved_values = [(tensor, tensor.detach().clone()) for tensor in self._state_tensors()]
        random_state = self._compute.random_state()
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(CAPTURE_WARM_UP_CALLS):
                self._run_parts()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with _without_garbage_collection(), torch.cuda.graph(graph):
            self._run_parts()
        with torch.no_grad():
            for tensor, value in saved_values:
                tensor.copy_(value)
        self._compute.restore_random_state(random_state)
        return graph


class InferenceStep:
    """Runs a network on fixed input and output memory: on a GPU with one launch and one wait."""

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
        """`state_tensors` are changed by `work` besides its outputs; `extra_inputs` are more (device, host) inputs."""
        host, output_host = (
            compute.host_buffer(*shape, dtype=dtype),
            compute.host_buffer(shape[0], outputs, dtype=torch.float32),
        )
        self._inputs, self._outputs = compute.device_buffer(host), compute.device_buffer(output_host)
        self._input_copies = [(self._inputs, host), *extra_inputs] if compute.is_cuda else []
        self._output_copies = [(output_host, self._outputs)] if compute.is_cuda else []
        self._work = work
        # Created once: doing so at each step would take longer than the network does.
        self._host_inputs, self._host_outputs = host.numpy(), output_host.numpy()
        self._finished: Any = torch.cuda.Event() if compute.is_cuda else None  # type: ignore[no-untyped-call]
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

    def __call__(self, observations: Any, meanwhile: Callable[[], None] = _do_nothing) -> Any:
        """Return the outputs [rows, outputs] for `shape[0]` observations; the next call overwrites them.

        `meanwhile` is called while a GPU computes them. What it launches there is not waited for.
        """
        self._host_inputs[...] = observations
        threads = torch.get_num_threads()
        # One observation gains nothing from more threads, and next to another program they wait long for each other.
        torch.set_num_threads(1 if self._is_single_row else threads)
        self._step()
        torch.set_num_threads(threads)
        if self._finished is not None:
            self._finished.record()
        meanwhile()
        if self._finished is not None:
            self._finished.synchronize()
        return self._host_outputs


class StepMetrics:
    """Metrics of a step on the device, and which of them were not finite since when, so that no step is waited for."""

    def __init__(self, names: Sequence[str], compute: TorchContext) -> None:
        self.values = torch.zeros(len(names), device=compute.device)
        """The metrics of the latest step; a step writes them."""
        self._names = names
        self._nan_marks = torch.zeros(len(names), device=compute.device)
        """0 until a metric is not finite; NaN from then on."""
        self._finite_steps = torch.zeros(len(names), dtype=torch.int64, device=compute.device)
        """Steps before that, per metric."""
        self._step_count = 0

    def check(self) -> None:
        """Check the metrics as part of the step; never compiled, because a compiler may replace 0 * x by 0."""
        self._nan_marks.add_(self.values, alpha=0)
        self._finite_steps.add_(self._nan_marks == 0)

    def count_step(self) -> None:
        """Count a launched step."""
        self._step_count += 1

    def state_tensors(self) -> list[Tensor]:
        return [self.values, self._nan_marks, self._finite_steps]

    def to_dict(self) -> dict[str, float]:
        """Return the metrics of the latest step. Waits for the device."""
        return dict(zip(self._names, self.values.tolist(), strict=True))

    def first_non_finite(self) -> NonFiniteReport | None:
        """Report the first step with a non-finite metric, if any. Waits for the device."""
        first = min(finite_steps := self._finite_steps.tolist())
        if first == self._step_count:
            return None
        return NonFiniteReport(
            self._step_count - first - 1,
            [name for name, count in zip(self._names, finite_steps, strict=True) if count == first],
        )


class TorchAdam:
    """torch's fused Adam with preallocated state, so that it can be saved, restored and captured at any time.

    It uses the functional API: torch.optim.Adam imports torch's compiler, which takes as long as importing torch.
    """

    def __init__(
        self, parameters: Sequence[Tensor], learning_rate: float, compute: TorchContext, epsilon: float = 1e-8
    ):
        self.parameters = list(parameters)
        self._learning_rate = learning_rate
        # A captured graph reads the learning rate from the device; a Python number would be captured as a constant.
        self._device_learning_rate = (
            torch.tensor(learning_rate, device=compute.device) if compute.is_cuda else learning_rate
        )
        self._epsilon = epsilon
        self._is_capturable = compute.is_cuda
        self.first_moment = [torch.zeros_like(part) for part in self.parameters]
        self.second_moment = [torch.zeros_like(part) for part in self.parameters]
        step_device = compute.device if compute.is_cuda else torch.device("cpu")
        self._steps = [torch.zeros((), device=step_device) for _ in self.parameters]

    def step(self, loss: Tensor, *, is_last: bool = True) -> None:
        """Minimize a loss by one step. Only the gradients of these parameters are computed."""
        self._compute_gradients(loss, is_last)
        self._apply_gradients()

    def clipped_step(self, loss: Tensor, max_norm: float) -> Tensor:
        """Do one step with the gradient clipped to a norm; return its norm before clipping."""
        self._compute_gradients(loss, True)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, max_norm, foreach=True)
        self._apply_gradients()
        return norm

    def _compute_gradients(self, loss: Tensor, is_last: bool) -> None:
        _set_gradients(self.parameters, torch.autograd.grad(loss, self.parameters, retain_graph=not is_last))

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
        """Return all tensors that a step changes."""
        return [*self.parameters, *self.first_moment, *self.second_moment, *self._steps]

    @property
    def count(self) -> int:
        return int(self._steps[0])

    @count.setter
    def count(self, count: int) -> None:
        for step in self._steps:
            step.fill_(count)


def _set_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    for part, gradient in zip(parameters, gradients, strict=True):
        # The fused step walks through memory linearly, so a gradient needs the memory layout of its parameter.
        part.grad = gradient if gradient.stride() == part.stride() else torch.empty_like(part).copy_(gradient)


def clipped_joint_step(optimizers: Sequence[TorchAdam], losses: Iterable[Tensor], max_norm: float) -> Tensor:
    """Do one step of several optimizers on the sum of the losses, with their gradients clipped to one norm.

    Return that norm before clipping. A loss is requested after the gradient of the previous one was computed, so that
    only one of them takes memory at a time.
    """
    parameters = [part for optimizer in optimizers for part in optimizer.parameters]
    sums: Sequence[Tensor] = ()
    for loss in losses:
        gradients = torch.autograd.grad(loss, parameters)
        sums = [one + other for one, other in zip(sums, gradients, strict=True)] if sums else gradients
    _set_gradients(parameters, sums)
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True)
    for optimizer in optimizers:
        optimizer._apply_gradients()
    return norm


class TorchRAdam(TorchAdam):
    """Rectified Adam: uses the second moment only once enough gradients were seen (arXiv:1908.03265)."""

    @torch.no_grad()
    def _apply_gradients(self) -> None:
        radam(
            self.parameters, self._gradients(), self.first_moment, self.second_moment, self._steps, **self._settings()
        )


def unpack_fields(packed: Tensor, layout: Mapping[str, tuple[int, int, str]]) -> dict[str, Tensor]:
    """Return views of packed rows [rows, bytes] by field name; `layout` gives offset, count and type of each field."""
    fields = {}
    for name, (offset, count, kind) in layout.items():
        dtype: torch.dtype = getattr(torch, kind)
        fields[name] = packed[:, offset : offset + count * dtype.itemsize].view(dtype)
    return fields
