"""The row of a group in the list of runs: how many of its runs are done, and their mean return."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mosaic.api.experiment_state import format_counts, split_superseded
from mosaic.contracts.views import RunView
from mosaic.formatting import PLACEHOLDER, format_si_number, progress_fraction

STATE_ORDER = (
    *("running", "stalled", "paused", "starting", "stopping", "queued"),
    *("failed", "lost", "rejected", "succeeded", "ended", "cancelled"),
)
"""The state of a group is the first of these that one of its runs has."""


@dataclass(frozen=True)
class GroupSummary:
    name: str
    line: str
    """`18 of 30 done, 2 failed`."""
    mean_return: float | None
    """Over its runs of the last mean return; None where none has one, or their environments differ."""
    fraction: float | None
    """How much of the work of all its runs is done."""
    state: str
    """The state that matters most: of a run that is active, else of one that has failed, else of the others."""
    has_several_environments: bool = False
    is_archived: bool = False

    def text(self, column_id: str) -> str:
        if column_id == "name":
            return f"{self.name}: {self.line}"
        if column_id == "return":
            return "" if self.has_several_environments else format_si_number(self.mean_return)
        if column_id == "progress":
            return PLACEHOLDER if self.fraction is None else f"{100 * self.fraction:.0f}%"
        return ""

    @property
    def tooltip(self) -> str:
        mean = f"Mean return of its runs: {format_si_number(self.mean_return)}"
        if self.has_several_environments:
            mean = "Its runs have different environments, so there is no mean return"
        return f"{self.name}\n{self.line}\n{mean}\nReturn shows the whole group, Right and Left unfold and fold it"


def summarize_group(name: str, views: Iterable[RunView]) -> GroupSummary:
    """Summarize the runs of a group that count: later attempts of an experiment replace earlier ones."""
    current, _ = split_superseded(sorted(views, key=lambda view: view.age_key, reverse=True))
    returns = [view.episodic_return for view in current if view.episodic_return is not None]
    fractions = [fraction for view in current if (fraction := progress_fraction(view)) is not None]
    has_progress = bool(fractions)
    fractions += [0.0 for view in current if progress_fraction(view) is None and view.global_step is None]
    several = len({view.env_id for view in current}) > 1
    return GroupSummary(
        name,
        format_counts([view.status for view in current]),
        sum(returns) / len(returns) if returns and not several else None,
        sum(fractions) / len(fractions) if has_progress else None,
        _main_state(current),
        several,
        all(view.is_archived for view in current),
    )


def _main_state(views: list[RunView]) -> str:
    statuses = {view.status for view in views}
    return next((state for state in STATE_ORDER if state in statuses), "cancelled")
