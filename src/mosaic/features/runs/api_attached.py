"""Runs that the calling process produces: it logs, saves and shows; the daemon does the rest."""

from __future__ import annotations

import atexit
import importlib.util
import json
import operator
import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsFloat

import numpy as np

from mosaic import __version__
from mosaic.base.fastlane import FrameTap, LaneWriter, lanes_folder
from mosaic.base.processes import boot_id, own_identity
from mosaic.base.run_payloads import build_payload
from mosaic.contracts.errors import BadInput, MissingExtra, NotAllowed
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.states import Stage
from mosaic.features.runs.api_run import Run
from mosaic.keeper.attached_process import attached_command, describe_further_processes
from mosaic.trainer.client.connect import ReconnectingClient, connect, read_daemon_address
from mosaic.trainer.client.trainer_client import submit_once

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView
    from mosaic.worker.run import Run as RunHandle

TICK_S = 0.25
START_TIMEOUT_S = 30.0
END_TIMEOUT_S = 10.0
RUN_FIELDS: dict[str, type] = {"env_id": str, "seed": int, "total_timesteps": int}
"""Settings that lists show of every run."""
MAX_TAG_LENGTH = 200
_LIBRARIES = (*map(str, map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))), str(Path(__file__).parents[2]))


class AttachedRun(Run):
    """A run that this process produces. Use it as a context manager or call `finish`; else it ends with the program.

    An exception that ends the block or the program ends the run as failed. While the run is paused, its methods block.
    When the run is cancelled, `should_stop` becomes true; what a loop that ignores it logs ten seconds later is not
    recorded. Forked processes, and those that it is passed to, log into the same run.
    """

    def __init__(
        self,
        connection: ReconnectingClient,
        view: RunView,
        open_handle: Callable[..., RunHandle],
        handle: RunHandle | None = None,
    ) -> None:
        """A further process has no `handle` yet; it opens one to log."""
        super().__init__(connection, view)
        self._open_handle = open_handle
        self._known_tags: set[str] = set()
        self._enter_process(handle)
        _open_runs[self.id] = self
        _watch_program()
        if handle is not None:
            self._start_thread()

    def _enter_process(self, handle: RunHandle | None = None) -> None:
        self._handle = handle
        self._is_owner = handle is not None
        # The handle is used by the caller and by the thread that writes what is due; a pause blocks both.
        self._lock = threading.RLock()
        self._tap: tuple[Any, FrameTap] | None = None
        """The environment that was shown last, and its renderer."""
        self._lane: LaneWriter | None = None
        self._end_text = ""
        """Why nothing more can be logged; empty before that."""
        self._end = threading.Event()

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_in_this_process, (self._view, self._open_handle, boot_id())

    # --- logging

    def log(self, values: Mapping[str, SupportsFloat], step: int) -> None:
        """Log the values of some metrics at a step.

        Values are numbers, or arrays and tensors with one element; names are printable text. If one of them or the step
        is none of these, BadInput is raised and nothing is stored. Steps may be repeated, go back and be negative.
        """
        for tag in values:
            if tag not in self._known_tags:
                self._known_tags.add(_check_tag(tag))
        numbers = {tag: part if type(part) is float else _to_number(tag, part) for tag, part in values.items()}
        at = step if type(step) is int and abs(step) < 1 << 63 else _to_int64("step", step)
        with self._writing() as handle:
            handle.scalars(at, numbers)
            handle.update(max(at, handle.global_step))

    def log_episode(
        self, episodic_return: SupportsFloat, length: int, *, step: int | None = None, env: int = 0
    ) -> None:
        """Log a finished episode. `step` counts the environment steps of the whole run (default: the last one)."""
        value, steps = _to_number("episodic_return", episodic_return), _to_int64("length", length)
        index, given = _to_int64("env", env), None if step is None else _to_int64("step", step)
        with self._writing() as handle:
            at = handle.global_step if given is None else given
            handle.episode(env=index, step=at, episodic_return=value, length=steps)
            handle.update(max(at, handle.global_step))

    def save_checkpoint(
        self, state: Mapping[str, Any], step: int, metadata: Mapping[str, Any] | None = None
    ) -> Path | None:
        """Save arrays or a state dict of tensors, and return the path; None if the disk is full.

        `metadata`: JSON values to store with it. Read it again with safetensors: `weights.safetensors` in the folder.
        """
        at = _to_int64("step", step)
        if at < 0:
            raise BadInput(f"step: {at} is negative; the step of a checkpoint names its folder. Expected 0 or more.")
        tensors = {name: value.detach().cpu() if hasattr(value, "detach") else value for name, value in state.items()}
        weights = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
        with self._writing() as handle:
            handle.update(max(at, handle.global_step))
            try:
                return handle.save_checkpoint(at, weights=weights, arrays={}, facts=dict(metadata or {}))
            except ModuleNotFoundError as error:
                raise MissingExtra(f"Checkpoints need {error.name}: pip install 'mosaic-rl[train]'") from None

    def show_frame(self, frame: Any) -> None:
        """Show an image (bytes [height, width, 3]) or an environment to those who watch the run.

        An environment is rendered only while it is watched and its next frame is due, so that this may be called after
        every step.
        """
        with self._writing() as handle:
            if self._lane is None:
                self._lane = LaneWriter(lanes_folder(self.folder), 0 if self._is_owner else os.getpid())
            if not self._lane.is_due():
                return
            episode, step, mean = handle.episode_count + 1, int(handle.global_step), handle.mean_return or 0.0
            if hasattr(frame, "render"):
                if self._tap is None or self._tap[0] is not frame:
                    self._tap = (frame, FrameTap(frame, self._lane, warn=handle.warn))
                self._tap[1].publish_frame(episode, step, 0.0, mean)
            else:
                self._lane.publish(
                    np.asarray(frame), episode=episode, step=step, reward=0.0, episodic_return=mean, render_s=0.0
                )

    @property
    def should_stop(self) -> bool:
        """Whether the run was cancelled, or has ended."""
        try:
            with self._writing() as handle:
                handle.update(handle.global_step)
                return handle.stop_requested
        except NotAllowed:
            return True

    @contextmanager
    def _writing(self) -> Iterator[RunHandle]:
        """The handle, for this thread alone."""
        with self._lock:
            if self._end_text:
                if _program.is_ending and threading.current_thread() is not threading.main_thread():
                    raise SystemExit  # Python ends the threads that still run a moment later
                raise NotAllowed(self._end_text)
            if self._handle is None:
                self._check_active()
                self._handle = self._open_handle(process=os.getpid())
                self._start_thread()
            yield self._handle

    def _check_active(self) -> None:
        """In a further process, raise if the run has ended."""
        if not self._is_owner:
            record = json.loads(RunFolder(self._view.run_dir).record.read_bytes())
            if record["stage"] == Stage.FINISHED:
                raise NotAllowed(f"Run {self.id} has ended, with the process that started it: {record['reason']}")

    def _start_thread(self) -> None:
        _watch_child(os.getpid(), self._is_owner)
        self._thread = threading.Thread(target=self._write_regularly, name="mosaic-run", daemon=True)
        self._thread.start()

    def _write_regularly(self) -> None:
        has_failed = False
        while not self._end.wait(TICK_S):
            try:
                self._check_active()
                with self._writing() as handle:
                    handle.is_shared = handle.is_shared or len(handle.folder.journals()) > 1
                    handle.update(handle.global_step)
            except NotAllowed as ended:
                self._end_here("succeeded", None, str(ended))
            except Exception as error:
                if not has_failed and self._handle is not None:
                    self._handle.warn(f"Some values could not be written: {describe_error(error)}", "values_lost")
                has_failed = True

    # --- the end

    def finish(self, outcome: str = "succeeded", reason: str | None = None) -> None:
        """End the run as `succeeded`, `stopped` or `failed`. A second call does nothing.

        In a further process, only what that process logs ends: the run ends with the process that started it.
        """
        if self._end_here(outcome, reason) and self._is_owner:
            self._thread.join()
            _poll(lambda: self.refresh().is_finished, END_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.finish(*self._describe_end(error))

    def _describe_end(self, error: BaseException | None) -> tuple[str, str | None]:
        """Return outcome and reason of an end by this exception, or by none."""
        was_stopped = self._handle is not None and self._handle.stop_requested
        if self._handle is not None:
            self._handle.stop_requested = True  # a paused run ends, too
        if isinstance(error, KeyboardInterrupt):
            return "stopped", "It was interrupted."
        if error is not None and not isinstance(error, SystemExit):
            return "failed", describe_error(error)
        if error is not None and error.code not in (None, 0):
            return "failed", f"It exited with {error.code!r}."
        return "stopped" if was_stopped else "succeeded", None

    def _end_here(self, outcome: str, reason: str | None, end_text: str = "") -> bool:
        """End the run, or in a further process what that logs; return whether this call did."""
        with self._lock:
            if self._end_text:
                return False
            self._end_text = end_text or f"Run {self.id} has been finished; start another one: mosaic.start_run(...)"
            self._end.set()
            handle = self._handle
            reason = reason and reason.encode(errors="replace").decode()[:2_000]
            try:
                if handle is not None and self._is_owner:
                    if left := describe_further_processes(handle.folder):
                        handle.warn(left, "processes_left")
                    handle.finish(outcome, reason)
                elif handle is not None and outcome == "failed":
                    handle.warn(f"Process {os.getpid()} of this run failed: {reason}", "process_failed")
            except Exception as error:  # What was logged never keeps the run from its end.
                assert handle is not None
                handle.warn(f"The last values could not be written: {describe_error(error)}", "values_lost")
                handle.event("finished", outcome=outcome, reason=reason, global_step=int(handle.global_step))
            finally:
                for opened in (handle, self._lane):
                    if opened is not None:
                        opened.close()
                _open_runs.pop(self.id, None)
        return True


_open_runs: dict[str, AttachedRun] = {}
"""By id, the runs that this process may log into."""

_program = SimpleNamespace(is_ending=False, exit_error=None, cell_error=False)
"""How it ends: the SystemExit of `sys.exit`; in a notebook the error of the last cell, False before the first."""


@cache
def _watch_program() -> None:
    """End the runs that are open at the end of the program as it ends."""
    atexit.register(_end_runs)
    os.register_at_fork(after_in_child=_enter_forked_process)
    if (shell := _ipython()) is not None:
        shell.events.register("post_run_cell", _remember_cell)
    exit_program = sys.exit

    def remember_and_exit(*args: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            _program.exit_error = SystemExit(*args)
        return exit_program(*args)

    sys.exit = remember_and_exit


def _remember_cell(result: Any) -> None:
    _program.cell_error = result.error_before_exec or result.error_in_exec


@cache
def _watch_child(pid: int, is_owner: bool) -> None:
    """End the runs at the end of a process of multiprocessing, which has no atexit; a Pool ends them by SIGTERM."""
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return
    from multiprocessing.util import Finalize

    Finalize(None, _end_runs, exitpriority=0)
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and not is_owner and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end_by_signal)


def _enter_forked_process() -> None:
    """Log to files of its own, with locks of its own: the parent writes what it has collected."""
    _program.exit_error = None
    for run in _open_runs.values():
        run._connection = _connect_again(run._view)
        run._enter_process()


def _end_by_signal(number: int, _: Any) -> None:
    if any(run._lock._is_owned() for run in list(_open_runs.values())):  # type: ignore[attr-defined]
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()  # it has interrupted a write, which completes
        return
    _end_runs()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _end_runs() -> None:
    util = sys.modules.get("multiprocessing.util")
    if util is not None and any(run._is_owner for run in list(_open_runs.values())):
        util._exit_function()  # otherwise called later: it waits for processes, which may still log
    _program.is_ending = True
    if _program.cell_error is not False:
        error = _program.cell_error
    elif hasattr(sys, "ps1"):  # an error does not end an interactive interpreter
        error = None
    else:
        error = getattr(sys, "last_value", None) or _program.exit_error
    for run in list(_open_runs.values()):
        run._end_here(*run._describe_end(error))


def describe_error(error: BaseException) -> str:
    """Return type and message of an exception, and the line of the user's own code that it comes from."""
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = list(traceback.extract_tb(error.__traceback__))
    own = [frame for frame in frames if not frame.filename.startswith((*_LIBRARIES, "<"))] or frames
    if not own:
        return text
    shell = _ipython()
    names = None if shell is None else shell.compile.format_code_name(own[-1].filename)  # such as Cell, In[3]
    return f"{text} ({' '.join(names) if names else Path(own[-1].filename).name}, line {own[-1].lineno})"


def _ipython() -> Any:
    """Return IPython's shell; None outside of it."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


# --- starting


def start_attached_run(
    connection: ReconnectingClient, config: Any, options: Mapping[str, Any], keep_checkpoints: int, tensorboard: bool
) -> AttachedRun:
    """Register this process as a run with the settings `config`, and return the run."""
    from mosaic.worker.run import Run as RunHandle
    from mosaic.worker.run_log import to_json

    settings = to_json(config)
    if not isinstance(settings, dict):
        given = type(config).__name__
        raise BadInput(f"config: a {given} was given; expected a mapping, a dataclass or an argparse.Namespace.")
    known = {key: settings.pop(key) for key, kind in RUN_FIELDS.items() if type(settings.get(key)) is kind}
    payload = build_payload({"id": "script", "config": {}}, options)
    payload["metadata"]["worker"]["config"] = {
        **known,
        "argv": attached_command(own_identity()),
        "cwd": os.getcwd(),
        "algo": "notebook" if "ipykernel" in sys.modules else Path(sys.argv[0]).stem.lstrip("-") or "python",
        "attached": True,
        "probe": dict.fromkeys(("frames", "metrics", "checkpoints", "console", "wandb"), False),
        "algo_params": settings,
    }
    view = submit_once(connection.call, payload, {"PATH": os.environ.get("PATH", "")})
    _wait_for_stage(connection, view.run_id, lambda stage: stage is not Stage.QUEUED)
    folder = RunFolder(view.run_dir)
    has_tensorboard = tensorboard and importlib.util.find_spec("google_crc32c") is not None
    open_handle = partial(
        RunHandle,
        folder,
        worker="script",
        version=__version__,
        capabilities=("inbox", "pause"),
        total_timesteps=known.get("total_timesteps"),
        tensorboard=folder.tensorboard if has_tensorboard else None,
        keep_checkpoints=keep_checkpoints,
        handles_signals=False,
    )
    handle = open_handle()
    handle.hello()
    handle.hyperparameters({**known, **settings})
    view = _wait_for_stage(connection, view.run_id, lambda stage: stage is Stage.RUNNING)
    return AttachedRun(connection, view, open_handle, handle)


def _open_in_this_process(view: RunView, open_handle: Callable[..., RunHandle], booted: str) -> AttachedRun:
    """Return the run in a process that it was passed to."""
    if booted != boot_id():
        raise NotAllowed(f"Run {view.run_id} was started on another machine: only processes there can log into it.")
    return _open_runs.get(view.run_id) or AttachedRun(_connect_again(view), view, open_handle)


def _connect_again(view: RunView) -> ReconnectingClient:
    workspace = Workspace(Path(view.run_dir).parents[2])
    return ReconnectingClient(partial(connect, workspace), partial(read_daemon_address, workspace))


def _wait_for_stage(connection: ReconnectingClient, run_id: str, is_reached: Callable[[Stage], bool]) -> RunView:
    def read_view() -> RunView:
        return connection.call(lambda trainer: trainer.get_run(run_id))

    if not _poll(lambda: is_reached(read_view().stage), START_TIMEOUT_S):
        raise NotAllowed(
            f"Run {run_id} is still {read_view().status} after {START_TIMEOUT_S:g} s. Is the daemon draining? "
            "See: mosaic daemon status"
        )
    return read_view()


def _poll(is_done: Callable[[], bool], timeout_s: float) -> bool:
    """Return whether it was done in time."""
    deadline = time.monotonic() + timeout_s
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _check_tag(tag: Any) -> str:
    """Return the name of a metric; raise for what is none."""
    if isinstance(tag, str) and tag.strip() and tag.isprintable() and len(tag) <= MAX_TAG_LENGTH:
        return tag
    rule = f"text of 1 to {MAX_TAG_LENGTH} printable characters, such as 'losses/policy'"
    raise BadInput(f"log: {repr(tag)[:MAX_TAG_LENGTH]} is not a name of a metric; expected {rule}.")


def _to_number(name: str, value: Any) -> float:
    """Return a number as a float; of arrays and tensors, the only element."""
    with suppress(TypeError, ValueError, OverflowError, RuntimeError):
        number = value.item() if hasattr(value, "item") else value
        if not isinstance(number, (str, bytes, bytearray)):
            return float(number)
    rule = "expected a number, or an array with one element; leave out what has no value"
    raise BadInput(f"{name!r}: {repr(value)[:80]} is not a number; {rule}.")


def _to_int64(name: str, value: Any) -> int:
    """Return an integer of 64 bits; of a float, only where it is whole."""
    with suppress(TypeError, ValueError, OverflowError, RuntimeError):
        number = value.item() if hasattr(value, "item") else value
        whole = int(number) if isinstance(number, float) and number.is_integer() else operator.index(number)
        if -(1 << 63) <= whole < 1 << 63:
            return whole
    raise BadInput(f"{name}: {repr(value)[:80]} is not a whole number of at most 64 bits.")
