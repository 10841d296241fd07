"""Writes recorded values to the journal at intervals, from one source per tag.

SummaryWriter takes precedence over wandb.log, that over our own statistics, and those over the console.
"""

from __future__ import annotations

import atexit
import os
import signal
import struct
import sys
import threading
import time
from _thread import allocate_lock, get_native_id, start_new_thread
from collections import defaultdict, deque
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

from mosaic.base.journal import (
    EpisodeRow,
    Journal,
    Outbox,
    SpeedMeter,
    as_float32,
    first_non_finite,
    group_by_tag,
    json_rows,
    json_series,
)
from mosaic.contracts.names import EVAL_LENGTH_TAG, EVAL_RETURN_TAG, LENGTH_TAG, RETURN_TAG
from mosaic.probe.inside.analytics import Analytics
from mosaic.probe.inside.hooks import (
    FIRST_PROCESS_VARIABLE,
    INSTRUCTIONS_VARIABLE,
    RUN_DIR_VARIABLE,
    Instructions,
    call_before,
    report_failure,
)

CONSOLE, OWN, WANDB, WRITER = range(4)
"""Sources; a higher number takes precedence."""
FLUSH_S = 0.25
PROGRESS_S = 1.0
ANALYTICS_S = 5.0
EPISODE_HOLD_S = 5.0
"""Time that our own episodes wait for a script that may log them itself."""
CONSOLE_HOLD_S = 1.0
EVALUATION_HOLD_S = 60.0
"""Time that our own episodes of an evaluation wait for a script that may log them itself, often after the last one."""
REVOCABLE_EPISODES = 1000
"""So many episodes of a process are taken back if it turns out later what they are, or that the script logs its own."""
MAX_LIVES = 20
"""The script's own episodes replace ours if there are at most so many of ours for each: else it logs a mere summary."""
LANES_PER_RANK = 8
LOCK_TIMEOUT_S = 1.0
_SLOT = struct.Struct("<qqdd")
_FRESH_S = 3.0
"""A process that has not written for this long adds nothing to the speed of the run."""

_now = time.time
_monotonic = time.monotonic


def claim(path: str, text: str, replaces: bool = False) -> bool:
    """Create a file with this text and return whether this process did; no other one ever reads a part of it."""
    draft = f"{path}.{os.getpid()}"
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
    try:
        (os.replace if replaces else os.link)(draft, path)
        return True
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)


class ProcessCount(NamedTuple):
    """A slot of the file."""

    steps: int
    total_timesteps: int
    """The number of steps that it is going to take, 0 if unknown."""
    sps: float
    at: float
    """When it was written, by the monotonic clock."""


def add_counts(own: ProcessCount, others: list[ProcessCount]) -> ProcessCount:
    """Return the count of the run.

    Totals of processes that take steps are added. One of a process that takes none, such as their parent, is that of
    the whole run, and counts if they have none.
    """
    counts = [own, *others]
    stepping = [count for count in counts if count.steps] or [own]
    total = sum(count.total_timesteps for count in stepping) or max(count.total_timesteps for count in counts)
    sps = sum(count.sps for count in stepping if own.at - count.at < _FRESH_S)
    return ProcessCount(sum(count.steps for count in counts), total, sps, own.at)


class SharedCounts:
    """Adds up the steps of all processes of a run, in a file with one slot per process."""

    def __init__(self, run_dir: str) -> None:
        self._path = os.path.join(run_dir, ".steps")
        self._offset: int | None = None
        """Of the slot of this process."""

    def exchange(self, own: ProcessCount) -> ProcessCount:
        """Write the count of this process and return that of the run; its own if the file cannot be used."""
        others: list[ProcessCount] = []
        with suppress(OSError):
            if own.steps or own.total_timesteps:
                self._write(_SLOT.pack(*own))
            with open(self._path, "rb") as file:
                data = file.read()
            offsets = range(0, len(data) - _SLOT.size + 1, _SLOT.size)
            others = [ProcessCount(*_SLOT.unpack_from(data, at)) for at in offsets if at != self._offset]
        return add_counts(own, others)

    def _write(self, slot: bytes) -> None:
        flags = os.O_WRONLY | (os.O_CREAT | os.O_APPEND if self._offset is None else 0)
        file = os.open(self._path, flags, 0o600)
        try:
            if self._offset is not None:
                os.pwrite(file, slot, self._offset)
            elif os.write(file, slot) == _SLOT.size:
                self._offset = os.lseek(file, 0, os.SEEK_CUR) - _SLOT.size
        finally:
            os.close(file)


class BarProgress(NamedTuple):
    """What the script's own progress bar shows, as far as it is known."""

    total_timesteps: int | None
    fraction: float | None
    """How much of its work it has done, from 0 to 1."""


class IdleReporter:
    """A thread that writes what the script has recorded last before it computes, waits or hangs.

    It ends when all is written, and before a fork, as forking a process with threads is deprecated. The module
    `threading` does not list it.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._thread_id = 0
        self._end, self._running = allocate_lock(), allocate_lock()
        self._end.acquire()
        self._running.acquire()
        start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            self._thread_id = get_native_id()
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the script's
            while self._probe.reporter is self and not self._end.acquire(timeout=FLUSH_S):
                now = _monotonic()
                if now >= self._probe.next_flush_at + FLUSH_S:
                    self._probe.flush(now, is_idle=True)
        except Exception as error:
            report_failure("reports", error)
        finally:
            self._running.release()

    def stop(self) -> None:
        """Wait for its end."""
        with suppress(RuntimeError):  # two at once
            self._end.release()
        if self._running.acquire(timeout=LOCK_TIMEOUT_S):
            self._running.release()
            for _ in range(1000):
                if not os.path.exists(f"/proc/self/task/{self._thread_id}"):
                    break
                time.sleep(0.0001)


class Probe:
    """Collects the values of one process of the run."""

    def __init__(self) -> None:
        self.run_dir = os.environ[RUN_DIR_VARIABLE]
        instructions = Instructions(os.environ[INSTRUCTIONS_VARIABLE])
        self.parts = instructions.parts
        self.requested_timesteps = instructions.total_timesteps
        """The total of the run as its user has stated it."""
        self.is_evaluating = False
        """Whether a library reports that all steps are evaluation now."""
        self.evaluation = SimpleNamespace(steps=0)
        self.groups: list[Any] = []
        """All groups.EnvGroup."""
        self.next_index = LANES_PER_RANK * int(os.environ.get("LOCAL_RANK", 0))
        """Index of the next environment. Parallel processes must not use the same ones."""
        self.has_writer = False
        self.has_checked_infos = False
        """Whether the script was checked for infos of gymnasium 0.29."""
        self.has_environments = False
        self.num_envs = 1
        """Total number of environments, if this process is one of several that step them."""
        self._reset_state()

    def _reset_state(self) -> None:
        self.pid = os.getpid()
        self.total_timesteps: int | None = None
        """The number of steps that this process is going to take, as far as it has set that itself."""
        self.vague_total: int | None = None
        """A number that may be that of its steps."""
        self.bar: BarProgress | None = None
        self.read_fraction: Any = None
        """Returns how much of its work is done, by the trainer of a library."""
        self.has_training_group = False
        for group in self.groups:
            group.forget()
        self.training_functions: Any = None
        """The names of functions that seem to evaluate, but that training takes place in; None before any step."""
        self.revocable: Any = []
        """The groups.Provisional of these functions; None if there were too many."""
        self.is_child = False
        """Whether it steps environments for another process, which reports the progress."""
        self.read_mark: Any = lambda: None
        """Returns the groups.ChildMark of this process's environments, if it steps them for another process."""
        self.steps = 0
        """Environment steps of this process in training, as counted by the probe."""
        self.next_flush_at = 0.0
        self._lock = threading.Lock()
        self.reporter: IdleReporter | None = None
        self.deferred_signal: int | None = None
        self.has_wakeup_fd = False
        """A deadly signal that arrived during a write, which completes first."""
        self._outbox: Outbox | None = None
        self._points: list[tuple[int, str, int, float, float]] = []
        self._tag_sources: dict[str, int] = {}
        self._episode_rows: dict[str, list[list[Any]]] = defaultdict(list)
        """By source: `script`, `probe` or `console`."""
        self.unmarked_rows: list[list[Any]] = []
        """Episodes of a process that steps environments for another, which has not decided what they are."""
        self._counted_here: dict[int, bool] = {}
        """The first episodes that we counted, by number, and whether they were cut."""
        self._revoked_numbers: list[int] = []
        self._revoked_cut = 0
        self._must_correct = False
        """Whether episodes or steps that were reported as training were evaluation."""
        self.episode_source: str | None = None
        self._is_episode_counter = False
        """Whether this process numbers the run's episodes."""
        self._episodes = 0
        self._revoked_count = 0
        self.cut_count = 0
        """Episodes that the script has ended by a reset."""
        self._partial_episode: dict[str, Any] = {}
        self._finished_episodes: Any = deque(maxlen=64)
        self._script_step: int | None = None
        self._next_progress_at = 0.0
        self._speed = SpeedMeter()
        self._reported_step: int | None = None
        self._reported_own: tuple[int, int | None] | None = None
        """The steps of this process and the step that the script logs with, at the last report."""
        self._is_rank_zero = os.environ.get("RANK", "0") == "0"
        self._shared_counts = SharedCounts(self.run_dir)
        self._steps_elsewhere = 0
        """Steps of the run's other processes."""
        self.saved_files: dict[str, dict[str, Any]] = {}
        self.has_unwritten_analytics = False
        """Whether analytics.json lacks something that must be in it now."""
        self.analytics = Analytics(self.run_dir)
        self._next_analytics_at = 0.0

    @property
    def shown_steps(self) -> int:
        """Environment steps of this process that are training, or may be."""
        return self.steps + sum(int(group.steps) for group in self.groups if not group.is_evaluation)

    @property
    def global_step(self) -> int:
        """Environment steps of all processes; the step that the script logs with only if no environment is seen."""
        return self.shown_steps + self._steps_elsewhere or self._script_step or 0

    @property
    def is_complete(self) -> bool:
        """Whether all intended steps were taken, as far as their number is known."""
        total = self.requested_timesteps or self.total_timesteps
        return total is not None and self.steps >= total

    @property
    def episode_count(self) -> int:
        return self._episodes - self._revoked_count

    # --- recording: as cheap as possible

    def add_scalar(self, source: int, tag: str, value: Any, step: Any) -> None:
        if type(value) is not float:
            # Converting one-element arrays and tensors with a gradient directly would warn.
            value = float(value.item() if hasattr(value, "item") else value)
        step = 0 if step is None else int(step)
        if source > OWN:
            self.has_writer = True
            if self._script_step is None or step > self._script_step:
                self._script_step = step
        if tag in (RETURN_TAG, LENGTH_TAG):
            self._add_script_value(tag, value, step)
        else:
            self._points.append((source, tag, step, _now(), value))
        self.tick()

    def add_episode(
        self, index: int, episodic_return: float, length: int, step: int, is_cut: bool = False
    ) -> list[Any]:
        """Record an episode of training, counted by the probe; returns its row."""
        self._finished_episodes.append((index, episodic_return, length))
        row = [0, index, step, _now(), float(episodic_return), length, is_cut]
        self._episode_rows["probe"].append(row)
        return row

    def add_evaluation_episode(
        self, episodic_return: float, length: int, step: int, is_cut: bool = False, at: float | None = None
    ) -> None:
        at = _now() if at is None else at
        self._points.append((OWN, EVAL_RETURN_TAG, step, at, float(episodic_return)))
        self._points.append((OWN, EVAL_LENGTH_TAG, step, at, float(length)))
        self.analytics.cut_evaluations += is_cut

    def move_to_evaluation(self, episodes: list[tuple[list[Any], int]]) -> None:
        """Record episodes as evaluation that were recorded as training; with each, the steps of training before it."""
        self.stop_reporter()  # which reads these lists
        self.next_flush_at = 0.0
        pending = self._episode_rows["probe"]
        moved = {id(row) for row, _ in episodes}
        self._episode_rows["probe"] = [row for row in pending if id(row) not in moved]
        for (number, _, _, at, episodic_return, length, is_cut), step in episodes:
            self._revoke({number: is_cut} if number else {})
            self.add_evaluation_episode(episodic_return, length, step, is_cut, at)

    def _revoke(self, episodes: dict[int, bool]) -> None:
        """Take back episodes that were reported, by their numbers; each with whether it was cut."""
        self._must_correct = True
        for number, is_cut in episodes.items():
            self._revoked_numbers.append(number)
            self._revoked_cut += is_cut
            self._counted_here.pop(number, None)

    def add_console_reading(self, reading: Any) -> None:
        """Record a common.console_parser.ConsoleReading."""
        step = self.global_step if reading.step is None else reading.step
        if reading.total_timesteps and self.total_timesteps is None:
            self.total_timesteps = reading.total_timesteps
        if not self.has_environments and not self.has_writer:
            self._script_step = step
        if reading.episodic_return is not None:
            row = [0, 0, step, _now(), reading.episodic_return, reading.episodic_length or 0, False]
            self._episode_rows["console"].append(row)
        for tag, value in reading.scalars.items():
            self._points.append((CONSOLE, tag, step, _now(), value))
        if self._reported_step is None:
            self.report_now()  # it shows the keeper that the console is being read
        self.tick()

    def _add_script_value(self, tag: str, value: float, step: int) -> None:
        """Record a return or a length; scripts log them one after the other, and together they are an episode."""
        half = self._partial_episode
        name = "return" if tag == RETURN_TAG else "length"
        if half and (name in half or half["step"] != step):
            self._complete_episode()
            half = self._partial_episode
        half.setdefault("step", step)
        half.setdefault("at", _now())
        half[name] = value
        if "return" in half and "length" in half:
            self._complete_episode()

    def _complete_episode(self) -> None:
        half, self._partial_episode = self._partial_episode, {}
        if "return" not in half:
            return
        index, length = 0, int(half.get("length", 0))
        for known in list(self._finished_episodes):
            if abs(known[1] - half["return"]) <= 1e-4 * max(1.0, abs(known[1])) and length in (0, known[2]):
                index, length = known[0], known[2]
                self._finished_episodes.remove(known)
                break
        self._episode_rows["script"].append([0, index, half["step"], half["at"], half["return"], length, False])

    # --- writing, at intervals

    def report_now(self) -> None:
        """Write the progress without waiting for the next interval."""
        self._next_progress_at = self.next_flush_at = 0.0
        self.tick()

    def tick(self) -> None:
        now = _monotonic()
        if now >= self.next_flush_at:
            self.flush(now)

    def flush(self, now: float, is_last: bool = False, is_idle: bool = False) -> None:
        """Write what is due. `is_idle`: the script may record nothing for long, and what it has recorded is due."""
        self.next_flush_at = now + FLUSH_S
        if not self._lock.acquire(timeout=LOCK_TIMEOUT_S if is_last else 0):
            return  # another thread is flushing, or this is a signal handler that interrupted a flush
        try:
            if not is_idle:  # else perhaps in the thread of the reporter: this counts steps
                self._settle_groups(is_last)
            self._flush_points(is_last)
            self._flush_episodes(is_last)
            self._flush_corrections()
            is_progress_due = now >= self._next_progress_at or is_last or is_idle
            if is_progress_due:
                self._add_progress(now)
            if self._outbox is not None:
                self._outbox.flush()
            if is_progress_due:
                self._write_analytics(now, is_last)
        except OSError:
            pass  # a full disk does not stop the script; the writes are retried
        finally:
            if is_idle and not self._has_unwritten():
                self.reporter = None
            elif self.reporter is None and not is_last and not is_idle:
                with suppress(RuntimeError):  # no room for a thread
                    self.reporter = IdleReporter(self)
            self._release_lock()

    def _has_unwritten(self) -> bool:
        has_lines = self._outbox is not None and self._outbox.has_lines
        has_rows = bool(self._points or self._partial_episode or any(self._episode_rows.values()))
        return has_lines or has_rows or self._reported_own != (self.shown_steps, self._script_step)

    def stop_reporter(self) -> bool:
        """Stop it and return whether it was running."""
        reporter, self.reporter = self.reporter, None
        if reporter is not None:
            reporter.stop()
        return reporter is not None

    @property
    def is_writing(self) -> bool:
        return self._lock.locked()

    def _release_lock(self) -> None:
        self._lock.release()
        number, self.deferred_signal = self.deferred_signal, None  # its handler flushes once more
        if number is not None:
            os.kill(os.getpid(), number)

    def _settle_groups(self, is_last: bool) -> None:
        for group in self.groups:
            group.settle()
        if is_last:
            is_evaluation = self.is_complete
            for group in self.groups:
                group.decide(is_evaluation)
        mark = self.read_mark() if self.unmarked_rows else None
        if self.unmarked_rows and (mark is None or mark.purpose == "evaluation"):
            rows, self.unmarked_rows = self.unmarked_rows, []
            if mark is not None:
                self.move_to_evaluation([(row, mark.step) for row in rows])

    def _flush_points(self, is_last: bool) -> None:
        if not self._points:
            return
        outbox = self._open_outbox()
        points = self._points[:]
        del self._points[: len(points)]  # of the same list: the script may be adding to it meanwhile
        now = _now()
        hold_s = {CONSOLE: CONSOLE_HOLD_S, OWN: EVALUATION_HOLD_S if self.has_writer else 0.0}
        best: dict[str, int] = {}
        for source, tag, _, at, _ in points:
            if source > best.get(tag, -1) and (is_last or now - at >= hold_s.get(source, 0.0)):
                best[tag] = source
        for tag, source in best.items():
            self._tag_sources.setdefault(tag, source)
        self._points[:0] = [point for point in points if point[1] not in self._tag_sources]
        writable = [point for point in points if point[0] == self._tag_sources.get(point[1])]
        if writable:
            values = as_float32([point[4] for point in writable])
            series = group_by_tag(
                (tag, step, round(at, 6), value) for (_, tag, step, at, _), value in zip(writable, values)
            )
            outbox.put("metrics", {"series": json_series(series, first_non_finite(series))}, len(writable))
            self.analytics.add_points(writable)

    def _flush_episodes(self, is_last: bool) -> None:
        if self._partial_episode and (is_last or _now() - self._partial_episode["at"] > 1.0):
            self._complete_episode()
        source = self._claim_episode_source(is_last) if any(self._episode_rows.values()) else None
        if source is None:
            return
        outbox = self._open_outbox()
        chosen = self._episode_rows[source][:]
        may_change = source == "probe" and self._episodes <= REVOCABLE_EPISODES
        for name, rows in list(self._episode_rows.items()):
            if name == source:
                del rows[: len(chosen)]
            elif name != "script" or not may_change:
                rows.clear()
        lines: list[EpisodeRow] = []
        for row, value in zip(chosen, as_float32([row[4] for row in chosen])):
            _, env, step, at, _, length, is_cut = row
            self._episodes += 1
            self.cut_count += is_cut
            # Other processes do not know each other's count: they number by the clock, so that no number repeats.
            row[0] = self._episodes if self._is_episode_counter else int(at * 1e6)
            if source == "probe" and self._episodes <= REVOCABLE_EPISODES:
                self._counted_here[row[0]] = is_cut
            lines.append((row[0], env, step, round(at, 6), value, length))
        if lines:
            cut = [row[0] for row in chosen if row[6]]
            outbox.put("episodes", {"rows": json_rows(lines), **({"cut": cut} if cut else {})}, len(lines))

    def _flush_corrections(self) -> None:
        if not self._must_correct:
            return
        self._must_correct = False
        numbers, self._revoked_numbers = self._revoked_numbers, []
        cut, self._revoked_cut = self._revoked_cut, 0
        self._revoked_count += len(numbers)
        self.cut_count -= cut
        if numbers or self._reported_step:
            step = None if self.is_child else self.global_step
            self._open_outbox().put("episodes_revoked", {"numbers": numbers, "cut": cut, "global_step": step})

    def _claim_episode_source(self, is_last: bool) -> str | None:
        """Return the source of episodes for all processes of the run; the first process to claim it decides.

        Except that a script that logs its own later, such as whole games instead of single lives, replaces ours.
        """
        path = os.path.join(self.run_dir, ".episodes-from")
        may_change = self.episode_source == "probe" and self._episodes <= REVOCABLE_EPISODES
        if self.episode_source is None:
            preferred = self._preferred_source(is_last)
            if preferred is not None and claim(path, preferred):
                self._is_episode_counter = not self.is_child
        elif may_change and len(self._episode_rows["script"]) * MAX_LIVES >= self._episodes:
            claim(path, "script", replaces=True)
        if self.episode_source is None or may_change:
            with suppress(OSError), open(path, encoding="utf-8") as claimed:
                self.episode_source = claimed.read()
        if may_change and self.episode_source == "script":
            self._revoke(dict(self._counted_here))
        return self.episode_source

    def _preferred_source(self, is_last: bool) -> str | None:
        rows = self._episode_rows
        if rows["script"] or "return" in self._partial_episode:
            return "script"
        if rows["probe"]:
            may_wait = self.has_writer or self.is_child
            return "probe" if is_last or not may_wait or _now() - rows["probe"][0][3] > EPISODE_HOLD_S else None
        if rows["console"]:
            may_be_only_source = not self.has_environments and not self.has_writer
            hold_s = CONSOLE_HOLD_S if may_be_only_source else 2 * EPISODE_HOLD_S
            return "console" if is_last or _now() - rows["console"][0][3] > hold_s else None
        return None

    def _add_progress(self, now: float) -> None:
        self._next_progress_at = now + PROGRESS_S
        if self.is_child:
            return
        steps = self.shown_steps
        self._reported_own = steps, self._script_step
        own_step = steps or self._script_step or 0
        if self._reported_step is None:
            self._speed.start(own_step, now)
        sps = self._speed.update(own_step, now) or 0.0
        vague_total = self.vague_total if (self.vague_total or 0) >= own_step else None
        totals = self.total_timesteps or (self.bar and self.bar.total_timesteps) or vague_total
        own_total = totals if self._is_rank_zero else None
        run = self._shared_counts.exchange(ProcessCount(steps, own_total or 0, sps, now))
        self._steps_elsewhere = run.steps - steps
        step = self.global_step
        is_seen = self.has_environments or self._script_step is not None or step > 0
        if not steps and not (is_seen and self._is_rank_zero):
            return
        self._reported_step = step
        fields = {
            "global_step": step,
            "total_timesteps": self.requested_timesteps or run.total_timesteps or None,
            "sps": round(run.sps, 1) if run.sps > 0 else None,
            **({"fraction": self.read_fraction()} if self.read_fraction else {}),
            **({"fraction": self.bar.fraction} if self.bar else {}),
        }
        self._open_outbox().put("progress", fields)

    def _write_analytics(self, now: float, is_last: bool) -> None:
        is_due = self.has_unwritten_analytics or now >= self._next_analytics_at or is_last
        if is_due and not self.is_child and self._is_rank_zero:
            self.has_unwritten_analytics = False
            self._next_analytics_at = now + ANALYTICS_S
            self.analytics.write(self)

    def _open_outbox(self) -> Outbox:
        if self._outbox is None:
            is_first = os.environ.get(FIRST_PROCESS_VARIABLE) == str(self.pid)
            name = "journal.jsonl" if is_first else f"journal.{self.pid}.jsonl"
            self._outbox = Outbox(Journal(os.path.join(self.run_dir, name)))
        return self._outbox

    def write_event(self, kind: str, **fields: Any) -> None:
        """Write one line immediately."""
        if not self._lock.acquire(timeout=LOCK_TIMEOUT_S):
            return  # a signal handler interrupted a flush, which continues after it
        try:
            with suppress(OSError):
                self._open_outbox().put(kind, fields)
                self._open_outbox().flush()
        finally:
            self._release_lock()

    def warn(self, text: str, code: str) -> None:
        self.write_event("warning", text=text, code=code)

    def close(self) -> None:
        if os.getpid() == self.pid:
            self.stop_reporter()
            self.flush(_monotonic(), is_last=True)
            outbox, self._outbox = self._outbox, None
            if outbox is not None:
                outbox.close()


_probe: Probe | None = None


def current_probe() -> Probe:
    """Return this process's probe, created on first use."""
    global _probe
    if _probe is None:
        _probe = Probe()
        atexit.register(_probe.close)
        os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
        # Forked processes, those of multiprocessing included, end with it and do not call atexit functions.
        for name in ("_exit", "abort"):
            call_before(os, name, "processes", before_exit)
        _flush_on_sigterm(_probe)
    return _probe


def before_exit(*args: Any, **kwargs: Any) -> None:
    """Close the probe unless this process has recorded nothing."""
    probe = _probe
    if probe is not None and (probe.shown_steps or probe._outbox or probe._points or any(probe._episode_rows.values())):
        probe.close()


def _before_fork() -> None:
    """End the reporter, which the next flush starts again; the script may only wait for its children from now on."""
    if _probe is not None and _probe.stop_reporter():
        _probe.flush(_monotonic(), is_idle=True)


def _after_fork() -> None:
    """Drop what the parent has recorded: the parent writes it."""
    if _probe is not None:
        if _probe.has_wakeup_fd:
            signal.set_wakeup_fd(-1)  # its signals are not the parent's
            _probe.has_wakeup_fd = False
        if _probe._outbox is not None:
            _probe._outbox.journal._file.close()  # without its lock, which another thread may have held
        _probe._reset_state()


def _flush_on_sigterm(probe: Probe) -> None:
    """Flush on SIGTERM if no handler is set, so that a cancelled run keeps its last points; then die of the signal."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return

    def flush_and_die(number: int, _: Any) -> None:
        if probe.is_writing and probe.deferred_signal is None:
            probe.deferred_signal = number
            if probe.is_writing:
                return  # whoever writes sends it again
            probe.deferred_signal = None
        try:
            probe.flush(_monotonic(), is_last=True)
        finally:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, flush_and_die)
    if getattr(sys.modules.get("multiprocessing.process"), "parent_process", lambda: None)() is not None:
        _repeat_sigterm(probe)


def _repeat_sigterm(probe: Probe) -> None:
    """Send SIGTERM again until it is handled: a Pool sends it once, and waits for the end of its processes.

    Python's handlers run between instructions. One that is due just before the main thread waits for a semaphore would
    wait with it, for ever.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    others = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if others != -1:
        signal.set_wakeup_fd(others)  # the script's, such as a loop of asyncio
        return
    probe.has_wakeup_fd = True
    main_thread = threading.main_thread().ident

    def repeat() -> None:
        while os.read(reader, 1) != bytes([signal.SIGTERM]):
            pass
        while main_thread is not None:
            time.sleep(0.1)
            if not probe.is_writing:
                signal.pthread_kill(main_thread, signal.SIGTERM)

    threading.Thread(target=repeat, name="mosaic-sigterm", daemon=True).start()
