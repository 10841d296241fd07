"""Reads what a run's program prints: its metrics, where nothing else records them, and the order of its two logs."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from pathlib import Path

from mosaic.base.console_parser import ConsoleParser, ConsoleReading
from mosaic.base.files import file_size
from mosaic.base.journal import Follower, Journal, finite_or_none
from mosaic.base.log_order import LogMark, append_mark
from mosaic.contracts.folder import RunFolder

_POLL_S = 1.0
_CHUNK_BYTES = 1 << 20
_FREQUENT_MARKS = 1000
"""This number may follow each other with every tick of the keeper; later ones are a second apart."""
_RARE_S = 1.0
WARN_AFTER_S = 60.0
"""A program that runs longer is checked then, others at their end."""
CHECK_AGAIN_S = 15.0
"""Whether something is recorded after all, or the program still imports its modules."""
_IMPORTING_S = 30.0
_IMPORT_MARK = ".importing"
_RECORDED_KINDS = frozenset(("environment", "episodes", "metrics", "progress"))
_ADVICE = (
    'Print lines such as "global_step=500, episodic_return=12.5", which are read, or report from Python with '
    "mosaic.start_run()."
)


class ConsoleMetrics:
    """Parses metrics from stdout for programs that the probe cannot enter: `python -I`, or not Python at all.

    Only while no process of the run writes a journal: a journal is more precise, and nothing may be counted twice.
    """

    def __init__(self, folder: RunFolder, log_name: str) -> None:
        self._folder = folder
        self._path = folder.stdout_log(log_name)
        self._console_journal = folder.path / "journal.console.jsonl"
        self._offset = self._size = file_size(self._path)
        self._reader = ConsoleParser()
        self._journal: Journal | None = None
        self._episodes = 0
        self._next_poll_at = 0.0
        self._is_disabled = False

    def poll(self, now: float) -> None:
        """Reads up to the size seen by the previous poll, so that a process with a journal had time to write to it."""
        if now < self._next_poll_at or self._is_disabled:
            return
        self._next_poll_at = now + _POLL_S
        until, self._size = self._size, file_size(self._path)
        self._read(until)

    def close(self) -> None:
        self._read(file_size(self._path))
        if self._journal is not None:
            self._journal.close()

    def _read(self, until: int) -> None:
        if self._is_disabled or until <= self._offset:
            return
        if any(_has_records(path) for path in self._folder.journals() if path != self._console_journal):
            self._is_disabled = True
            return
        with suppress(OSError), open(self._path, "rb") as file:
            file.seek(self._offset)
            while self._offset < until:
                data = file.read(min(_CHUNK_BYTES, until - self._offset))
                if not data:
                    break
                self._offset += len(data)
                self._write_readings(self._reader.feed(data.decode(errors="replace")))

    def _write_readings(self, readings: list[ConsoleReading]) -> None:
        rows, series, now = [], dict[str, list[list[object]]](), time.time()
        for reading in readings:
            step = reading.step or 0
            if reading.episodic_return is not None and math.isfinite(reading.episodic_return):
                self._episodes += 1
                rows.append([self._episodes, 0, step, now, reading.episodic_return, reading.episodic_length or 0])
            for tag, value in reading.scalars.items():
                series.setdefault(tag, []).append([step, now, finite_or_none(value)])
        if not readings:
            return
        if self._journal is None:
            self._journal = Journal(self._console_journal)
        if rows:
            self._journal.append("episodes", rows=rows)
        if series:
            self._journal.append("metrics", series=series)
        last = readings[-1]
        total = {} if last.total_timesteps is None else {"total_timesteps": last.total_timesteps}
        self._journal.append("progress", global_step=last.step, **total)


def _has_records(path: Path) -> bool:
    """Return whether a journal has more than the handshake, which is its first line."""
    try:
        with open(path, "rb") as file:
            file.readline()
            return bool(file.read(1))
    except OSError:
        return False


class LogMarks:
    """Appends a mark where stderr has grown, so that a log on stdout alone costs nothing."""

    def __init__(self, folder: RunFolder, log_name: str, stderr_begin: int) -> None:
        """`stderr_begin`: the size of stderr before this attempt."""
        self._stdout, self._stderr = folder.stdout_log(log_name), folder.stderr_log(log_name)
        self._path = folder.log_order(log_name)
        self._marked_size = stderr_begin
        self._count = 0
        self._next_at = 0.0

    def poll(self, now: float) -> None:
        if now >= self._next_at:
            self.mark_growth()
            self._next_at = now + (0.0 if self._count < _FREQUENT_MARKS else _RARE_S)

    def mark_growth(self) -> None:
        """Also called once at the end."""
        with suppress(OSError):  # the run does not depend on it
            # In this order: what is written in between belongs to the next mark.
            stderr_size = file_size(self._stderr)
            if stderr_size == self._marked_size:
                return
            append_mark(self._path, LogMark(time.time(), file_size(self._stdout), stderr_size))
            self._marked_size, self._count = stderr_size, self._count + 1


# --- what to warn of when nothing of the program is recorded


def is_importing(folder: RunFolder) -> bool:
    """Return whether the program has imported a module in the last half minute, after its first seconds."""
    try:
        return time.time() - (folder.path / _IMPORT_MARK).stat().st_mtime < _IMPORTING_S
    except OSError:
        return False


def missing_records_warning(folder: RunFolder) -> dict[str, str] | None:
    """Return the fields of a warning, if neither an environment nor a metric was recorded."""
    journals = [path for path in folder.journals() if path.exists()]
    if any(line.body["kind"] in _RECORDED_KINDS for path in journals for line in Follower(path).read_rest()):
        return None
    if not journals:
        reason = "The probe is not in this program: it is not Python, or Python's options -E, -I or -S keep it out."
        return {"text": f"{reason} {_ADVICE}", "code": "probe_kept_out"}
    seen = "Gymnasium, Gym, PettingZoo, EnvPool, TensorBoard and W&B"
    reason = (
        f"No environment and no metric was seen; those of {seen} are, unless a program is started without MOSAIC_PROBE"
    )
    return {"text": f"{reason} in its environment. {_ADVICE}", "code": "nothing_seen"}
