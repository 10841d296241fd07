"""Compares runs, alone or in groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mosaic.base import comparison
from mosaic.base.comparison import (
    NO_GROUPING,
    SETTING_KEY,
    ComparedRun,
    Comparison,
    RunGroup,
    ScoreKind,
    cut_at_common_step,
    describe_progress,
    describe_seeds,
    run_progress,
)
from mosaic.base.formatting import short_ids
from mosaic.base.run_payloads import comparison_settings
from mosaic.base.scores import LAST_EPISODES, Aggregates, ScoreRange, aggregate_groups
from mosaic.contracts.errors import BadInput, unknown_name_error
from mosaic.contracts.names import RETURN_TAG
from mosaic.contracts.options import RunKind
from mosaic.contracts.printable import make_printable
from mosaic.features.experiments.core import environment_label, select_ranges
from mosaic.features.runs.api_run import empty_series, html_table, join_series, make_frame
from mosaic.trainer.client.run_lookup import resolve_name, split_superseded

if TYPE_CHECKING:
    import pandas as pd

    from mosaic.contracts.views import RunView
    from mosaic.trainer.client.trainer_client import TrainerClient

EACH_RUN = "run"
CURVE_SMOOTHING = 0.9


@dataclass(frozen=True)
class ComparisonResult:
    """Scores of groups of runs, with confidence intervals."""

    tag: str
    last: int | None
    """A run's score is the mean of this many of its last values; None for another kind of score."""
    by: str
    """The setting that runs are grouped by; empty where each run is its own group."""
    statistics: Comparison
    """The groups (`groups`), best first, and how likely one is better than another (`improvement_probability`)."""
    entries: tuple[ComparedRun, ...]
    differences: dict[str, list[Any]]
    """The settings that differ: one value per run, in the order of `entries`."""
    environments: dict[str, Comparison]
    """By environment: the same for its runs alone; empty where all runs are on one."""
    aggregates: Aggregates | None
    """Normalized scores over all environments; None for one, or where the groups have none in common."""
    superseded: int = 0
    """Runs of the groups that were left out, since later ones of their experiment replaced them."""
    score: ScoreKind = ScoreKind.FINAL
    """What the score of a run is."""
    common_steps: dict[str, float] = field(default_factory=dict)
    """By environment: the step at which its runs were compared; empty where all their points were."""

    @property
    def notes(self) -> list[str]:
        """Sentences about runs that are unfinished or shorter than others, the common step, and missing seeds."""
        return describe_progress(self.entries, self.common_steps) + describe_seeds(self.entries, self.statistics.groups)

    @property
    def scored_groups(self) -> list[tuple[str, RunGroup]]:
        """The groups of each environment, best first, with its name."""
        if not self.environments:
            task = next((entry.task for entry in self.entries), "")
            return [(task, group) for group in self.statistics.groups]
        return [(name, group) for name, compared in self.environments.items() for group in compared.groups]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per environment and group, best first. Requires pandas."""
        rows = self.scored_groups
        return make_frame(
            {
                "environment": [name for name, _ in rows],
                "group": [group.name for _, group in rows],
                "runs": [len(group.run_ids) for _, group in rows],
                "mean": [group.final_return.point for _, group in rows],
                "mean_low": [group.final_return.low for _, group in rows],
                "mean_high": [group.final_return.high for _, group in rows],
                "iqm": [group.iqm.point for _, group in rows],
                "iqm_low": [group.iqm.low for _, group in rows],
                "iqm_high": [group.iqm.high for _, group in rows],
            }
        )

    def __repr__(self) -> str:
        groups = ", ".join(
            f"{group.name}{f' on {name}' if self.environments else ''}: {group.final_return}"
            for name, group in self.scored_groups
        )
        return make_printable(f"<ComparisonResult of {self.tag}, by {self.by or EACH_RUN}: {groups}>")

    def _repr_html_(self) -> str:
        rows = [
            (
                name,
                group.name,
                len(group.run_ids),
                *(f"{value:.6g}" for value in group.final_return),
                f"{group.iqm.point:.6g}",
            )
            for name, group in self.scored_groups
        ]
        return html_table(("environment", "group", "runs", "mean", "95 % low", "95 % high", "IQM"), rows)


def compare_runs(
    trainer: TrainerClient,
    runs: Sequence[str],
    by: str | None = None,
    tag: str = RETURN_TAG,
    last: int | None = None,
    env_id: str = "",
    reference: dict[str, ScoreRange] | None = None,
    score: str = ScoreKind.FINAL,
    common_step: bool = False,
) -> ComparisonResult:
    """Compare runs, named by ids or groups, grouped by a setting (`run`: each alone; None: what separates them).

    A run's score is the mean of its `last` values (100 by default), or with `area` of its curve over all steps. With
    `env_id`, only the runs on that environment. Scores on several environments are normalized on each from the worst to
    the best of these runs, or by `reference`. With `common_step`, points after the largest step that all runs of an
    environment have reached are left out.
    """
    kind = _parse_score(score, last)
    named, superseded = find_compared(trainer, runs)
    views = [view for view in named if env_id in (view.env_id, environment_label(view))] if env_id else named
    if not views:
        raise unknown_name_error("environment", env_id, {view.env_id for view in named if view.env_id}, "these runs")
    entries = _load_entries(trainer, views, tag)
    _check_has_points(trainer, entries, tag)
    return compare_entries(entries, by, tag, last, reference, len(superseded), kind=kind, is_cut=common_step)


def compare_entries(
    entries: Sequence[ComparedRun],
    by: str | None = None,
    tag: str = RETURN_TAG,
    last: int | None = None,
    reference: dict[str, ScoreRange] | None = None,
    superseded: int = 0,
    smoothing: float = CURVE_SMOOTHING,
    is_brief: bool = False,
    kind: ScoreKind = ScoreKind.FINAL,
    is_cut: bool = False,
) -> ComparisonResult:
    """Compare runs whose points were read already, as `compare_runs` does; `is_cut`: up to their common step.

    `is_brief`: without probabilities of improvement and normalized scores, which take most of the time.
    """
    entries, common_steps = cut_at_common_step(entries) if is_cut else (entries, {})
    settings = [entry.settings for entry in entries]
    key = suggest_key(settings) if by is None else resolve_group_key(by, settings)
    last = (last or LAST_EPISODES) if kind is ScoreKind.FINAL else None
    scores = comparison.area_scores(entries) if last is None else comparison.final_scores(entries, last)
    statistics = comparison.compare(entries, key, smoothing, scores, not is_brief)
    differences = comparison.differing_settings(settings)
    differences.pop(SETTING_KEY, None)
    tasks = sorted({entry.task for entry in entries})
    by_environment = {task: [entry for entry in entries if entry.task == task] for task in tasks}
    return ComparisonResult(
        tag,
        last,
        key,
        statistics,
        tuple(entries),
        differences,
        {task: comparison.compare(own, key, smoothing, scores, not is_brief) for task, own in by_environment.items()}
        if len(tasks) > 1
        else {},
        None if is_brief else _aggregate(entries, key, scores, reference),
        superseded,
        kind,
        common_steps,
    )


def _parse_score(name: str, last: int | None) -> ScoreKind:
    if name not in tuple(ScoreKind):
        raise unknown_name_error("score", name, map(str, ScoreKind))
    if last is not None and last < 1:
        raise BadInput(f"last: {last} values have no mean; expected a whole number of at least 1.")
    if name == ScoreKind.AREA and last is not None:
        raise BadInput("The score 'area' is the mean over all steps, so `last` has no effect. Leave out one of both.")
    return ScoreKind(name)


def suggest_key(settings: Sequence[comparison.Settings]) -> str:
    """Return what separates the runs besides the environment, which separates them anyway."""
    key = comparison.suggest_grouping_key(settings)
    return "algo" if key == "env_id" and all(one.get("algo") for one in settings) else key


def find_compared(trainer: TrainerClient, names: Sequence[str]) -> tuple[list[RunView], list[RunView]]:
    """Return the runs to compare, and those of groups that later ones of their experiment replaced."""
    current: dict[str, RunView] = {}
    superseded: dict[str, RunView] = {}
    for name in names:
        views, is_group = resolve_name(trainer, name)
        counted, replaced = split_superseded(views) if is_group else (views, [])
        current |= {view.run_id: view for view in counted}
        superseded |= {view.run_id: view for view in replaced}
    return list(current.values()), [view for view in superseded.values() if view.run_id not in current]


def _aggregate(
    entries: Sequence[ComparedRun], key: str, run_scores: dict[str, float], reference: dict[str, ScoreRange] | None
) -> Aggregates | None:
    ranges = comparison.score_ranges(entries, run_scores)
    if reference is not None:
        ranges = select_ranges(reference, ranges)
    elif len(ranges) < 2:
        return None
    scores = {
        name: comparison.scores_by_task(group, run_scores)
        for name, group in comparison.group_entries(entries, key).items()
    }
    # A group without any score would leave no environment that all groups have.
    scores = {name: tasks for name, tasks in scores.items() if tasks}
    return aggregate_groups(scores, ranges, reference is not None)


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


def _load_entries(trainer: TrainerClient, views: Sequence[RunView], tag: str) -> list[ComparedRun]:
    has_groups = len({view.group for view in views if view.experiment is not None}) > 1
    return [
        _load_entry(trainer, view, title, tag, has_groups) for view, title in zip(views, run_titles(views), strict=True)
    ]


def _load_entry(trainer: TrainerClient, view: RunView, title: str, tag: str, has_groups: bool) -> ComparedRun:
    series = join_series(trainer.metrics(view.run_id, [tag])).get(tag) or empty_series(tag)
    settings = comparison_settings(view, trainer.config(view.run_id))
    if view.experiment is not None:
        setting = view.experiment.setting
        settings[SETTING_KEY] = f"{view.group}: {setting}" if has_groups else setting
    steps = series.steps.astype(np.float64)
    task, progress = environment_label(view), run_progress(view)
    return ComparedRun(view.run_id, title, settings, steps, series.values, series.values, task, progress)


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
