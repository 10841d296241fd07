"""A forked process that steps a share of a run's environments, and the memory that a step exchanges with it.

A step needs no pipe: actions, observations, rewards and episode ends are in one anonymous mapping, and two semaphores
pass the turn. Everything else (start, rollout ends, checkpoints) is a call through a pipe.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cleanrl_worker.environments.vector import EpisodeEnd, ObservationLayout, VectorEnvs
from mosaic.contracts.errors import MosaicError

Array = npt.NDArray[Any]
SPIN_S = 300e-6
"""How long to poll a semaphore before sleeping in it. Waking takes about 50 µs; this is longer than what shares
differ by, and than an algorithm takes to select its next actions."""
CHECK_INTERVAL_S = 0.5
"""Seconds between checks whether a process that does not answer still exists."""
CLOSE_TIMEOUT_S = 10.0
_PR_SET_PDEATHSIG = 1
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_ENDED, _TERMINAL, _FULL_EPISODE = 1, 2, 4
_CACHE_LINE_BYTES = 64


class StepMemory:
    """What a step exchanges, in one anonymous mapping.

    Actions are stored in the type in which the algorithm gives them, so that environments get equal ones.
    """

    def __init__(
        self, num_envs: int, observation: ObservationLayout, action_shape: tuple[int, ...], workers: int
    ) -> None:
        self._action_shape = (num_envs, *action_shape)
        observations = observation.dtype, (num_envs, *observation.shape)
        layout: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
            "observations": observations,
            "final_observations": observations,
            "final_types": (np.uint8, (num_envs,)),
            "rewards": (np.float64, (num_envs,)),
            "returns": (np.float64, (num_envs,)),
            "lengths": (np.int64, (num_envs,)),
            "endings": (np.uint8, (num_envs,)),
            "action_bytes": (np.uint8, (8 * math.prod(self._action_shape),)),
            "action_format": (np.uint8, (2,)),
            "is_call": (np.bool_, (workers,)),
            "has_failed": (np.bool_, (workers,)),
        }
        sizes = {name: np.dtype(kind).itemsize * math.prod(shape) for name, (kind, shape) in layout.items()}
        offsets, end = {}, 0
        for name, size in sizes.items():
            offsets[name] = end
            end += -(-size // _CACHE_LINE_BYTES) * _CACHE_LINE_BYTES
        mapping = mmap.mmap(-1, end)
        parts: dict[str, Array] = {
            name: np.frombuffer(mapping, kind, math.prod(shape), offsets[name]).reshape(shape)
            for name, (kind, shape) in layout.items()
        }
        self.observations, self.rewards = parts["observations"], parts["rewards"]
        self.is_call, self.has_failed = parts["is_call"], parts["has_failed"]
        self._final_observations, self._final_types = parts["final_observations"], parts["final_types"]
        self._returns, self._lengths, self._endings = parts["returns"], parts["lengths"], parts["endings"]
        self._action_bytes, self._action_format = parts["action_bytes"], parts["action_format"]
        self._action_type = 0
        self._actions: Array = self._action_bytes
        self._written_format = 0, False
        self._has_endings = False

    def _actions_as(self, type_code: int) -> Array:
        if type_code != self._action_type:
            dtype = np.dtype(chr(type_code))
            used = self._action_bytes[: dtype.itemsize * math.prod(self._action_shape)]
            self._action_type, self._actions = type_code, used.view(dtype).reshape(self._action_shape)
        return self._actions

    def write_actions(self, actions: Sequence[Any] | Array) -> None:
        array = np.asarray(actions)
        if array.shape != self._action_shape:
            raise ValueError(f"Expected actions of shape {self._action_shape}, not {array.shape}.")
        type_code = ord(array.dtype.char)
        self._actions_as(type_code)[...] = array
        action_format = type_code, isinstance(actions[0], int)
        if action_format != self._written_format:
            self._action_format[:] = self._written_format = action_format

    def read_actions(self, share: slice) -> Sequence[Any] | Array:
        """Return a copy: an environment may keep the action that it gets."""
        type_code, is_python_int = self._action_format.tolist()
        actions = self._actions_as(type_code)[share]
        return actions.tolist() if is_python_int else actions.copy()

    def write_endings(self, share: slice, episode_ends: Sequence[EpisodeEnd]) -> None:
        if self._has_endings:
            self._endings[share] = 0
        self._has_endings = bool(episode_ends)
        for end in episode_ends:
            index = share.start + end.env
            self._endings[index] = _ENDED | _TERMINAL * end.is_terminal | _FULL_EPISODE * end.is_full_episode
            self._returns[index], self._lengths[index] = end.episodic_return, end.length
            self._final_observations[index] = end.observation
            self._final_types[index] = ord(end.observation.dtype.char)

    def read_endings(self, first_index: int) -> list[EpisodeEnd]:
        """Return the episodes that ended in the latest step of the environments from this index on."""
        if not self._endings[first_index:].any():
            return []
        return [
            EpisodeEnd(
                index,
                self._final_observations[index].astype(chr(self._final_types[index])),
                bool(self._endings[index] & _TERMINAL),
                float(self._returns[index]),
                int(self._lengths[index]),
                bool(self._endings[index] & _FULL_EPISODE),
            )
            for index in (first_index + np.flatnonzero(self._endings[first_index:])).tolist()
        ]


@dataclass
class Outbox:
    """Collects what only the run's own process may write, until the next reply."""

    warnings: list[str] = field(default_factory=list)
    episodes: list[tuple[Any, ...]] = field(default_factory=list)
    """Arguments of `EpisodeStore.add`."""

    def add(self, *episode: Any) -> None:
        self.episodes.append(episode)

    def flush(self) -> None:
        """Do nothing: the run's own recorder is flushed."""


class Reply(NamedTuple):
    """The answer to a call."""

    result: Any
    error: Exception | None
    outbox: Outbox


class EnvProcess:
    """A process that steps the environments `share` of the run, as its parent sees it."""

    def __init__(
        self, number: int, share: slice, memory: StepMemory, make_envs: Callable[[Outbox], VectorEnvs]
    ) -> None:
        self.share = share
        self._number = number
        self._memory = memory
        context = multiprocessing.get_context("fork")
        self._turn, self._done = context.Semaphore(0), context.Semaphore(0)
        self.start_step: Callable[[], None] = self._turn.release
        self._connection, child_end = context.Pipe()
        self._exit_status: int | None = None
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        parent_pid = os.getpid()
        with warnings.catch_warnings():
            # Python warns of locks that other threads hold. The child uses none of them: it has its own environments.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                self._connection.close()
                self._connection = child_end
                _prepare_child(parent_pid)
                self._serve(make_envs)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                # Not sys.exit: open files, exit handlers and threads belong to the parent.
                os._exit(status)
        child_end.close()

    # --- in the parent

    def finish_step(self) -> Exception | None:
        """Wait for the end of the step; return the error of an environment."""
        if not _spin(self._done):
            while not self._done.acquire(True, CHECK_INTERVAL_S):
                self._check_alive()
        return self.receive_reply().error if self._memory.has_failed[self._number] else None

    def start_call(self, method: str, *args: Any) -> None:
        """Call a method of the process's environments; `receive_reply` returns its result."""
        self._memory.is_call[self._number] = True
        # Before sending: what does not fit into the pipe is read meanwhile.
        self._turn.release()
        try:
            self._connection.send((method, args))
        except OSError:
            self._check_alive()
            raise

    def receive_reply(self) -> Reply:
        try:
            reply: Reply = self._connection.recv()
        except (EOFError, OSError):
            # The pipe is closed by the end of the process, shortly before that can be seen.
            self._wait_for_exit(CLOSE_TIMEOUT_S)
            self._check_alive()
            raise
        return reply

    def _check_alive(self) -> None:
        self._wait_for_exit(0)
        if self._exit_status is None:
            return
        status = self._exit_status
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with code {status}"
        raise MosaicError(
            f"The process {self.pid} of the environments {self.share.start} to {self.share.stop - 1} {how}. If memory "
            "is short, use fewer num_envs or env_processes. Then resume the run: it continues at its last checkpoint."
        )

    def _wait_for_exit(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._exit_status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._exit_status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= deadline:
                return
            else:
                time.sleep(0.001)

    def close(self) -> None:
        """Close the environments and end the process."""
        self._wait_for_exit(0)
        if self._exit_status is None:
            with contextlib.suppress(OSError, MosaicError):  # It may have just ended.
                self.start_call("close")
            self._wait_for_exit(CLOSE_TIMEOUT_S)
        if self._exit_status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._wait_for_exit(CLOSE_TIMEOUT_S)
        self._connection.close()

    # --- in the child

    def _serve(self, make_envs: Callable[[Outbox], VectorEnvs]) -> None:
        outbox, memory, number, share = Outbox(), self._memory, self._number, self.share
        observations, rewards = memory.observations[share], memory.rewards[share]
        try:
            environments = make_envs(outbox)
        except Exception as error:
            self._reply(None, error, outbox)
            return
        self._reply(None, None, outbox)
        while True:
            if not _spin(self._turn):
                self._turn.acquire()
            if not memory.is_call[number]:
                try:
                    memory.write_endings(share, environments.step(memory.read_actions(share), observations))
                    environments.read_rewards(rewards)
                except Exception as error:
                    memory.has_failed[number] = True
                    self._done.release()
                    self._reply(None, error, outbox)
                else:
                    self._done.release()
                continue
            memory.is_call[number] = False
            method, args = self._connection.recv()
            if method == "close":
                environments.close()
                return
            try:
                result = getattr(environments, method)(*args)
                if method in ("start", "restore"):
                    environments.observe(observations)
            except Exception as error:
                self._reply(None, error, outbox)
            else:
                self._reply(result, None, outbox)

    def _reply(self, result: Any, error: Exception | None, outbox: Outbox) -> None:
        self._connection.send(Reply(result, None if error is None else _portable_error(error), outbox))
        outbox.warnings.clear()
        outbox.episodes.clear()


def _spin(semaphore: Any) -> bool:
    """Poll a semaphore for a moment; return whether it was acquired."""
    deadline = time.perf_counter() + SPIN_S
    while not semaphore.acquire(False):
        # On a busy machine, the process that is waited for may need this core.
        os.sched_yield()
        if time.perf_counter() > deadline:
            return False
    return True


def _prepare_child(parent_pid: int) -> None:
    """End with the parent, leave signals to it, and use one thread."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)
    # A signal to the process group asks the parent to stop; its last checkpoint needs this process.
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    # The parent's objects must not be finalized here, and their memory stays shared.
    gc.freeze()


def _portable_error(error: Exception) -> Exception:
    """Return the error with its traceback as a note, or one with the same message if it cannot be pickled."""
    error.add_note("In the process of the environment:\n" + "".join(traceback.format_exception(error)))
    try:
        copied = pickle.loads(pickle.dumps(error))
        if type(copied) is type(error) and str(copied) == str(error):
            return error
    except Exception:  # whatever a foreign class raises
        pass
    portable = RuntimeError(f"{type(error).__name__}: {error}")
    portable.__notes__ = error.__notes__
    return portable
