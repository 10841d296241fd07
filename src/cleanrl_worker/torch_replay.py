"""Learning from a replay buffer of pictures, in torch: how a sample reaches the device, and a learner with a target.

A sample lies in memory that the device is fed from; its copy is part of the step that learns from it. Nobody waits for
a step: the next sample is drawn once the last one has been read. Needs torch and numpy, and nothing of ours that needs
more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cleanrl_worker.torch_backend import Compute, Step, Trouble, Watch
from cleanrl_worker.torch_pictures import Learner, Weights, Window, as_arrays, as_tensors, channels_last

Array = Any
COLUMNS = ("actions", "rewards", "terminals")


class Buffer(Protocol):
    """Fills batches: pictures [rows, pictures, …], the first `stack` and what follows, and columns by name."""

    envs: int
    stack: int
    shape: tuple[int, ...]

    def batch(self, rows: int, buffer: Array | None = None) -> Any: ...
    def sample(self, batch: Any) -> None: ...


class Feed:
    """Samples on their way to the device."""

    def __init__(
        self, replay: Buffer, rows: int, pictures: int, compute: Compute, columns: Sequence[str] = COLUMNS
    ) -> None:
        self._columns = columns
        self._stack = replay.stack
        self._host = compute.host(rows, pictures, *replay.shape, dtype=torch.uint8)
        self.batch = replay.batch(rows, self._host.numpy())
        self._numbers_host = compute.host(len(columns), rows, dtype=torch.float32)
        is_cuda = compute.is_cuda
        self._frames = self._host.to(compute.device) if is_cuda else self._host
        self._numbers = self._numbers_host.to(compute.device) if is_cuda else self._numbers_host
        self._is_cuda = is_cuda
        self._done: Any = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Until the newest step is done, or what it reads would be overwritten."""
        if self._done is not None:
            self._done.synchronize()

    def hand_over(self) -> None:
        """The batch has been filled."""
        numbers = self._numbers_host.numpy()
        for row, name in enumerate(self._columns):
            numbers[row] = getattr(self.batch, name)

    def copy(self) -> None:
        """The step's first part."""
        if self._is_cuda:
            self._frames.copy_(self._host, non_blocking=True)
            self._numbers.copy_(self._numbers_host, non_blocking=True)

    def mark(self) -> None:
        """The step has been launched."""
        if self._done is not None:
            self._done.record()

    def rows(self) -> SimpleNamespace:
        """What a loss looks at: pictures with their channels last, and the columns."""
        columns = dict(zip(self._columns, self._numbers, strict=True))
        return SimpleNamespace(
            observations=channels_last(self._frames[:, : self._stack]),
            next_observations=channels_last(self._frames[:, -self._stack :]),
            **{**columns, "actions": columns["actions"].long()},
        )


class Settings(Protocol):
    """What a learner needs of an algorithm's Config."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def batch_size(self) -> int: ...


Loss = Callable[[Weights, Weights, SimpleNamespace], tuple[Tensor, Tensor]]
"""Of the learned weights, the target's and drawn rows: the loss, and the figures to report.

Where the buffer draws by priority, the loss also fills the rows' `surprises`.
"""


class TargetLearner(Learner):
    """Learns towards a target network, which follows from time to time."""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        target: Mapping[str, Array],
        loss: Loss,
        feed: Feed,
        settings: Settings,
        epsilon: float,
        figures: Sequence[str],
        compute: Compute,
        kept: Sequence[Tensor] = (),
    ) -> None:
        """`kept` are tensors that the loss itself changes."""
        super().__init__(arrays, settings.learning_rate, epsilon, compute)
        self.target = as_tensors(target, compute.device, is_learned=False)
        self._loss, self._feed, self._names = loss, feed, figures
        self._more_kept = kept
        self._figures = torch.zeros(len(figures), device=compute.device)
        self._watch = Watch(figures, compute)
        self._step = Step(self._improve, self._kept, compute, feed.copy, self._after)

    def update(self, replay: Buffer) -> None:
        """One step on a fresh sample. Nobody waits for it, so that what is infinite shows in `trouble`."""
        self.settle(replay)
        replay.sample(self._feed.batch)
        self._feed.hand_over()
        self._step()
        self._feed.mark()
        self._watch.count()

    def settle(self, replay: Any) -> None:
        """Waits for the newest step, and tells the buffer what it found out."""
        self._feed.wait()

    def _improve(self) -> None:
        loss, figures = self._loss(self.weights, self.target, self._rows())
        self.adam.step(loss)
        self._figures.copy_(figures)

    def _rows(self) -> SimpleNamespace:
        return self._feed.rows()

    def _after(self) -> None:
        """What is never compiled."""
        self._watch.look(self._figures)

    def _kept(self) -> list[Tensor]:
        return [*self.adam.kept(), self._figures, *self._watch.kept(), *self._more_kept]

    def follow(self, share: float) -> None:
        """Moves the target by this share of the way towards the learned network."""
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.values()), list(self.weights.values()), share)

    def losses(self) -> dict[str, float]:
        """Of the newest step, by CleanRL's names. Waits for the device."""
        return dict(zip(self._names, self._figures.tolist(), strict=True))

    def trouble(self) -> Trouble | None:
        return self._watch.trouble()

    def moments(self) -> dict[str, Array]:
        return {
            **super().moments(),
            **{f"target.{name}": part for name, part in as_arrays(self.target).items()},
            "torch.rng": self.compute.random_state().numpy(),
        }

    def restore(self, arrays: Mapping[str, Array], count: int) -> None:
        super().restore(arrays, count)
        if "torch.rng" in arrays:
            self.compute.restore_random_state(torch.as_tensor(arrays["torch.rng"]))


class PrioritisedLearner(TargetLearner):
    """Learns from a buffer that draws by priority, and tells it how surprising each drawn row was."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        rows = self._feed.batch.rows
        self._surprises = torch.zeros(rows, device=self.compute.device)
        self._surprises_host = self.compute.host(rows, dtype=torch.float32)
        self._is_settled = True

    def settle(self, replay: Any) -> None:
        super().settle(replay)
        surprises = self._surprises_host.numpy()
        # What is not finite would spoil every later draw; the run is about to end over it.
        if not self._is_settled and np.isfinite(surprises).all():
            replay.settle(self._feed.batch.spots, surprises)
        self._is_settled = True

    def update(self, replay: Buffer) -> None:
        super().update(replay)
        self._is_settled = False

    def _rows(self) -> SimpleNamespace:
        rows = super()._rows()
        rows.surprises = self._surprises
        return rows

    def _after(self) -> None:
        super()._after()
        self._surprises_host.copy_(self._surprises, non_blocking=True)


def window(replay: Buffer, outputs: int, work: Callable[[Tensor], Tensor], compute: Compute) -> Window:
    """What acts on the newest pictures of every game that a buffer is filled from."""
    return Window((replay.envs, replay.stack, *replay.shape), outputs, work, compute)
