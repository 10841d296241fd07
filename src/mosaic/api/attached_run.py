"""Runs that the calling process produces: it logs, saves and shows; the daemon does the rest."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsFloat

import numpy as np

from mosaic import __version__
from mosaic.api.submitted_run import Run
from mosaic.client.submission import submit_once
from mosaic.common.processes import own_identity
from mosaic.contracts.errors import MissingExtra, NotAllowed
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.states import Stage
from mosaic.fastlane import FrameTap, LaneWriter, lanes_folder
from mosaic.keeper.attached_process import attached_command
from mosaic.submission.run_payloads import build_payload

if TYPE_CHECKING:
    from mosaic.client.connect import ReconnectingClient
    from mosaic.contracts.views import RunView
    from mosaic.run import Run as RunHandle

TICK_S = 0.25
START_TIMEOUT_S = 30.0
END_TIMEOUT_S = 10.0
CAPABILITIES = ("inbox", "pause")
RUN_FIELDS: dict[str, type] = {"env_id": str, "seed": int, "total_timesteps": int}
"""Settings that lists show of every run."""
PROBE_PARTS = ("frames", "metrics", "checkpoints", "console", "wandb")


class AttachedRun(Run):
    """A run that this process produces. Use it as a context manager; otherwise call `finish` at the end.

    An exception in the block ends the run as failed. While the run is paused, its methods block. When the run is
    cancelled, `should_stop` becomes true; what a loop that ignores it logs ten seconds later is not recorded.
    """

    def __init__(self, connection: ReconnectingClient, view: RunView, handle: RunHandle) -> None:
        super().__init__(connection, view)
        self._handle = handle
        # The handle is used by the caller and by the thread that writes what is due; a pause blocks both.
        self._lock = threading.RLock()
        self._tap: tuple[Any, FrameTap] | None = None
        """The environment that was shown last, and its renderer."""
        self._lane: LaneWriter | None = None
        self._is_done = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._write_regularly, name="mosaic-run", daemon=True)
        self._thread.start()

    # --- logging

    def log(self, values: Mapping[str, SupportsFloat], step: int) -> None:
        """Log the values of some metrics at a step."""
        with self._lock:
            self._check_open()
            self._handle.scalars(int(step), values)
            self._handle.update(max(int(step), self._handle.global_step))

    def log_episode(
        self, episodic_return: SupportsFloat, length: int, *, step: int | None = None, env: int = 0
    ) -> None:
        """Log a finished episode. `step` counts the environment steps of the whole run (default: the last one)."""
        with self._lock:
            self._check_open()
            at = self._handle.global_step if step is None else int(step)
            self._handle.episode(env=env, step=at, episodic_return=episodic_return, length=int(length))
            self._handle.update(max(at, self._handle.global_step))

    def save_checkpoint(
        self, state: Mapping[str, Any], step: int, metadata: Mapping[str, Any] | None = None
    ) -> Path | None:
        """Save arrays or a state dict of tensors, and return the path; None if the disk is full.

        `metadata`: JSON values to store with it. Read it again with safetensors: `weights.safetensors` in the folder.
        """
        weights = {name: _to_array(value) for name, value in state.items()}
        with self._lock:
            self._check_open()
            self._handle.update(max(int(step), self._handle.global_step))
            try:
                return self._handle.save_checkpoint(int(step), weights=weights, arrays={}, facts=dict(metadata or {}))
            except ModuleNotFoundError as error:
                raise MissingExtra(f"Checkpoints need {error.name}: pip install 'mosaic-rl[train]'") from None

    def show_frame(self, frame: Any) -> None:
        """Show an image (bytes [height, width, 3]) or an environment to those who watch the run.

        An environment is rendered only while it is watched and its next frame is due, so that this may be called after
        every step.
        """
        with self._lock:
            self._check_open()
            if self._lane is None:
                self._lane = LaneWriter(lanes_folder(self.folder), 0)
            if not self._lane.is_due():
                return
            handle = self._handle
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
        """Whether the run was cancelled."""
        with self._lock:
            if not self._is_done:
                self._handle.update(self._handle.global_step)
            return self._handle.stop_requested

    # --- the end

    def finish(self, outcome: str = "succeeded", reason: str | None = None) -> None:
        """End the run as `succeeded`, `stopped` or `failed`. A second call does nothing."""
        if self._is_done:
            return
        self._is_done = True
        self._end.set()
        with self._lock:
            self._handle.finish(outcome, reason)
            self._handle.close()
            if self._lane is not None:
                self._lane.close()
        self._thread.join()
        _poll(lambda: self.refresh().is_finished, END_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        is_stopped = self._handle.stop_requested
        self._handle.stop_requested = True  # a paused run ends, too
        if kind is None:
            self.finish("stopped" if is_stopped else "succeeded")
        elif issubclass(kind, KeyboardInterrupt):
            self.finish("stopped", "It was interrupted.")
        else:
            self.finish("failed", f"{kind.__name__}: {error}")

    def _check_open(self) -> None:
        if self._is_done:
            raise NotAllowed(f"Run {self.id} has been finished; start another one: mosaic.start_run(...)")

    def _write_regularly(self) -> None:
        while not self._end.wait(TICK_S):
            with self._lock:
                if not self._is_done:
                    self._handle.update(self._handle.global_step)


def start_attached_run(
    connection: ReconnectingClient,
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    keep_checkpoints: int,
    tensorboard: bool,
) -> AttachedRun:
    """Register this process as a run with the settings `config`, and return the run."""
    from mosaic.run import Run as RunHandle

    has_tensorboard = tensorboard and importlib.util.find_spec("google_crc32c") is not None
    settings = dict(config)
    known = {key: settings.pop(key) for key, kind in RUN_FIELDS.items() if type(settings.get(key)) is kind}
    payload = build_payload({"id": "script", "config": {}}, options)
    payload["metadata"]["worker"]["config"] = {
        **known,
        "argv": attached_command(own_identity()),
        "cwd": os.getcwd(),
        "algo": _program_name(),
        "attached": True,
        "probe": dict.fromkeys(PROBE_PARTS, False),
        "algo_params": _to_json(settings),
    }
    view = submit_once(connection.call, payload, {"PATH": os.environ.get("PATH", "")})
    _wait_for_stage(connection, view.run_id, lambda stage: stage is not Stage.QUEUED)
    folder = RunFolder(view.run_dir)
    handle = RunHandle(
        folder,
        worker="script",
        version=__version__,
        capabilities=CAPABILITIES,
        total_timesteps=known.get("total_timesteps"),
        tensorboard=folder.tensorboard if has_tensorboard else None,
        keep_checkpoints=keep_checkpoints,
        handles_signals=False,
    )
    handle.hello()
    handle.hyperparameters({**known, **settings})
    return AttachedRun(
        connection, _wait_for_stage(connection, view.run_id, lambda stage: stage is Stage.RUNNING), handle
    )


def _wait_for_stage(connection: ReconnectingClient, run_id: str, is_reached: Callable[[Stage], bool]) -> RunView:
    def read_view() -> RunView:
        return connection.call(lambda trainer: trainer.get(run_id))

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


def _program_name() -> str:
    return "notebook" if "ipykernel" in sys.modules else Path(sys.argv[0]).stem.lstrip("-") or "python"


def _to_array(value: Any) -> np.ndarray:
    """Return a numpy array of an array or a tensor."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.ascontiguousarray(value)


def _to_json(settings: Mapping[str, Any]) -> Any:
    """Return settings as JSON values; text where there is no such value."""

    def convert(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        return list(value) if isinstance(value, Sequence) else str(value)

    return json.loads(json.dumps(settings, default=convert))
