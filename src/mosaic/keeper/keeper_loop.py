"""The keeper's loop: reap, read the inbox, decide, signal and sample, about ten times a second."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from mosaic.base.files import file_size, is_disk_full_error
from mosaic.base.journal import Follower, Journal, Outbox
from mosaic.base.processes import identify, own_identity
from mosaic.contracts.folder import RunFolder
from mosaic.keeper.console import (
    CHECK_AGAIN_S,
    WARN_AFTER_S,
    ConsoleMetrics,
    LogMarks,
    is_importing,
    missing_records_warning,
)
from mosaic.keeper.gpus import GpuMonitor, can_see_gpus
from mosaic.keeper.launch_spec import LaunchMalformed, LaunchSpec, parse_launch
from mosaic.keeper.surroundings import Surroundings
from mosaic.keeper.tree import PROC, TreeUsage, anonymous_memory_mb, read_memory, read_tree
from mosaic.keeper.warden import SAMPLE_FIRST_S, Order, Warden, next_sample_s
from mosaic.keeper.worker import (
    ProgramStartError,
    become_subreaper,
    is_process_group_alive,
    read_last_words,
    signal_process,
    signal_tree,
    start_sidecar,
    start_worker,
)

Opened = TypeVar("Opened")
_TICK_S = 0.1
_MEMORY_CHECK_S = 0.5
_FINAL_WRITE_TIMEOUT_S = 60.0
_OPEN_TIMEOUT_S = 10.0
_JOURNAL_TAIL_BYTES = 1 << 16
"""A worker that is writing a checkpoint writes little else: that it began is at most this far back in its journal."""
_CHECKPOINT_MARKS = {
    "checkpoint_begun": True,
    "checkpoint": False,
    "checkpoint_not_saved": False,
    "finished": False,
}
_RETRY_S = 0.5
_MAXRSS_MB = 2**20 if sys.platform == "darwin" else 2**10


class SignalWakeup:
    """Sleeps until a signal arrives: a child has exited, or the keeper is asked to terminate.

    Handlers instead of SIG_IGN: the worker would inherit an ignored signal.
    """

    def __init__(self) -> None:
        self.is_terminate_requested = False
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminate)

    def sleep(self, seconds: float) -> None:
        if select.select([self._reader], [], [], seconds)[0]:
            os.read(self._reader, 4096)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self.is_terminate_requested = True


class ReportQueue(Outbox):
    """Writes keeper.jsonl so that a full disk loses samples, but never an event."""

    def __init__(self, journal: Journal, folder: RunFolder | None = None) -> None:
        super().__init__(journal)
        self._folder = folder

    def flush(self) -> None:
        if self._folder is not None and self._folder.reopen_if_deleted():
            os.chdir(self._folder.path)
        super().flush()

    def report(self, kind: str, **fields: Any) -> None:
        self.put(kind, fields)
        self.try_flush()

    def report_if_possible(self, kind: str, **fields: Any) -> None:
        """Write a sample, or drop it: the next one replaces it."""
        if self.try_flush():
            self.put(kind, fields)
            if not self.try_flush():
                self._lines.clear()

    def flush_patiently(self, timeout_s: float, sleep: Callable[[float], None] = time.sleep) -> bool:
        """Retry while the disk is full, and for `timeout_s` after other errors; return whether everything is written.

        Until then the daemon sees the keeper alive, so the run is not taken for lost.
        """
        waited_s = 0.0
        while True:
            try:
                self.flush()
                return True
            except OSError as error:
                waited_s = 0.0 if is_disk_full_error(error) else waited_s + _RETRY_S
            if waited_s > timeout_s:
                return False
            sleep(_RETRY_S)


class Keeper:
    """Supervises one worker, from its start to the exit of the last process it started."""

    def __init__(self, launch: LaunchSpec, folder: RunFolder, reports: ReportQueue, wakeup: SignalWakeup) -> None:
        self._folder = folder
        self._stderr_log = folder.stderr_log(launch["log_name"])
        self._reports = reports
        self._end_key = launch.get("end_key", "")
        self._wakeup = wakeup
        self._inbox = Follower(folder.inbox, launch["inbox_offset"])
        self._journal_begin = file_size(folder.journal)
        self._journal: Follower | None = None
        """The worker's, which is read while a stop is pending."""
        self._is_saving = False
        self._lifeline, self._lifeline_s = launch.get("lifeline_fd"), launch.get("lifeline_s", 0.0)
        """A pipe that closes when the process that vouches for this run has ended."""
        if self._lifeline is not None:
            os.set_inheritable(self._lifeline, False)
            os.set_blocking(self._lifeline, False)
        self._lost_at = inf
        self._is_signalled_by_cluster = launch.get("is_signalled_by_cluster", False)
        if self._is_signalled_by_cluster:
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # which the worker inherits
        self._console = ConsoleMetrics(folder, launch["log_name"]) if launch.get("reads_console") else None
        self._gpus = GpuMonitor()
        self._worker_pid, self._stderr_begin = start_worker(launch, folder)
        self._log_marks = LogMarks(folder, launch["log_name"], self._stderr_begin)
        self._started = time.monotonic()
        self._warden = Warden(
            launch["limits"], launch["grace_s"], self._started, launch.get("is_interrupted_first", False)
        )
        self._has_memory_limit = launch["limits"]["memory_mb"] is not None
        self._status: int | None = None
        self._duration_s = 0.0
        self._peak_mb = 0.0
        self._main_shared_mb = 0.0
        self._sampled_at, self._sampled_cpu_s = self._started, 0.0
        self._sample_at = self._started + SAMPLE_FIRST_S
        self._memory_check_at = self._started
        self._visibility_check_at = None if self._console is None else self._started + WARN_AFTER_S
        self._visibility_warning: dict[str, str] | None = None
        self._ended_leftovers = 0
        """Processes that were left when the program had ended, and were ended by a signal."""
        reports.report("worker_started", process=identify(self._worker_pid))
        has_gpus = can_see_gpus(launch["env"])
        if has_gpus:
            self._gpus.start()
        self._surroundings = Surroundings(launch.get("source_folders", []), has_gpus)

    def run(self) -> None:
        """Returns when the whole tree is gone."""
        last_error = ""
        while self._has_processes_left():
            try:
                self._tick(time.monotonic())
            except Exception:  # A worker without its keeper would be worse: print the error once and continue.
                if last_error != (last_error := traceback.format_exc()):
                    _print_error(last_error)
            self._wakeup.sleep(_TICK_S)
        self._log_marks.mark_growth()
        self._report_surroundings(is_last=True)
        if self._console is not None:
            self._console.close()
            if self._status == 0 or self._visibility_warning is not None:  # else the reason of its failure counts
                self._check_visibility(time.monotonic(), is_last=True)
        self._reports.report("exited", **self._exit_report(), end_key=self._end_key)

    def _tick(self, now: float) -> None:
        if self._wakeup.is_terminate_requested:
            end = self._warden.abandon if self._is_signalled_by_cluster else self._warden.terminate
            self._execute_orders(end(now))
        if self._lifeline is not None:
            with suppress(BlockingIOError):
                if not os.read(self._lifeline, 4096):
                    self._lifeline, self._lost_at = None, now + self._lifeline_s
        if now >= self._lost_at:
            self._execute_orders(self._warden.abandon(now))
        self._read_inbox(now)
        if self._warden.may_wait:
            self._wait_for_checkpoint(now)
        self._execute_orders(self._warden.due_orders(now))
        self._reports.try_flush()
        self._log_marks.poll(now)
        self._report_surroundings()
        if self._console is not None:
            self._console.poll(now)
        if self._visibility_check_at is not None and now >= self._visibility_check_at:
            self._check_visibility(now)
        if now >= self._sample_at:
            self._sample_at = now + next_sample_s(now - self._started)
            self._sample(now, self._read(now))
        elif self._has_memory_limit and now >= self._memory_check_at:
            self._read(now)

    def _report_surroundings(self, is_last: bool = False) -> None:
        for kind, fields in self._surroundings.take_reports(is_last):
            self._reports.report(kind, **fields)

    def _check_visibility(self, now: float, is_last: bool = False) -> None:
        """Warn if nothing of the program is recorded, once, and withdraw that when something is."""
        if self._visibility_check_at is None:
            return
        self._visibility_check_at = now + CHECK_AGAIN_S
        with suppress(OSError):  # Its end must be reported, whatever its files are.
            warning, known = missing_records_warning(self._folder), self._visibility_warning
            if warning is None:
                self._visibility_check_at = None
                if known is not None:
                    self._reports.report("warning", **known, is_withdrawn=True)
            elif known is None and (is_last or not is_importing(self._folder)):
                self._visibility_warning = warning
                self._reports.report("warning", **warning)

    def _read_inbox(self, now: float) -> None:
        with suppress(OSError):  # It is read again at the next tick.
            for line in self._inbox.read():
                self._execute_orders(
                    self._warden.handle_command(line.body["kind"], line.body.get("by_signal") is True, now)
                )

    def _wait_for_checkpoint(self, now: float) -> None:
        """Do not let the worker be killed while its journal says that it is writing a checkpoint."""
        if self._journal is None:
            tail = file_size(self._folder.journal) - _JOURNAL_TAIL_BYTES
            self._journal = Follower(self._folder.journal, max(self._journal_begin, tail))
        with suppress(OSError):  # It is read again at the next tick.
            for line in self._journal.read():
                self._is_saving = _CHECKPOINT_MARKS.get(line.body["kind"], self._is_saving)
        was_awaiting = self._warden.is_awaiting_checkpoint
        if self._is_saving:
            self._warden.wait_for_checkpoint(now)
        if self._warden.is_awaiting_checkpoint and not was_awaiting:
            self._reports.report("checkpoint_awaited", limit_s=self._warden.checkpoint_limit_s)

    def _execute_orders(self, orders: list[Order]) -> None:
        for order in orders:
            if order.is_for_tree:
                signal_tree(self._worker_pid, order.signal)
            elif self._status is None:
                signal_process(self._worker_pid, order.signal)
            if order.event == "escalated":
                self._reports.report("escalated", signal=order.signal.name, cause=self._warden.cause)
            elif order.event:
                self._reports.report(order.event)

    def _has_processes_left(self) -> bool:
        """Reap every exited child, adopted orphans included; return whether any process is left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return is_process_group_alive(self._worker_pid)
            if pid == 0:
                return True
            if self._status is not None and os.WIFSIGNALED(status):
                self._ended_leftovers += 1
            if pid == self._worker_pid:
                now = time.monotonic()
                self._status = os.waitstatus_to_exitcode(status)
                self._duration_s = now - self._started
                self._peak_mb = max(self._peak_mb, usage.ru_maxrss / _MAXRSS_MB - self._main_shared_mb)
                self._read_inbox(now)  # The worker may have obeyed a stop that was not read here yet.
                self._warden.on_main_exited(now)

    def _read(self, now: float) -> TreeUsage:
        self._memory_check_at = now + _MEMORY_CHECK_S
        reading = read_tree(PROC, os.getpid())
        if self._status is None:
            self._main_shared_mb = read_memory(PROC, self._worker_pid).shared_mb or self._main_shared_mb
        self._peak_mb = max(self._peak_mb, reading.private_mb)
        # The cheap figure counts pages shared by a fork once per process, so the exact one decides.
        if self._warden.exceeds_memory(reading.private_mb):
            exact_mb = anonymous_memory_mb(PROC, os.getpid())
            if self._warden.exceeds_memory(exact_mb):
                self._execute_orders(self._warden.kill_for_memory(now))
        return reading

    def _sample(self, now: float, reading: TreeUsage) -> None:
        cpu_s, elapsed_s = reading.cpu_s - self._sampled_cpu_s, now - self._sampled_at
        self._sampled_at, self._sampled_cpu_s = now, reading.cpu_s
        self._reports.report_if_possible(
            "sample",
            cpu_percent=round(max(0.0, 100 * cpu_s / elapsed_s), 1),
            rss_mb=round(reading.private_mb, 1),
            processes=reading.processes,
            gpus=self._gpus.newest,
        )

    def _exit_report(self) -> dict[str, object]:
        status = self._status
        return {
            "code": status if status is not None and status >= 0 else None,
            "signal": -status if status is not None and status < 0 else None,
            "cause": self._warden.cause,
            "duration_s": round(self._duration_s, 3),
            "peak_rss_mb": round(self._peak_mb, 1),
            "limit": self._warden.limit,
            "ended_leftovers": self._ended_leftovers,
            "last_words": read_last_words(self._stderr_log, self._stderr_begin),
        }


def main(data: bytes) -> int:
    """Run the keeper. Exit code 0: the exit was recorded; 1: it could not be; 2: the launch spec was malformed."""
    try:
        launch = parse_launch(data)
    except LaunchMalformed as error:
        _print_error(str(error))
        return 2
    wakeup = SignalWakeup()
    try:
        folder = _retry_opening(launch["folder"], lambda: _hold_folder(launch["folder"]))
        reports = ReportQueue(_retry_opening(folder.path, lambda: Journal(folder.keeper)), folder)
    except OSError as error:
        _print_error(f"The keeper's journal could not be opened, so the worker was not started: {error}.")
        return 1
    reports.report("keeper_started", process=own_identity())
    if "sidecar" in launch:
        # The run does not depend on it.
        try:
            reports.report("sidecar_started", process=identify(start_sidecar(launch["sidecar"], folder)))
        except ProgramStartError as reason:
            reports.report("sidecar_not_started", reason=str(reason))
    become_subreaper()
    try:
        Keeper(launch, folder, reports, wakeup).run()
    except ProgramStartError as reason:
        reports.report("worker_not_started", reason=str(reason), end_key=launch.get("end_key", ""))
    is_there = folder.path.is_dir() and os.stat(folder.path).st_nlink > 0
    has_place = is_there or folder.origin.parent.is_dir()  # else the workspace is gone
    is_written = reports.flush_patiently(_FINAL_WRITE_TIMEOUT_S if has_place else 0.0)
    with suppress(OSError):
        reports.journal.sync()
    if not is_written:
        path = folder.to_readable(str(folder.keeper))
        _print_error(f"The end of the run could not be written to {path}. Is the disk full?")
    return 0 if is_written else 1


def _hold_folder(path: str) -> RunFolder:
    """Open the run folder, and work in it: so the daemon finds where it was moved."""
    folder = RunFolder.hold(path)
    os.chdir(folder.path)
    return folder


def _retry_opening(folder: str | Path, open_it: Callable[[], Opened]) -> Opened:
    """Retry for some seconds, as without the folder and keeper.jsonl the daemon would learn nothing of the run."""
    deadline = time.monotonic() + _OPEN_TIMEOUT_S
    while True:
        try:
            return open_it()
        except OSError:
            if time.monotonic() > deadline or not os.path.isdir(folder):
                raise
            time.sleep(_RETRY_S)


def _print_error(text: str) -> None:
    """Print to stderr, which is a file whose disk may be full too."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
