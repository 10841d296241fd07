"""The comparison of the compare page: what is compared, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mosaic.api.experiment_state import environment_label
from mosaic.contracts.metric_tags import RETURN_TAG
from mosaic.contracts.views import RunView
from mosaic.formatting import count_noun, run_title
from mosaic.gui.models.curve_model import x_values
from mosaic.gui.models.series import GrowingPoints
from mosaic.statistics.comparison import (
    NO_GROUPING,
    ComparedRun,
    Comparison,
    RunGroup,
    Settings,
    compare,
    group_entries,
    shorten_titles,
)
from mosaic.statistics.run_progress import (
    cut_at_common_step,
    describe_progress,
    describe_seeds,
    describe_tails,
    run_progress,
)

MAX_DISTINCT = 16
"""How many runs or groups of one chart have colors of their own. Of more groups, the best ones have; and no
probabilities of improvement are computed, whose number grows with the square."""


@dataclass(frozen=True)
class ComparisonChoice:
    """What the user has chosen."""

    tag: str = RETURN_TAG
    key: str = NO_GROUPING
    x_kind: str = "step"
    smoothing: float = 0.0
    is_cut: bool = False
    """Whether points after the common step are left out."""


class RunSnapshot(NamedTuple):
    view: RunView
    settings: Settings
    tags: Mapping[str, GrowingPoints]


@dataclass(frozen=True)
class ComparedRuns:
    choice: ComparisonChoice
    comparison: Comparison
    entries: Sequence[ComparedRun]
    common_steps: Mapping[str, float]

    @property
    def named_groups(self) -> list[RunGroup]:
        """The best ones, as many as can be told apart in a chart."""
        return self.comparison.groups[:MAX_DISTINCT]

    @property
    def other_groups(self) -> list[RunGroup]:
        return self.comparison.groups[MAX_DISTINCT:]

    def labels(self) -> dict[str, str]:
        """Of the groups, by name."""
        if self.choice.key == NO_GROUPING:
            short = shorten_titles({entry.run_id: entry.title for entry in self.entries})
            return {entry.title: short[entry.run_id] for entry in self.entries}
        return {
            group.name: f"{group.name} ({count_noun(len(group.run_ids), 'run')})" for group in self.comparison.groups
        }

    def notes(self, format_x: Callable[[float], str]) -> list[str]:
        """Sentences about unfinished runs and what the chart leaves out."""
        notes = describe_progress(self.entries, self.common_steps)
        if tails := describe_tails(self.comparison, format_x):
            notes.append(f"{tails} Beyond that, the dotted line is the mean of the runs that are left.")
        if others := len(self.other_groups):
            what = "runs" if self.choice.key == NO_GROUPING else "groups"
            notes.append(f"The best {MAX_DISTINCT} of {MAX_DISTINCT + others:,} {what} have colors; the table has all.")
        return notes + describe_seeds(self.entries, self.comparison.groups)


def needed_tags(choice: ComparisonChoice, tags: Mapping[str, GrowingPoints]) -> dict[str, GrowingPoints]:
    """Return copies of the points that a comparison reads, for another thread."""
    # Time is relative to the first point of all tags.
    needed = tags if choice.x_kind == "relative" else tags.keys() & {choice.tag, RETURN_TAG}
    return {tag: tags[tag].snapshot() for tag in needed}


def compare_snapshots(snapshots: Sequence[RunSnapshot], choice: ComparisonChoice) -> ComparedRuns:
    entries = [_comparison_entry(snapshot, choice) for snapshot in snapshots]
    common: dict[str, float] = {}
    if choice.is_cut:
        entries, common = cut_at_common_step(entries)
    has_probabilities = len(group_entries(entries, choice.key)) <= MAX_DISTINCT
    compared = compare(entries, choice.key, choice.smoothing, has_probabilities=has_probabilities)
    return ComparedRuns(choice, compared, entries, common)


def _comparison_entry(snapshot: RunSnapshot, choice: ComparisonChoice) -> ComparedRun:
    view, settings, tags = snapshot
    nothing = np.empty(0)
    x = y = steps = nothing
    if choice.tag in tags:
        x = x_values(tags, choice.tag, choice.x_kind)
        order = np.argsort(x, kind="stable")
        x, y, steps = x[order], tags[choice.tag].value[order], tags[choice.tag].step[order]
    returns = tags.get(RETURN_TAG)
    return ComparedRun(
        view.run_id,
        run_title(view),
        settings,
        x,
        y,
        nothing if returns is None else returns.value,
        environment_label(view),
        run_progress(view),
        steps,
        nothing if returns is None else returns.step,
    )
