"""A sweep as the window shows it: its plan, its trials, and whether a process runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from mosaic.api.sweeps.search_space import Dimension
from mosaic.api.sweeps.sweep_config import parse_sweep
from mosaic.api.sweeps.sweep_plan import SweepPlan, plan_sweep
from mosaic.api.sweeps.sweep_result import ENDED_STATUSES, best_trial, format_param, format_trial_counts
from mosaic.api.sweeps.sweep_snapshot import SweepSnapshot
from mosaic.api.sweeps.trial_row import MIN_TRIALS_FOR_IMPORTANCE, TrialRow, TrialStatus
from mosaic.contracts.errors import MosaicError
from mosaic.formatting import format_si_number

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
