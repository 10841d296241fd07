"""`mosaic compare` and `mosaic leaderboard`: how good runs and their policies are, and how certain that is."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mosaic.base import formatting
from mosaic.base.comparison import Comparison, ScoreKind, describe_tails, format_value, strip_common_parts
from mosaic.base.curves import ConfidenceInterval
from mosaic.base.scores import Aggregates
from mosaic.cli import output
from mosaic.cli.context import CliContext, command, pass_context
from mosaic.cli.intervals import format_interval, format_with_interval
from mosaic.cli.parameters import AnyFunction, runs_argument
from mosaic.contracts.errors import unknown_name_error
from mosaic.contracts.names import RETURN_TAG
from mosaic.features.evaluate.core import LeaderboardEntry, rank_policies
from mosaic.features.experiments.core_comparison import EACH_RUN, ComparisonResult, compare_runs

if TYPE_CHECKING:
    from rich.table import Table

SPARKLINE_WIDTH = 32
LEADERBOARD_COLUMNS = ("RANK", "POLICY", "ALGO", "STEP", "EPISODES", "MEAN", "95 %", "IQM", "EVALUATED")
LEADERBOARD_RIGHT_ALIGNED = ("RANK", "STEP", "EPISODES", "MEAN", "IQM", "EVALUATED")


def comparison_options(function: AnyFunction) -> AnyFunction:
    """Adds the flags that choose and group the compared runs, passed as `choices` to `run_comparison`."""
    for option in (
        click.option(
            "--reference-scores",
            "reference_file",
            metavar="FILE",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Normalize by these returns instead of the worst and the best run. "
            "YAML: CartPole-v1: {low: 20, high: 500}",
        ),
        click.option(
            "--last",
            metavar="N",
            type=click.IntRange(1),
            help="A run's final score is the mean of its last N values.  [default: 100]",
        ),
        click.option(
            "--score",
            type=click.Choice([str(kind) for kind in ScoreKind]),
            default=str(ScoreKind.FINAL),
            show_default=True,
            help="What the score of a run is: the mean of its last values, or of its curve over all steps, which is "
            "higher for one that learns earlier.",
        ),
        click.option(
            "--common-step",
            is_flag=True,
            help="Compare all runs at the largest step that all of an environment have reached: later points are left "
            "out.",
        ),
        click.option("--tag", default=RETURN_TAG, metavar="METRIC", show_default=True, help="The metric to compare."),
        click.option("--env", "env_id", default="", metavar="ENV", help="Only runs on this environment."),
        click.option(
            "--by",
            metavar="SETTING",
            help=f"Group runs by this setting; {EACH_RUN!r}: no grouping.  "
            "[default: chosen from the settings that differ]",
        ),
    ):
        function = option(function)
    return function


def run_comparison(context: CliContext, runs: tuple[str, ...], choices: Mapping[str, Any]) -> ComparisonResult:
    """Compares what the arguments and the flags of `comparison_options` name."""
    from mosaic.features.experiments.core import read_reference_scores

    named = dict(choices)
    file = named.pop("reference_file")
    reference = None if file is None else read_reference_scores(file)
    return compare_runs(context.trainer(), runs, reference=reference, **named)


@command()
@runs_argument()
@comparison_options
@pass_context
def compare(context: CliContext, /, runs: tuple[str, ...], **choices: object) -> None:
    """Compares runs as the workbench's Compare page does. RUN may also be the name of a group.

    For each group: the mean over its runs with Student's 95 % interval, the interquartile mean (IQM) with a
    bootstrap interval, and how likely one of its runs is better than one of another group.

    Runs on several environments are compared on each, and by normalized scores over all of them.
    """
    result = run_comparison(context, runs, choices)
    if context.is_json:
        output.print_json(comparison_to_json(result))
        return
    if result.superseded:
        output.print_message(describe_superseded(result.superseded))
    if result.score is ScoreKind.AREA:
        output.print_message("The score of a run is the mean of its curve over all steps.")
    for note in result.notes:
        output.print_message(note)
    for environment, comparison in result.environments.items():
        output.console().print(environment, style="bold")
        _print_groups(comparison, result.by)
        output.echo()
    if not result.environments:
        _print_groups(result.statistics, result.by)
    if result.aggregates is not None:
        print_aggregates(result.aggregates)
    if result.environments:
        output.print_message(
            f"These runs are on {formatting.join_words(list(result.environments))}, whose returns cannot be averaged. "
            f"{describe_normalization(result.aggregates)} "
            f"One environment alone: --env {shlex.quote(next(iter(result.environments)))}"
        )
    _print_improvement_probabilities(result.statistics)
    _print_differences(result)


def describe_superseded(number: int) -> str:
    runs = "1 run was" if number == 1 else f"{number} runs were"
    return f"{runs} left out: later runs of the experiment replaced them. See: mosaic runs --group NAME"


def describe_normalization(aggregates: Aggregates | None) -> str:
    if aggregates is None:
        return "They have no environment in common, so there is no score over all of them."
    if aggregates.is_reference:
        return "Scores over all of them were normalized by the reference scores: low is 0, high is 1."
    return (
        "Scores over all of them were normalized on each environment from the worst (0) to the best (1) of these runs."
    )


def comparison_to_json(result: ComparisonResult) -> dict[str, object]:
    return {
        "tag": result.tag,
        "score": str(result.score),
        "last": result.last,
        "by": result.by or EACH_RUN,
        "runs": [entry.run_id for entry in result.entries],
        **_scores_json(result.statistics),
        "is_scaled": result.statistics.is_normalized,
        "differences": result.differences,
        "environments": {name: _scores_json(comparison) for name, comparison in result.environments.items()},
        "aggregate": None if result.aggregates is None else aggregates_to_json(result.aggregates),
        "superseded": result.superseded,
        "common_steps": result.common_steps,
        "progress": [
            {
                "run": one.run_id,
                "step": one.progress.step,
                "fraction": one.progress.fraction,
                "is_finished": one.progress.is_finished,
            }
            for one in result.entries
        ],
    }


def _scores_json(comparison: Comparison) -> dict[str, object]:
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
    return {"groups": groups, "probability_of_improvement": better}


def aggregates_to_json(aggregates: Aggregates) -> dict[str, object]:
    def value(interval: ConfidenceInterval) -> dict[str, object]:
        return {"value": interval.point, "ci95": [interval.low, interval.high]}

    return {
        "normalization": "reference" if aggregates.is_reference else "min-max",
        "ranges": {name: {"low": score.low, "high": score.high} for name, score in aggregates.ranges.items()},
        "thresholds": list(aggregates.thresholds),
        "groups": [
            {
                "name": group.name,
                "n": group.runs,
                "iqm": value(group.iqm),
                "median": value(group.median),
                "mean": value(group.mean),
                "optimality_gap": value(group.optimality_gap),
                "profile": [value(share) for share in group.profile],
            }
            for group in aggregates.groups
        ],
    }


def print_aggregates(aggregates: Aggregates) -> None:
    """Prints the normalized scores and the performance profile."""
    environments = formatting.count_noun(len(aggregates.ranges), "environment")
    screen = output.console()
    screen.print(f"Normalized scores over {environments} [95 %]", style="bold")
    columns = ("GROUP", "RUNS", "IQM", "MEDIAN", "MEAN", "OPTIMALITY GAP")
    table = output.create_table(*columns, right_aligned=("RUNS",), truncate=("GROUP",))
    for group in aggregates.groups:
        values = (group.iqm, group.median, group.mean, group.optimality_gap)
        table.add_row(group.name, str(group.runs), *map(format_probability, values))
    screen.print(table)
    screen.print("\nShare of runs with a normalized score above [95 %]", style="bold")
    table = output.create_table(
        "GROUP", *(f"{threshold:g}" for threshold in aggregates.thresholds), truncate=("GROUP",)
    )
    for group in aggregates.groups:
        table.add_row(group.name, *map(format_probability, group.profile))
    screen.print(table)


def _print_groups(comparison: Comparison, key: str) -> None:
    short = strip_common_parts([group.name for group in comparison.groups]) if not key else {}
    columns = ["GROUP" if key else "RUN", "RUNS", "MEAN [95 %]", "IQM [95 %]", "CURVE"]
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
        table.add_row(*cells, _curve_text(group.curve.mean.tolist(), bounds))
    output.console().print(table)
    if tails := describe_tails(comparison):
        output.print_message(f"{tails} The curves end there.")


def _curve_text(values: list[float], bounds: tuple[float, float] | None) -> str:
    """A curve that ends where its values do: all curves of a table have the same steps."""
    known = [at for at, value in enumerate(values, 1) if math.isfinite(value)]
    width = math.ceil(SPARKLINE_WIDTH * known[-1] / len(values)) if known else 0
    return output.sparkline(values, width, bounds)


def _print_improvement_probabilities(comparison: Comparison) -> None:
    if not comparison.improvement_probability:
        return
    names = [group.name for group in comparison.groups]
    screen = output.console()
    averaged = ", averaged over environments" if comparison.is_normalized else ""
    title = f"\nHow likely a run of the row is better than one of the column{averaged}"
    table = _improvement_table(comparison, names, format_probability)
    is_complete = output.fits_width(screen, table)
    if not is_complete:
        table = _improvement_table(comparison, names, lambda value: f"{value.point:.2f}")
    screen.print(f"{title} [95 %]" if is_complete else title, style="bold")
    screen.print(table)


def _improvement_table(
    comparison: Comparison, names: Sequence[str], format_cell: Callable[[ConfidenceInterval], str]
) -> Table:
    table = output.create_table("", *names, truncate=("", *names))
    for one in names:
        values = [comparison.improvement_probability.get((one, other)) for other in names]
        table.add_row(one, *(formatting.PLACEHOLDER if value is None else format_cell(value) for value in values))
    return table


def _print_differences(result: ComparisonResult) -> None:
    """Prints the values of each group's runs."""
    if not result.differences:
        return
    groups = result.statistics.groups
    place = {entry.run_id: at for at, entry in enumerate(result.entries)}
    heads = [group.name.partition(" · ")[0] for group in groups]
    screen = output.console()
    table = output.create_table("SETTING", *heads, wrap=heads)
    for name, row in result.differences.items():
        cells = [", ".join(dict.fromkeys(format_value(row[place[run]]) for run in group.run_ids)) for group in groups]
        if len(groups) == 1 or len(set(cells)) > 1:  # seeds differ within each group, and are the same in all
            table.add_row(name, *cells)
    if not table.row_count:
        return
    screen.print("\nWhat differs", style="bold")
    screen.print(table)


def format_probability(value: ConfidenceInterval) -> str:
    interval = f" [{value.low:.2f}, {value.high:.2f}]" if math.isfinite(value.low) else ""
    return f"{value.point:.2f}{interval}"


# --- the leaderboard


@command()
@click.option("--env", "env_id", default="", metavar="ENV", help="Only policies on this environment.")
@pass_context
def leaderboard(context: CliContext, env_id: str) -> None:
    """Ranks all evaluated policies, for each environment by the lower end of the 95 % interval of the mean return.

    The newest evaluation of a checkpoint counts, with all its batches.
    """
    places = [] if context.is_unused else rank_policies(context.trainer().read_evaluations(env_id=env_id))
    if env_id and not places and not context.is_unused:
        known = {str(evaluation.summary.env_id) for evaluation in context.trainer().read_evaluations()}
        if known:
            raise unknown_name_error("environment", env_id, known, "the evaluations")
    if context.is_json:
        output.print_json([place.to_json() for place in places])
        return
    if not places:
        output.print_message(f"No policy has been evaluated yet in {context.place}. Evaluate one: mosaic eval RUN")
        return
    names = formatting.short_ids(list({place.trained.run_id for place in places if place.trained}))
    screen = output.console()
    for at, (env, group) in enumerate(itertools.groupby(places, key=lambda place: place.env_id)):
        if at:
            screen.print()
        screen.print(env, style="bold")
        table = output.create_table(
            *LEADERBOARD_COLUMNS, right_aligned=LEADERBOARD_RIGHT_ALIGNED, truncate=("POLICY", "ALGO")
        )
        for place in group:
            table.add_row(*_row_cells(place, names))
        screen.print(table)


def _row_cells(entry: LeaderboardEntry, names: dict[str, str]) -> tuple[str, ...]:
    trained = entry.trained
    policy = names[trained.run_id] if trained else entry.policy_label
    if trained and trained.seed is not None:
        policy += f" seed {trained.seed}"
    return (
        str(entry.rank),
        policy,
        entry.algo if entry.is_deterministic else f"{entry.algo} (stochastic)",
        formatting.format_count(entry.step),
        formatting.format_count(entry.episodes),
        formatting.format_number(entry.mean.point),
        format_interval(entry.mean),
        formatting.format_number(entry.iqm),
        formatting.format_ago(entry.evaluated_at),
    )


# --- `mosaic plot`: figures of runs and groups for papers.


KINDS = ("curves", "efficiency", "aggregates")
DEFAULT_SMOOTHING = 0.9


@command()
@runs_argument()
@click.option("--out", required=True, metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Where to write it: .pdf, .svg or .png.")  # fmt: skip
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default=KINDS[0],
    show_default=True,
    help="Learning curves; the IQM of normalized returns over steps; or normalized scores with intervals.",
)
@click.option(
    "--width",
    default="full",
    show_default=True,
    metavar="column|full|INCHES",
    help="3.3 inches for a column, 6.75 for a page of two.",
)
@click.option(
    "--smoothing",
    type=click.FloatRange(0, 1, max_open=True),
    default=DEFAULT_SMOOTHING,
    show_default=True,
    metavar="WEIGHT",
    help="Of the exponential moving average of a run's curve, as in TensorBoard; 0: none.",
)
@comparison_options
@pass_context
def plot(
    context: CliContext, /, runs: tuple[str, ...], out: Path, kind: str, width: str, smoothing: float, **choices: object
) -> None:
    """Draws runs or groups for a paper. Needs matplotlib, from the extra `plot`.

    Curves are means over the runs of a setting with Student's 95 % interval, with one panel per environment. The other
    kinds are normalized on each environment, by the compared runs or by --reference-scores, with 95 % bootstrap
    intervals.
    """
    from mosaic.features.experiments.core_figures import FigureKind, check_score, parse_width, save_figure

    width_in = parse_width(width)
    check_score(FigureKind(kind), str(choices["score"]))
    result = run_comparison(context, runs, choices)
    save_figure(result, out, FigureKind(kind), width_in, smoothing)
    if result.superseded:
        output.print_message(describe_superseded(result.superseded))
    for note in result.notes:
        output.print_message(note)
    if kind == FigureKind.EFFICIENCY and result.aggregates is not None and not result.aggregates.is_reference:
        output.print_message(
            "Returns were normalized on each environment from the lowest (0) to the highest (1) value of these curves."
        )
    elif kind != FigureKind.CURVES:
        output.print_message(describe_normalization(result.aggregates))
    path = out.absolute()
    context.print_result(
        {"file": str(path), "kind": kind, "runs": [entry.run_id for entry in result.entries]},
        f"Wrote {path} ({formatting.format_size(path.stat().st_size)})",
    )
