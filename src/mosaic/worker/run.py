"""The handle with which a program produces a run."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import Any, Literal, NamedTuple, Self, SupportsFloat, TypeVar

from mosaic.base.checkpoint_files import NO_LOG
from mosaic.base.journal import EpisodeRow, Follower, Point, SpeedMeter, as_float32
from mosaic.base.packages import installed_packages, python_version
from mosaic.base.processes import start_time
from mosaic.contracts import commands
from mosaic.contracts.folder import INBOX_OFFSET_VARIABLE, RUN_DIR_VARIABLE, RunFolder
from mosaic.contracts.names import CONTRACT_VERSION
from mosaic.worker import checkpoints
from mosaic.worker.checkpoints import Array, Checkpoint, CheckpointManager, CheckpointPart, SavedCheckpoint
from mosaic.worker.live_frames import LiveFrames
from mosaic.worker.run_log import RunLog, add_points, count_hellos

INBOX_S = 0.05
JOURNAL_S = 0.25
"""Metrics and episodes are one line each: with the progress, about nine lines a second."""
PROGRESS_S = 1.0
ANALYTICS_S = 5.0
PAUSED_HEARTBEAT_S = 3.0
RETRY_S = 0.25
RECENT_EPISODES = 100
"""The number of episodes over which the mean return is computed."""

Result = TypeVar("Result")

# Bound once: scalar() and update() are called thousands of times a second.
_now = time.time
_monotonic = time.monotonic


class _Interval:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = 0.0

    def is_due(self, now: float) -> bool:
        if now < self._next:
            return False
        self.restart(now)
        return True

    def restart(self, now: float) -> None:
        self._next = now + self._seconds


class LogMark(NamedTuple):
    """What was logged until a moment, for a checkpoint of that moment that is saved later."""

    episode_count: int
    recent_returns: list[float]
    scalars: dict[str, dict[str, Any]]
    buffered: tuple[list[Point], list[EpisodeRow]]
    """The points that `scalars` does not contain yet."""


class Run:
    """The producer of one run folder. Use it as a context manager: closing writes everything that is buffered.

    Call `hello` first, `update` once per training update and `finish` at the end. Log the values of a step before
    saving its checkpoint: a checkpoint includes everything logged before it. A full disk never stops the training.
    """

    env_id = "The environment"
    """What it trains on, for messages."""
    frames: LiveFrames | None = None
    """Live frames of its environments; None where they are switched off."""
    end_reason: str | None = None
    """Why it has succeeded before its last step, in a sentence; None where it has not."""
    stop_note: str | None = None
    """What to know about a stop that was obeyed, in a sentence."""
    save_latest: Callable[[], None] | None = None
    """Saves the latest state that can be resumed from, unless it is saved. `update` calls it where that is due."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        worker: str,
        version: str,
        capabilities: tuple[str, ...] = ("inbox", "pause", "checkpoint", "resume"),
        total_timesteps: int | None = None,
        tensorboard: Path | None = None,
        keep_checkpoints: int = 3,
        checkpoint_every: int | None = None,
        checkpoint_minutes: float = 0,
        names: Mapping[str, str] | None = None,
        handles_signals: bool = True,
        on_command: Callable[[Mapping[str, Any]], bool] | None = None,
        process: int | None = None,
    ) -> None:
        """Create the run's folder as needed. `tensorboard` is the folder of the event file; None for no event file.

        There is a checkpoint of every `checkpoint_minutes` of training, if a training sets `save_latest`; 0: none.
        `names` are the `worker_id` and `agent_id` of its config, repeated in the handshake. With `handles_signals`,
        SIGTERM and Ctrl-C request a stop. `on_command` is called with each command first, and returns whether it has
        handled it. `process` is the id of a further process, which adds to a run that another one begins and ends.
        """
        for path in (folder.path, folder.logs, folder.checkpoints):
            path.mkdir(parents=True, exist_ok=True)
        if process is None:
            checkpoints.recover_interrupted_writes(folder)
        self.folder = folder
        self.attempt = 1 + count_hellos(folder.journal) if process is None else 1
        self.is_shared = process is not None  # or further processes log into the run
        self.stop_requested = False
        self.global_step = 0
        self.episode_count = 0
        self.total_timesteps = total_timesteps
        self._worker = worker
        self._version = version
        self._capabilities = capabilities
        self._names = dict(names or {})
        self._checkpoint_manager = CheckpointManager(folder, keep_checkpoints)
        self._checkpoint_every = checkpoint_every or None
        self._checkpoint_mark = 0
        self._checkpoint_clock = _Interval(60 * checkpoint_minutes or math.inf)
        self._is_checkpoint_requested = False
        self._is_saving = False
        self._is_pause_requested = False
        self._resumed_from: int | None = None
        self._process = process
        self._has_started = process is not None
        self._is_finished = False
        self._is_closed = False
        self._recent_returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._on_command = on_command
        self._inbox = Inbox(folder, is_whole=process is not None)
        self._log = RunLog(folder, tensorboard, process)
        self._add_scalar = self._log.points.scalars.append
        self._add_episode = self._log.points.episodes.append
        self._speed = SpeedMeter()
        self._due_at = 0.0
        self._journal_clock = _Interval(JOURNAL_S)
        self._progress_clock = _Interval(PROGRESS_S)
        self._analytics_clock = _Interval(ANALYTICS_S)
        self._pid = os.getpid()
        self._handlers: dict[signal.Signals, Any] = {}
        if handles_signals:
            self._install_signal_handlers()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def hello(self, resumed: Checkpoint | None = None) -> None:
        """Write the first event of the attempt. With a checkpoint, resume from it."""
        if resumed is not None:
            self._restore(resumed)
        self.event(
            "hello",
            worker=self._worker,
            version=self._version,
            contract=CONTRACT_VERSION,
            pid=self._pid,
            capabilities=list(self._capabilities),
            **self._names,
            attempt=self.attempt,
            resumed_from=self._resumed_from,
        )
        self.event("packages", python=python_version(), packages=installed_packages())
        if resumed is not None:
            self._start_attempt()
        self._speed.start(self.global_step)
        self._checkpoint_clock.restart(_monotonic())

    # --- while training

    def scalar(self, tag: str, value: SupportsFloat, step: int) -> None:
        self._add_scalar((tag, step, _now(), float(value)))

    def scalars(self, step: int, values: Mapping[str, SupportsFloat]) -> None:
        at = _now()
        for tag, value in values.items():
            self._add_scalar((tag, step, at, float(value)))

    def episode(self, *, env: int, step: int, episodic_return: SupportsFloat, length: int) -> None:
        self.episode_count += 1
        value = float(episodic_return)
        self._recent_returns.append(value)
        # Processes do not know each other's count: they number by the clock, each with bits of its own.
        number = time.time_ns() // 250 << 8 | self._pid & 255 if self.is_shared else self.episode_count
        self._add_episode((number, env, step, _now(), value, length))

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last 100 episodes."""
        return _finite_mean(self._recent_returns)

    def hyperparameters(self, values: Mapping[str, object]) -> None:
        """Log hyperparameters to the journal and to TensorBoard's text and hparams tabs."""
        self._start_attempt()
        self._log.write_hyperparameters(values, int(self.global_step))

    def video_preview(self, video_path: Path) -> None:
        """Log the first seconds of a video to TensorBoard's image tab; a failure is ignored."""
        self._log.write_video_preview(video_path)

    def update(self, global_step: int) -> None:
        """Write what is due by the clock, read the inbox, and block while the run is paused."""
        self.global_step = global_step
        if _monotonic() >= self._due_at:
            self._tick()

    @property
    def is_ending(self) -> bool:
        """Whether the training ends after this update: a stop was requested, or there is an `end_reason`."""
        return self.stop_requested or self.end_reason is not None

    @property
    def best_score(self) -> float | None:
        """The highest score of a checkpoint, including those of earlier attempts."""
        self._start_attempt()
        return self._checkpoint_manager.best_score

    def checkpoint_due(self, step: int) -> bool:
        """Return whether a multiple of `checkpoint_every` was passed since the last one, or one was requested."""
        if self._is_checkpoint_requested:
            return True
        return (
            self._checkpoint_every is not None
            and step // self._checkpoint_every > self._checkpoint_mark // self._checkpoint_every
        )

    def begin_checkpoint(self) -> None:
        """Announce that a checkpoint is being written: a stop waits until `save_checkpoint`, which does so itself.

        Call it before that where the state of the checkpoint takes long to collect.
        """
        if not self._is_saving:
            self._start_attempt()
            self._is_saving = True
            self.event("checkpoint_begun")

    def save_checkpoint(
        self,
        step: int,
        *,
        weights: Mapping[str, Array],
        arrays: Mapping[str, Array | CheckpointPart],
        facts: Mapping[str, Any],
        score: float | Literal["mean_return"] | None = "mean_return",
        log: LogMark | None = None,
        is_interim: bool = False,
    ) -> Path | None:
        """Save a checkpoint and return its path; if that fails, log a warning and return None.

        The one with the highest score is the best; one without a score never is. `log` is that of a state of earlier.
        An interim one is deleted as soon as a later one is complete, unless it is the best.
        """
        self.begin_checkpoint()
        step = int(step)
        if not is_interim:
            self._checkpoint_mark = step
            self._is_checkpoint_requested = False
        self._flush()
        log = log or self.mark_log()
        score = _finite_mean(log.recent_returns) if score == "mean_return" else score
        extra_manifest = {
            "worker": self._worker,
            "worker_version": self._version,
            "attempt": self.attempt,
            "is_interim": is_interim,
            "log": {
                "episodes": log.episode_count,
                "recent_returns": as_float32(log.recent_returns),
                "scalars": add_points(log.scalars, *log.buffered),
            },
        }

        def write() -> SavedCheckpoint:
            if self.is_shared:
                self._checkpoint_manager.adopt_existing(sys.maxsize)  # those of other processes
            self._log.sync()
            return self._checkpoint_manager.save(step, weights, arrays, facts, extra_manifest, score, is_interim)

        is_at_end = self.total_timesteps is not None and step >= self.total_timesteps
        is_last = is_at_end or self.end_reason is not None
        title = f"The checkpoint at step {step}"
        saved = self.write_result(write, title, "checkpoint_failed", may_wait=is_last)
        self._is_saving = False
        self._checkpoint_clock.restart(_monotonic())
        if saved is None:
            self.event("checkpoint_not_saved")
            return None
        relative_path = str(saved.path.relative_to(self.folder.path))
        self.event("checkpoint", step=step, path=relative_path, is_best=saved.is_best, score=score)
        self.write_analytics()
        return saved.path

    def mark_log(self) -> LogMark:
        """Return what a checkpoint of this moment contains of the log."""
        points, scalars = self._log.points, dict(self._log.analytics.scalars)
        buffered = points.scalars[:], points.episodes[:]
        return LogMark(self.episode_count, list(self._recent_returns), scalars, buffered)

    def write_result(
        self, write: Callable[[], Result], title: str, code: str, *, may_wait: bool = True
    ) -> Result | None:
        """Call `write` and return its result. Where it fails, as on a full disk, warn once and return None.

        With `may_wait`, for results that no later one replaces, retry until it succeeds or a stop is requested.
        """
        has_failed = False
        while True:
            try:
                return write()
            except OSError as error:
                if not has_failed:
                    text = f"{title} could not be saved ({error}). What was saved before is still valid. "
                    self.warn(f"{text}Make room on the disk of {self.folder.path}.", code)
                has_failed = True
            if not may_wait or not self._wait_to_retry():
                return None

    def warn(self, text: str, code: str | None = None) -> None:
        # Not to stderr: its last line is shown as the last words of a failed run.
        self.event("warning", text=self.folder.to_readable(text), code=code)

    def anomaly(self, tag: str, step: int) -> None:
        """Report a loss, reward or weight that is not finite. Scalars and returns are checked automatically."""
        self.event("anomaly", tag=tag, step=int(step))

    def event(self, kind: str, **fields: Any) -> None:
        """Write one line of the journal immediately."""
        self._log.event(kind, **fields)

    @property
    def tensorboard_dir(self) -> str | None:
        """The folder of the event file, relative to the run folder where it is inside; None without one."""
        return self._log.analytics.tensorboard_dir

    def artifact(self, name: str, value: Any) -> None:
        """Set an entry of analytics.json, such as `model`, `videos` or `evaluation`."""
        self._log.analytics.set_artifact(name, value)

    def finish(self, outcome: str = "succeeded", reason: str | None = None) -> None:
        """End the attempt with the outcome `succeeded`, `stopped`, `rejected` or `failed`."""
        reason = None if reason is None else self.folder.to_readable(reason)
        if outcome == "succeeded":
            self._log.event_file.end_hparams_session()
        self._flush()
        self._progress()
        self.event("finished", outcome=outcome, reason=reason, global_step=int(self.global_step))
        if self.is_shared:
            self._checkpoint_manager.adopt_existing(sys.maxsize)
        self.write_analytics()
        while self._log.has_unwritten_lines and self._wait_to_retry():
            self._flush()
        self.write_analytics()
        self._is_finished = True

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if not self._is_finished:
            self._flush()
            if self._process is not None:
                self.event("finished", outcome="succeeded", global_step=int(self.global_step))
            self.write_analytics()
        self._log.close()
        if self._process is None:
            checkpoints.remove_pending_parts(self.folder)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _wait_to_retry(self) -> bool:
        """Wait before the last results are written again; return False after a stop, or if the folder is gone."""
        self.handle_commands()
        if self.stop_requested or not self.folder.path.is_dir():
            return False
        time.sleep(RETRY_S)
        return True

    # --- by the clock

    def _tick(self) -> None:
        self._start_attempt()
        self.handle_commands()
        if self._is_pause_requested and not self.stop_requested:
            if self.save_latest is not None:
                self.save_latest()
            self._wait_while_paused()
        now = _monotonic()
        if self.save_latest is not None and not self.stop_requested and self._checkpoint_clock.is_due(now):
            self.save_latest()
        if self._journal_clock.is_due(now):
            self._log.write_points()
        if self._progress_clock.is_due(now):
            self._progress()
        if self._analytics_clock.is_due(now):
            self.write_analytics()
        self._due_at = now + INBOX_S

    def _flush(self) -> None:
        if self._log.points:
            self._start_attempt()
        self._log.write_points()

    def _progress(self) -> None:
        step = int(self.global_step)
        sps = self._speed.update(step)
        rounded_sps = None if sps is None or (self.is_shared and not sps) else round(sps, 1)
        self.event("progress", global_step=step, total_timesteps=self.total_timesteps, sps=rounded_sps)

    def write_analytics(self) -> None:
        """Write analytics.json now instead of at its next interval."""
        if self._process is None and (self._has_started or self.attempt == 1):
            self._log.write_analytics(
                global_step=int(self.global_step),
                episodes=self.episode_count,
                mean_return=self.mean_return,
                **self._checkpoint_manager.summary(),
            )

    # --- commands and signals

    def handle_commands(self) -> None:
        """Read the inbox now instead of at the next `update` that is due."""
        self.folder.reopen_if_deleted()
        for command in self._inbox.read():
            kind = command["kind"]
            if self._on_command is not None and self._on_command(command):
                continue
            if kind == commands.STOP:
                self.stop_requested = True
            elif kind == commands.CHECKPOINT:
                self._is_checkpoint_requested = True
            elif kind in (commands.PAUSE, commands.RESUME) and not command.get("by_signal"):
                self._is_pause_requested = kind == commands.PAUSE

    def _wait_while_paused(self) -> None:
        paused_at = _monotonic()
        step = int(self.global_step)
        self._flush()
        self.event("paused", global_step=step)
        self.write_analytics()
        heartbeat = _Interval(PAUSED_HEARTBEAT_S)
        while self._is_pause_requested and not self.stop_requested:
            if heartbeat.is_due(_monotonic()):
                self.event("progress", global_step=step, total_timesteps=self.total_timesteps, sps=0.0)
            time.sleep(INBOX_S)
            self.handle_commands()
        self._speed.exclude_pause(_monotonic() - paused_at)
        self._checkpoint_clock.restart(_monotonic())
        self.event("resumed", global_step=step)

    def _install_signal_handlers(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._handlers[number] = signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # A forked child, such as an environment's process, inherits this handler. It must die when its parent
            # terminates it; Ctrl-C is handled by the parent.
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        self.stop_requested = True
        if number == signal.SIGINT:  # a second Ctrl-C interrupts
            signal.signal(signal.SIGINT, signal.default_int_handler)

    # --- resuming

    def _restore(self, resumed: Checkpoint) -> None:
        log = resumed.manifest.get("log", NO_LOG)
        self.global_step = self._checkpoint_mark = self._resumed_from = resumed.step
        self.episode_count = log["episodes"]
        self._recent_returns.extend(log["recent_returns"])
        self._log.analytics.scalars = dict(log["scalars"])

    def _start_attempt(self) -> None:
        """Prepare the folder before this attempt's first data. A rejected attempt leaves the earlier one unchanged."""
        if self._has_started:
            return
        self._has_started = True
        if self.attempt > 1:
            self._log.event_file.purge_from_step(0 if self._resumed_from is None else self._resumed_from + 1)
        for moved in self._checkpoint_manager.adopt_existing(-1 if self._resumed_from is None else self._resumed_from):
            if moved.damage:
                text = f"Checkpoint {moved.step} is damaged ({moved.damage}): skipped and moved to {moved.path}."
                self.warn(text, "checkpoint_damaged")


def _finite_mean(returns: Collection[float]) -> float | None:
    if not returns:
        return None
    mean = fmean(as_float32(returns))
    return mean if math.isfinite(mean) else None


class Inbox:
    """Returns new commands, oldest first.

    It starts where this attempt does: at the offset given by the keeper, else at this process's start time. Commands
    for an earlier attempt in the same process are skipped too. `is_whole`: it starts with the run's first command.
    """

    def __init__(self, folder: RunFolder, is_whole: bool = False) -> None:
        offset = os.environ.get(INBOX_OFFSET_VARIABLE, "")
        self._since = 0.0
        if not is_whole and os.environ.get(RUN_DIR_VARIABLE) == str(folder.origin) and offset.isdecimal():
            self._follower = Follower(folder.inbox, int(offset))
            return
        self._follower = Follower(folder.inbox)
        self._since = 0.0 if is_whole else _process_started_at()
        if not is_whole and folder.journal.exists():
            self._since = max(self._since, folder.journal.stat().st_mtime)

    def read(self) -> list[dict[str, Any]]:
        """Return new commands; costs one os.stat if there are none."""
        try:
            lines = self._follower.read()
        except OSError:
            return []  # it is read again in a moment: no reason to stop the training
        return [line.body for line in lines if line.body.get("at", self._since) >= self._since]


def _process_started_at() -> float:
    """Return this process's start time in seconds since the epoch; the current time if it is unknown."""
    try:
        with open("/proc/uptime", "rb") as file:
            uptime_s = float(file.read().split()[0])
        return time.time() - uptime_s + int(start_time(os.getpid())) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return time.time()
