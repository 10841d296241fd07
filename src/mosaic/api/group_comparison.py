"""Compares runs, alone or in groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mosaic.api.metric_arrays import empty_series, html_table, join_series, make_frame
from mosaic.api.run_lookup import resolve_runs
from mosaic.contracts.errors import BadInput, unknown_name_error
from mosaic.contracts.metric_tags import RETURN_TAG
from mosaic.contracts.options import RunKind
from mosaic.formatting import short_ids
from mosaic.statistics import comparison
from mosaic.statistics.comparison import NO_GROUPING, ComparedRun, Comparison
from mosaic.submission.run_payloads import comparison_settings

if TYPE_CHECKING:
    import pandas as pd

    from mosaic.client import TrainerClient
    from mosaic.contracts.views import RunView

EACH_RUN = "run"
CURVE_SMOOTHING = 0.9


@dataclass(frozen=True)
class ComparisonResult:
    """Scores of groups of runs, with confidence intervals."""

    tag: str
    last: int
    """A run's score is the mean of this many of its last values."""
    by: str
    """The setting that runs are grouped by; empty where each run is its own group."""
    statistics: Comparison
    """The groups (`groups`), best first, and how likely one is better than another (`improvement_probability`)."""
    entries: tuple[ComparedRun, ...]
    differences: dict[str, list[Any]]
    """The settings that differ: one value per run, in the order of `entries`."""

    def to_frame(self) -> pd.DataFrame:
        """Return one row per group, best first. Requires pandas."""
        groups = self.statistics.groups
        return make_frame(
            {
                "group": [group.name for group in groups],
                "runs": [len(group.run_ids) for group in groups],
                "mean": [group.final_return.point for group in groups],
                "mean_low": [group.final_return.low for group in groups],
                "mean_high": [group.final_return.high for group in groups],
                "iqm": [group.iqm.point for group in groups],
                "iqm_low": [group.iqm.low for group in groups],
                "iqm_high": [group.iqm.high for group in groups],
            }
        )

    def __repr__(self) -> str:
        groups = ", ".join(f"{group.name}: {group.final_return.point:.6g}" for group in self.statistics.groups)
        return f"<ComparisonResult of {self.tag}, by {self.by or EACH_RUN}: {groups}>"

    def _repr_html_(self) -> str:
        rows = [
            (
                group.name,
                len(group.run_ids),
                *(f"{value:.6g}" for value in group.final_return),
                f"{group.iqm.point:.6g}",
            )
            for group in self.statistics.groups
        ]
        return html_table(("group", "runs", "mean", "95 % low", "95 % high", "IQM"), rows)


def compare_runs(
    trainer: TrainerClient,
    runs: Sequence[str],
    by: str | None = None,
    tag: str = RETURN_TAG,
    last: int = 100,
    env_id: str = "",
) -> ComparisonResult:
    """Compare runs, named by ids or groups, grouped by a setting (`run`: each alone; None: what separates them).

    With `env_id`, only the runs on that environment.
    """
    named = resolve_runs(trainer, runs)
    views = [view for view in named if view.env_id == env_id] if env_id else named
    if not views:
        raise unknown_name_error("environment", env_id, {view.env_id for view in named if view.env_id}, "these runs")
    entries = [_load_entry(trainer, view, title, tag) for view, title in zip(views, run_titles(views), strict=True)]
    _check_has_points(trainer, entries, tag)
    settings = [entry.settings for entry in entries]
    key = comparison.suggest_grouping_key(settings) if by is None else resolve_group_key(by, settings)
    statistics = comparison.compare(entries, key, CURVE_SMOOTHING, last)
    return ComparisonResult(tag, last, key, statistics, tuple(entries), comparison.differing_settings(settings))


def run_titles(views: Sequence[RunView]) -> list[str]:
    """Return titles that distinguish runs; the id always does."""
    short = short_ids([view.run_id for view in views])
    titles = []
    for view in views:
        seed = None if view.seed is None else f"seed {view.seed}"
        kind = "eval" if view.kind == RunKind.POLICY_EVAL else None
        parts = (short[view.run_id], view.algo or view.worker, view.env_id, seed, kind)
        titles.append(" · ".join(str(part) for part in parts if part))
    return titles


def _load_entry(trainer: TrainerClient, view: RunView, title: str, tag: str) -> ComparedRun:
    series = join_series(trainer.metrics(view.run_id, [tag])).get(tag) or empty_series(tag)
    settings = comparison_settings(view, trainer.config(view.run_id))
    return ComparedRun(view.run_id, title, settings, series.steps.astype(np.float64), series.values, series.values)


def _check_has_points(trainer: TrainerClient, entries: Sequence[ComparedRun], tag: str) -> None:
    """If no run has a point of it, the name is probably wrong; runs that have logged nothing have no score."""
    if any(len(entry.returns) for entry in entries):
        return
    known = {part.tag for entry in entries for part in trainer.metrics(entry.run_id, last_only=True)}
    if known and tag != RETURN_TAG:
        raise unknown_name_error("metric", tag, known, "these runs")
    raise BadInput("None of these runs has finished an episode yet: there is nothing to compare.")


def resolve_group_key(name: str, settings: Sequence[Any]) -> str:
    key = name.replace("-", "_")
    if key == EACH_RUN:
        return NO_GROUPING
    known = {key for one in settings for key in one}
    if key not in known:
        raise unknown_name_error("setting", name, known | {EACH_RUN}, "these runs")
    return key
