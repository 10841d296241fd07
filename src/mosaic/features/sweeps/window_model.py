"""The sweeps of the workspace. Their studies are read by a process of its own, while somebody looks at them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from PySide6.QtCore import QObject, QProcess, QTimer, Signal

from mosaic.base.formatting import format_si_number
from mosaic.base.processes import identify
from mosaic.base.trainer_profiles import LOCAL
from mosaic.contracts.errors import MosaicError, NotAllowed, StorageFailed
from mosaic.contracts.folder import Workspace
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.features.sweeps.api import ENDED_STATUSES, best_trial, format_param, format_trial_counts
from mosaic.features.sweeps.core import (
    MIN_TRIALS_FOR_IMPORTANCE,
    Dimension,
    SweepPlan,
    TrialRow,
    TrialStatus,
    parse_sweep,
    plan_sweep,
)
from mosaic.features.sweeps.core_folder import SweepFolder, sweep_names
from mosaic.features.sweeps.worker import SweepReport, SweepSnapshot, decode_report
from mosaic.window.bridge import Bridge
from mosaic.window.child_process import ChildProcess

# --- A sweep as the window shows it: its plan, its trials, and whether a process runs it.


MAX_TICKS = 24


class SweepStatus(StrEnum):
    RUNNING = "running"
    """A process runs it."""
    DETACHED = "detached"
    """No process runs it, and runs of its trials may continue."""
    STOPPED = "stopped"
    """No process runs it, and trials are left."""
    ENDED = "done"
    """All trials have ended."""
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class SweepState:
    snapshot: SweepSnapshot
    plan: SweepPlan | None
    """None where its file cannot be read."""
    problem: str = ""

    @property
    def name(self) -> str:
        return self.snapshot.name

    @property
    def trials(self) -> Sequence[TrialRow]:
        return self.snapshot.trials

    @property
    def best(self) -> TrialRow | None:
        return best_trial(self.snapshot.trials)

    def count(self, *statuses: str) -> int:
        return sum(str(row.status) in statuses for row in self.trials)

    @property
    def ended_share(self) -> float:
        return 0.0 if self.plan is None else min(1.0, self.count(*ENDED_STATUSES) / max(1, self.plan.trial_count))

    @property
    def status(self) -> SweepStatus:
        if self.plan is None:
            return SweepStatus.UNREADABLE
        if self.snapshot.runner_pid is not None:
            return SweepStatus.RUNNING
        if self.count("running"):
            return SweepStatus.DETACHED
        return SweepStatus.ENDED if self.count(*ENDED_STATUSES) >= self.plan.trial_count else SweepStatus.STOPPED

    @property
    def line(self) -> str:
        """`12 of 20 trials ended: 7 done, 4 pruned, 1 failed; 2 running`."""
        return self.problem if self.plan is None else format_trial_counts(self.plan, self.trials)

    @property
    def short_line(self) -> str:
        """`12 of 20 ended`."""
        return self.problem if self.plan is None else f"{self.count(*ENDED_STATUSES)} of {self.plan.trial_count} ended"

    def describe_status(self) -> str:
        """Say whether a process runs the sweep, and how it is continued."""
        running = self.count("running")
        trials = "1 running trial continue" if running == 1 else f"{running} running trials continue"
        pid = self.snapshot.runner_pid
        return {
            SweepStatus.RUNNING: f"Process {pid} runs this sweep." if pid else "A process runs this sweep.",
            SweepStatus.DETACHED: f"No process runs this sweep now. The runs of its {trials}; "
            "Continue takes them over and starts the others.",
            SweepStatus.STOPPED: "No process runs this sweep now. Continue starts the trials that are left.",
            SweepStatus.ENDED: "All trials have ended. A higher number of trials in its file continues it.",
            SweepStatus.UNREADABLE: "This sweep cannot be read.",
        }[self.status]

    def describe_importance(self) -> str:
        """Say why there is no importance; empty where there is one."""
        done = self.count("done")
        if self.snapshot.importances:
            return ""
        if done < MIN_TRIALS_FOR_IMPORTANCE:
            return f"It needs {MIN_TRIALS_FOR_IMPORTANCE} completed trials; {done} {'is' if done == 1 else 'are'} done."
        return "It needs two settings with several values."


def read_state(snapshot: SweepSnapshot) -> SweepState:
    """Build the plan of a sweep from its file."""
    if snapshot.problem:
        return SweepState(snapshot, None, snapshot.problem)
    try:
        return SweepState(snapshot, plan_sweep(parse_sweep(snapshot.config)))
    except MosaicError as error:  # the algorithm of another version, or of a worker that is not installed
        return SweepState(snapshot, None, str(error))


# --- parallel coordinates


@dataclass(frozen=True)
class SettingAxis:
    title: str
    ticks: tuple[tuple[float, str], ...]
    """Places from 0 to 1 with their labels."""
    is_log: bool = False


@dataclass(frozen=True)
class TrialLine:
    number: int
    places: tuple[float, ...]
    """On each axis of a setting, and for a completed trial on that of the score."""
    share: float | None
    """Of the score, from the lowest (0) to the highest (1); None for a trial without one."""


def build_axes(dimensions: Sequence[Dimension], rows: Sequence[TrialRow]) -> list[SettingAxis]:
    """Return an axis for each searched setting, and one for the score."""
    axes = [SettingAxis(dimension.name, tuple(_ticks(dimension)), dimension.is_log) for dimension in dimensions]
    scores = [row.score for row in rows if row.score is not None]
    low, high = min(scores, default=0.0), max(scores, default=1.0)
    ticks = ((0.0, format_si_number(low)), (1.0, format_si_number(high))) if high > low else ((0.5, f"{low:.4g}"),)
    return [*axes, SettingAxis("score", ticks if scores else ())]


def build_lines(dimensions: Sequence[Dimension], rows: Sequence[TrialRow]) -> list[TrialLine]:
    """Return one line for each pruned and each completed trial, the best last, so that it is drawn on top."""
    scores = [row.score for row in rows if row.score is not None]
    low, high = min(scores, default=0.0), max(scores, default=1.0)
    lines = []
    for row in rows:
        is_shown = row.score is not None or row.status is TrialStatus.PRUNED
        if not is_shown or not all(_has_place(dimension, row) for dimension in dimensions):
            continue
        places = tuple(dimension.position(row.params[dimension.name]) for dimension in dimensions)
        if row.score is None:
            lines.append(TrialLine(row.number, places, None))
        else:
            share = (row.score - low) / (high - low) if high > low else 0.5
            lines.append(TrialLine(row.number, (*places, share), share))
    return sorted(lines, key=lambda line: -1.0 if line.share is None else line.share)


def _has_place(dimension: Dimension, row: TrialRow) -> bool:
    return dimension.name in row.params and dimension.contains(row.params[dimension.name])


def _ticks(dimension: Dimension) -> list[tuple[float, str]]:
    """The options, or the ends of a range with round numbers between them."""
    if dimension.options:
        stride = -(-len(dimension.options) // MAX_TICKS)
        return [(dimension.position(one), format_param(one)) for one in dimension.options[::stride]]
    ends = [(0.0, _format_tick(dimension.low)), (1.0, _format_tick(dimension.high))]
    if dimension.is_log:
        between = [10.0**power for power in range(-12, 13) if dimension.low < 10.0**power < dimension.high]
    else:
        between = [dimension.low + share * (dimension.high - dimension.low) for share in (0.25, 0.5, 0.75)]
    places = [(dimension.position(value), _format_tick(value)) for value in between]
    return [ends[0], *(place for place in places if 0.08 < place[0] < 0.92), ends[1]]


def _format_tick(value: float) -> str:
    return f"{value:.3g}"


# --- The sweeps of the workspace. Their studies are read by a process of its own, while somebody looks at them.


LIST_INTERVAL_MS = 2000
"""Between two looks for the first sweep, which needs no process."""
IDLE_MS = 30_000
"""How long the process is kept when nobody looks any more."""


class _ReaderProcess(ChildProcess):
    """`mosaic.features.sweeps.worker`. It ends when its standard input does, so also when the window is killed."""

    line_received = Signal(bytes)
    ended = Signal(str)

    def start(self, workspace: Workspace) -> None:
        self._buffer = b""
        argv = [sys.executable, "-P", "-m", "mosaic.features.sweeps.worker", str(workspace.root)]
        self._launch(argv, QProcess.ProcessChannelMode.SeparateChannels)

    def _on_output(self, output: bytes) -> None:
        *lines, self._buffer = (self._buffer + output).split(b"\n")
        for line in lines:
            self.line_received.emit(line)

    def _on_exit(self, how: str) -> None:
        self.ended.emit(how)

    def _on_failed_start(self, reason: str) -> None:
        self.ended.emit(reason)


class SweepsModel(QObject):
    changed = Signal()

    def __init__(self, workspace: Workspace, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.names: list[str] = []
        """The sweep changed last first."""
        self.states: dict[str, SweepState] = {}
        self.is_loaded = False
        self.problem = ""
        """Why no sweep can be read."""
        self._workspace = workspace
        self._bridge = bridge
        self._pending: list[bytes] = []
        self._is_decoding = False
        self._is_watched = False
        self._process = _ReaderProcess(self)
        self._process.line_received.connect(self._on_line)
        self._process.ended.connect(self._on_ended)
        self._list_timer = QTimer(self, singleShot=True, interval=LIST_INTERVAL_MS)
        self._list_timer.timeout.connect(self._list)
        self._idle_timer = QTimer(self, singleShot=True, interval=IDLE_MS)
        self._idle_timer.timeout.connect(self._process.stop)

    def watch(self) -> None:
        """Read the sweeps from now on."""
        self._is_watched = True
        self._idle_timer.stop()
        if not self._process.is_running:
            self._list()

    def suspend(self) -> None:
        """Nobody looks at them; the process ends after a while."""
        self._is_watched = False
        self._list_timer.stop()
        if self._process.is_running:
            self._idle_timer.start()

    def close(self) -> None:
        """End the process: the window closes."""
        self.suspend()
        self._idle_timer.stop()
        self._process.close()

    def listed(self) -> list[SweepState]:
        return [self.states[name] for name in self.names if name in self.states]

    # --- reading

    def _list(self) -> None:
        self._bridge.run_in_background(lambda: sweep_names(self._workspace), self._on_listed, self._on_failed, self)

    def _on_listed(self, names: Sequence[str]) -> None:
        if not self._is_watched or self._process.is_running:
            return
        if names:
            self._process.start(self._workspace)
            return
        self.names, self.states = [], {}
        self.is_loaded = True
        self.changed.emit()
        self._list_timer.start()

    def _on_failed(self, error: Exception) -> None:
        self._show_problem(str(error))

    def _show_problem(self, text: str) -> None:
        self.problem, self.is_loaded = text, True
        self.changed.emit()

    def _on_line(self, line: bytes) -> None:
        self._pending.append(line)
        self._decode_next()

    def _decode_next(self) -> None:
        """Decode one report after the other, in the background: a plan may have to ask a worker for its schema."""
        if self._is_decoding or not self._pending:
            return
        self._is_decoding = True
        line = self._pending.pop(0)
        self._bridge.run_in_background(lambda: _decode(line), self._on_decoded, self._on_decoding_failed, self)

    def _on_decoded(self, decoded: tuple[SweepReport, list[SweepState]]) -> None:
        self._is_decoding = False
        report, states = decoded
        self.problem = report.problem
        self.names = list(report.names)
        self.states |= {state.name: state for state in states}
        self.states = {name: state for name, state in self.states.items() if name in report.names}
        self.is_loaded = True
        self.changed.emit()
        self._decode_next()

    def _on_decoding_failed(self, error: Exception) -> None:
        self._is_decoding = False
        self._on_failed(error)
        self._decode_next()

    def _on_ended(self, how: str) -> None:
        if how != "exit code 0":  # then it has reported why
            self._show_problem(f"The process that reads sweeps ended ({how}). The reason: mosaic sweeps")


def _decode(line: bytes) -> tuple[SweepReport, list[SweepState]]:
    report = decode_report(line)
    return report, [read_state(snapshot) for snapshot in report.changed]


# --- Starts, stops and draws sweeps by the command line: only its processes import Optuna.


COMMAND_TIMEOUT_S = 180.0
"""Longer than a sweep that is cancelled may take to end."""
MAX_SHOWN_LINES = 6


class SweepCommands:
    """For the sweeps of a workspace, with the trainer that the window is connected to."""

    def __init__(self, workspace: Workspace, trainer_name: Callable[[], str] = lambda: "") -> None:
        """`trainer_name`: of a trainer on another machine; empty for that of this one."""
        self._workspace = workspace
        self._trainer_name = trainer_name

    @property
    def _trainer(self) -> str:
        return self._trainer_name() or LOCAL

    def folder(self, name: str) -> SweepFolder:
        return SweepFolder(self._workspace.sweeps / name)

    def shown_command(self, name: str) -> str:
        """What a person types to continue a sweep."""
        options = ["--var", str(self._workspace.root)]
        options += ["--trainer", self._trainer] if self._trainer != LOCAL else []
        return shlex.join(["mosaic", "sweep", str(self.folder(name).config), *options])

    def start(self, name: str) -> ProcessIdentity:
        """Start a process that continues a sweep, also when the window is closed."""
        folder = self.folder(name)
        # The shell only opens the files: it is replaced by the program, which keeps its id and has its own session.
        script = 'exec "$@" > "$0" 2>&1 < /dev/null'
        arguments = ["-c", script, str(folder.log), *self._command("sweep", "run", str(folder.config))]
        is_started, pid = QProcess.startDetached("/bin/sh", arguments, str(Path.cwd()))
        if not is_started:
            raise StorageFailed(f"The sweep {name!r} cannot be started: no process can be created.")
        return identify(int(pid))

    def read_log(self, name: str) -> str:
        """Return the last lines of the process that was started last."""
        try:
            lines = self.folder(name).log.read_text(errors="replace", encoding="utf-8").splitlines()
        except OSError:
            return ""
        return "\n".join([line for line in lines if line.strip()][-MAX_SHOWN_LINES:])

    def cancel(self, name: str) -> str:
        """End the process that runs a sweep, and cancel its running trials; for another thread."""
        folder = self.folder(name)
        count = json.loads(self._run("sweep", "run", str(folder.config), "--cancel", "--json"))["cancelled"]
        if not count:
            return f"No trial of {name} was running any more, so none was cancelled."
        trials = "1 running trial is" if count == 1 else f"{count} running trials are"
        return f"{name}: {trials} cancelled. Continue starts others in place of them."

    def plot(self, name: str, path: Path) -> str:
        """Draw a sweep into a file; for another thread."""
        self._run("sweep", "plot", name, "--out", str(path))
        return f"Wrote {path}."

    def _command(self, *arguments: str) -> list[str]:
        options = ["--var", str(self._workspace.root), "--trainer", self._trainer]
        return [sys.executable, "-P", "-m", "mosaic.cli", *arguments, *options]

    def _run(self, *arguments: str) -> str:
        """Return the output of a command; raises with its error message where it fails."""
        try:
            done = subprocess.run(
                self._command(*arguments),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NotAllowed(f"mosaic {' '.join(arguments[:2])} took more than {COMMAND_TIMEOUT_S:.0f} s.") from None
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise MosaicError("\n".join(lines[-MAX_SHOWN_LINES:]) or f"It ended with exit code {done.returncode}.")
        return done.stdout
