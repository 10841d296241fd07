"""`mosaic compare`: how good runs are, alone or in groups, how sure that is, and what differs between them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.cli.run_arguments import runs_argument
from mosaic.contracts.errors import BadInput, UnknownName, unknown_name_error
from mosaic.contracts.metric_tags import RETURN_TAG
from mosaic.contracts.run_kind import RunKind

if TYPE_CHECKING:
    from mosaic.client import TrainerClient
    from mosaic.statistics import ConfidenceInterval
    from mosaic.statistics.comparison import ComparedRun, Comparison, Settings

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView

Json = dict[str, Any]
EACH_RUN = "run"
CURVE_SMOOTHING = 0.9
SPARKLINE_WIDTH = 32


@command()
@runs_argument()
@click.option(
    "--by",
    metavar="SETTING",
    help=f"Group runs by this setting; {EACH_RUN!r}: no grouping.  [default: chosen from the settings that differ]",
)
@click.option("--tag", default=RETURN_TAG, metavar="METRIC", show_default=True, help="The metric to compare.")
@click.option(
    "--last",
    metavar="N",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="A run's score is the mean of its last N values.",
)
@pass_context
def compare(context: CliContext, runs: tuple[str, ...], by: str | None, tag: str, last: int) -> None:
    """Compares runs as the workbench's Compare page does. RUN may also be the name of a group.

    For each group: the mean over its runs with Student's 95 % interval, the interquartile mean (IQM) with a
    bootstrap interval, and how likely one of its runs is better than one of another group.
    """
    from mosaic.statistics import comparison

    trainer = context.trainer()
    views = resolve_runs(trainer, runs)
    entries = [_load_entry(trainer, view, title, tag) for view, title in zip(views, run_titles(views), strict=True)]
    _check_has_points(trainer, entries, tag)
    settings = [entry.settings for entry in entries]
    key = comparison.suggest_grouping_key(settings) if by is None else resolve_group_key(by, settings)
    found = comparison.compare(entries, key, CURVE_SMOOTHING, last)
    differing = comparison.differing_settings(settings)
    if context.is_json:
        output.print_json(comparison_to_json(found, entries, key, tag, last, differing))
        return
    _print_groups(found, key)
    _print_improvement_probabilities(found)
    _print_differences(found, entries, differing)


def resolve_runs(trainer: TrainerClient, names: tuple[str, ...]) -> list[RunView]:
    """Each run once, in the order given; those of a group from its first to its last."""
    views: dict[str, RunView] = {}
    for name in names:
        try:
            found = [trainer.get(name)]
        except UnknownName:
            found = trainer.runs(group=name)[::-1]
            if not found:
                raise
        views |= {view.run_id: view for view in found}
    return list(views.values())


def run_titles(views: list[RunView]) -> list[str]:
    """Titles that identify the runs; the id is always included."""
    short = output.short_ids([view.run_id for view in views])
    made = []
    for view in views:
        seed = None if view.seed is None else f"seed {view.seed}"
        kind = "eval" if view.kind == RunKind.POLICY_EVAL else None
        parts = (short[view.run_id], view.algo or view.worker, view.env_id, seed, kind)
        made.append(" · ".join(str(part) for part in parts if part))
    return made


def _load_entry(trainer: TrainerClient, view: RunView, title: str, tag: str) -> ComparedRun:
    import numpy as np

    from mosaic.statistics.comparison import ComparedRun
    from mosaic.submission.run_settings import comparison_settings

    parts = list(trainer.metrics(view.run_id, [tag]))
    steps = np.array([step for part in parts for step in part.steps], np.float64)
    values = np.array([value for part in parts for value in part.values], np.float64)
    settings = comparison_settings(view, trainer.config(view.run_id))
    return ComparedRun(view.run_id, title, settings, steps, values, values)


def _check_has_points(trainer: TrainerClient, entries: list[ComparedRun], tag: str) -> None:
    """Where none has a point of it, the name is probably wrong; runs that have logged nothing have no score."""
    if any(len(entry.returns) for entry in entries):
        return
    known = {part.tag for entry in entries for part in trainer.metrics(entry.run_id, last_only=True)}
    if known and tag != RETURN_TAG:
        raise unknown_name_error("metric", tag, known, "these runs")
    raise BadInput("None of these runs has finished an episode yet: there is nothing to compare.")


def resolve_group_key(name: str, settings: list[Settings]) -> str:
    from mosaic.statistics.comparison import NO_GROUPING

    wanted = name.replace("-", "_")
    if wanted == EACH_RUN:
        return NO_GROUPING
    known = {key for one in settings for key in one}
    if wanted not in known:
        raise unknown_name_error("setting", name, known | {EACH_RUN}, "these runs")
    return wanted


def comparison_to_json(
    comparison: Comparison, entries: list[ComparedRun], key: str, tag: str, last: int, differing: dict[str, list[Any]]
) -> Json:
    groups = [
        {
            "name": group.name,
            "runs": group.run_ids,
            "n": len(group.run_ids),
            "mean": group.final_return.point,
            "mean_ci95": [group.final_return.low, group.final_return.high],
            "iqm": group.iqm.point,
            "iqm_ci95": [group.iqm.low, group.iqm.high],
        }
        for group in comparison.groups
    ]
    better = [
        {"one": one, "other": other, "probability": value.point, "ci95": [value.low, value.high]}
        for (one, other), value in comparison.improvement_probability.items()
    ]
    return {
        "tag": tag,
        "last": last,
        "by": key or EACH_RUN,
        "runs": [entry.run_id for entry in entries],
        "groups": groups,
        "is_scaled": comparison.is_normalized,
        "probability_of_improvement": better,
        "differences": differing,
    }


# --- for people


def _print_groups(comparison: Comparison, key: str) -> None:
    from mosaic.statistics.comparison import strip_common_parts

    iqm = "IQM, SCALED [95 %]" if comparison.is_normalized else "IQM [95 %]"
    short = strip_common_parts([group.name for group in comparison.groups]) if not key else {}
    columns = ["GROUP" if key else "RUN", "RUNS", "MEAN [95 %]", iqm, "CURVE"]
    if not key:
        columns.remove("RUNS")
    table = output.create_table(*columns, right_aligned=("RUNS",), truncate=(columns[0],))
    known = [float(value) for group in comparison.groups for value in group.curve.mean if math.isfinite(value)]
    bounds = (min(known), max(known)) if known else None
    for group in comparison.groups:
        cells = [
            short.get(group.name, group.name),
            format_with_interval(group.final_return),
            format_with_interval(group.iqm),
        ]
        if key:
            cells.insert(1, str(len(group.run_ids)))
        table.add_row(*cells, output.sparkline(group.curve.mean.tolist(), SPARKLINE_WIDTH, bounds))
    output.console().print(table)


def _print_improvement_probabilities(comparison: Comparison) -> None:
    if not comparison.improvement_probability:
        return
    names = [group.name for group in comparison.groups]
    screen = output.console()
    screen.print("\nHow likely a run of the row is better than one of the column [95 %]", style="bold")
    table = output.create_table("", *names)
    for one in names:
        values = [comparison.improvement_probability.get((one, other)) for other in names]
        table.add_row(one, *(output.PLACEHOLDER if value is None else format_probability(value) for value in values))
    screen.print(table)


def _print_differences(comparison: Comparison, entries: list[ComparedRun], differing: dict[str, list[Any]]) -> None:
    """For each group the values that its runs have."""
    from mosaic.statistics.comparison import format_value

    if not differing:
        return
    place = {entry.run_id: at for at, entry in enumerate(entries)}
    heads = [group.name.partition(" · ")[0] for group in comparison.groups]
    screen = output.console()
    screen.print("\nWhat differs", style="bold")
    table = output.create_table("SETTING", *heads, wrap=heads)
    for name, row in differing.items():
        cells = [
            ", ".join(dict.fromkeys(format_value(row[place[run]]) for run in group.run_ids))
            for group in comparison.groups
        ]
        table.add_row(name, *cells)
    screen.print(table)


def format_with_interval(value: ConfidenceInterval) -> str:
    """`482.1 [450.2, 500]`; without the interval where there is none."""
    if not math.isfinite(value.point):
        return output.PLACEHOLDER
    if not math.isfinite(value.low) or value.low == value.high:
        return output.format_number(value.point)
    return (
        f"{output.format_number(value.point)} [{output.format_number(value.low)}, {output.format_number(value.high)}]"
    )


def format_probability(value: ConfidenceInterval) -> str:
    return f"{value.point:.2f} [{value.low:.2f}, {value.high:.2f}]"
