"""How far an experiment is: its planned runs, each with the newest run that was submitted for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from mosaic.contracts.states import ENDED, Outcome, Stage

if TYPE_CHECKING:
    from mosaic.contracts.experiment_member import ExperimentMember
    from mosaic.contracts.views import RunView
    from mosaic.submission.experiment_plan import ExperimentPlan, PlannedRun

Key = TypeVar("Key", bound=Hashable)

MISSING = "missing"
STATUS_ORDER = (
    *("failed", "rejected", "lost", "cancelled", "running", "stalled", "paused", "starting", "stopping", "queued"),
    MISSING,
)
"""The order in which a progress line counts runs that are not done."""
COUNTED = {
    "done": ("succeeded", ENDED),
    "running": ("starting", "running", "stalled", "paused", "stopping"),
    "queued": ("queued",),
    "failed": ("failed", "rejected", "lost"),
    "cancelled": ("cancelled",),
    MISSING: (MISSING,),
}
"""By column of a table: the statuses of runs that it counts."""


@dataclass(frozen=True)
class ExperimentRun:
    """A run of an experiment's file, and what was submitted for it."""

    planned: PlannedRun
    view: RunView | None
    """The newest attempt; None where none was submitted, or it was deleted."""

    @property
    def status(self) -> str:
        return MISSING if self.view is None else self.view.status

    @property
    def is_unsuccessful(self) -> bool:
        """Whether its last attempt has ended without success."""
        return self.view is not None and self.view.stage is Stage.FINISHED and not is_done(self.view)

    @property
    def next_attempt(self) -> int:
        return 1 if self.view is None or self.view.experiment is None else self.view.experiment.attempt + 1


def is_done(view: RunView) -> bool:
    return view.outcome is Outcome.SUCCEEDED


def match_runs(plan: ExperimentPlan, views: Iterable[RunView]) -> list[ExperimentRun]:
    """Find the newest attempt of each planned run among the runs of the group."""
    newest = _newest_by(views, lambda member: member.key)
    return [ExperimentRun(planned, newest.get(planned.key)) for planned in plan.runs]


def choose_submissions(runs: Sequence[ExperimentRun], is_retry: bool) -> list[tuple[PlannedRun, int]]:
    """Return what is to be submitted, each with its attempt: missing runs, and with `is_retry` those that failed."""
    return [(run.planned, run.next_attempt) for run in runs if run.view is None or (is_retry and run.is_unsuccessful)]


def split_superseded(views: Sequence[RunView]) -> tuple[list[RunView], list[RunView]]:
    """Divide the runs of a group into those that count and those that later ones of its experiment replaced.

    A later attempt replaces an earlier one. Where the settings behind a label were changed, the runs with the settings
    of the newest run of that label and environment count.
    """
    groups: dict[str | None, list[RunView]] = {}
    for view in views:
        groups.setdefault(view.group, []).append(view)
    replaced: set[str] = set()
    for members in groups.values():
        attempts = _newest_by(members, lambda member: member.key)
        cells = _newest_by(members, lambda member: (member.setting, member.environment))
        for view in members:
            if (member := view.experiment) is None:
                continue
            newest = cells[member.setting, member.environment].experiment
            if attempts[member.key] is not view or newest is None or newest.settings_key != member.settings_key:
                replaced.add(view.run_id)
    current = [view for view in views if view.run_id not in replaced]
    return current, [view for view in views if view.run_id in replaced]


@dataclass(frozen=True)
class SettingRow:
    """The runs of a group with one setting on one environment."""

    setting: str
    environment: str
    views: Sequence[RunView]
    statuses: Sequence[str]
    """Of these runs, and of those that are missing."""

    @property
    def total_steps(self) -> int:
        """Environment steps that all of its runs have taken."""
        return sum(view.global_step or 0 for view in self.views)

    @property
    def mean_return(self) -> float | None:
        """The mean over its runs of the last return; None where no episode has ended."""
        known = [view.episodic_return for view in self.views if view.episodic_return is not None]
        return sum(known) / len(known) if known else None

    @property
    def counts(self) -> dict[str, int]:
        return count_statuses(self.statuses)


def setting_label(view: RunView) -> str:
    """How results name the algorithm of a run and its settings."""
    return view.experiment.setting if view.experiment is not None else view.algo or view.worker


def environment_label(view: RunView) -> str:
    return view.experiment.environment if view.experiment is not None else view.env_id or ""


def rows_by_setting(views: Iterable[RunView], label_of: Callable[[RunView], str] = setting_label) -> list[SettingRow]:
    """Return one row for each setting and environment, in the order in which they were submitted."""
    members: dict[tuple[str, str], list[RunView]] = {}
    for view in sorted(views, key=lambda view: view.age_key):
        members.setdefault((label_of(view), environment_label(view)), []).append(view)
    return [SettingRow(*labels, own, [view.status for view in own]) for labels, own in members.items()]


def count_statuses(statuses: Sequence[str]) -> dict[str, int]:
    """By the columns of a table (`COUNTED`): how many runs each counts."""
    numbers = Counter(statuses)
    return {name: sum(numbers[status] for status in counted) for name, counted in COUNTED.items()}


def _newest_by(views: Iterable[RunView], key_of: Callable[[ExperimentMember], Key]) -> dict[Key, RunView]:
    """Return the newest run of an experiment for each key; ids sort by time."""
    newest: dict[Key, RunView] = {}
    for view in sorted(views, key=lambda view: (view.experiment.attempt if view.experiment else 0, view.age_key)):
        if view.experiment is not None:
            newest[key_of(view.experiment)] = view
    return newest


def format_counts(statuses: Sequence[str]) -> str:
    """`18 of 30 done, 2 failed, 4 running, 6 queued`."""
    counts = Counter(statuses)
    rest = [f"{counts[status]} {status}" for status in STATUS_ORDER if counts[status]]
    return ", ".join([f"{counts[str(Outcome.SUCCEEDED)] + counts[ENDED]} of {len(statuses)} done", *rest])
