"""`mosaic compare`: how good runs are, alone or in groups, how sure that is, and what differs between them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from mosaic.cli import output
from mosaic.cli.arguments import runs_argument
from mosaic.cli.door import Door, command, pass_door
from mosaic.contracts.errors import BadInput, UnknownName, unknown

if TYPE_CHECKING:
    from mosaic.client import Trainer
    from mosaic.statistics import Interval
    from mosaic.statistics.comparison import Comparison, Entry

Json = dict[str, Any]
RETURN_TAG = "charts/episodic_return"
EACH = "run"
SMOOTHING = 0.9
CURVE_SIGNS = 32


@command()
@runs_argument()
@click.option(
    "--by",
    metavar="SETTING",
    help=f"Put runs with the same value of it together; {EACH!r}: each alone.  [default: what tells some apart]",
)
@click.option("--tag", default=RETURN_TAG, metavar="METRIC", show_default=True, help="The metric to compare.")
@click.option(
    "--last",
    metavar="N",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="A run's score is the mean of so many of its last values.",
)
@pass_door
def compare(door: Door, runs: tuple[str, ...], by: str | None, tag: str, last: int) -> None:
    """Compares runs as the workbench's Compare page does. RUN may also be the name of a group.

    For each group: the mean over its runs with Student's 95 % interval, the interquartile mean (IQM) with a
    bootstrap interval, and how likely one of its runs is better than one of another group.
    """
    from mosaic.statistics import comparison

    trainer = door.trainer()
    views = chosen_runs(trainer, runs)
    entries = [_entry(trainer, view, title, tag) for view, title in zip(views, titles(views), strict=True)]
    _check_points(trainer, entries, tag)
    settings = [entry.settings for entry in entries]
    key = comparison.best_key(settings) if by is None else key_named(by, settings)
    found = comparison.compare(entries, key, SMOOTHING, last)
    differing = comparison.differing(settings)
    if door.is_json:
        output.print_json(as_json(found, entries, key, tag, last, differing))
        return
    _print_groups(found, key)
    _print_better(found)
    _print_differences(found, entries, differing)


def chosen_runs(trainer: Trainer, names: tuple[str, ...]) -> list[Json]:
    """Each run once, in the order given; those of a group from its first to its last."""
    views: dict[str, Json] = {}
    for name in names:
        try:
            found = [trainer.get(name)]
        except UnknownName:
            found = trainer.runs(group=name)[::-1]
            if not found:
                raise
        views |= {view["run_id"]: view for view in found}
    return list(views.values())


def titles(views: list[Json]) -> list[str]:
    """What tells runs apart; the id always does."""
    short = output.short_ids([view["run_id"] for view in views])
    made = []
    for view in views:
        seed = None if view.get("seed") is None else f"seed {view['seed']}"
        kind = "eval" if view.get("kind") == "policy_eval" else None
        parts = (short[view["run_id"]], view.get("algo") or view.get("worker"), view.get("env_id"), seed, kind)
        made.append(" · ".join(str(part) for part in parts if part))
    return made


def _entry(trainer: Trainer, view: Json, title: str, tag: str) -> Entry:
    import numpy as np

    from mosaic.plugins.settings import compared_settings
    from mosaic.statistics.comparison import Entry

    parts = list(trainer.metrics(view["run_id"], [tag]))
    steps = np.array([step for part in parts for step in part.steps], np.float64)
    values = np.array([value for part in parts for value in part.values], np.float64)
    settings = compared_settings(view, trainer.config(view["run_id"]))
    return Entry(view["run_id"], title, settings, steps, values, values)


def _check_points(trainer: Trainer, entries: list[Entry], tag: str) -> None:
    """Where none has a point of it, the name is probably wrong; runs that have logged nothing have no score."""
    if any(len(entry.returns) for entry in entries):
        return
    known = {part.tag for entry in entries for part in trainer.metrics(entry.run_id, last_only=True)}
    if known and tag != RETURN_TAG:
        raise unknown("metric", tag, known, "these runs")
    raise BadInput("None of these runs has finished an episode yet: there is nothing to compare.")


def key_named(name: str, settings: list[Json]) -> str:
    from mosaic.statistics.comparison import ALONE

    wanted = name.replace("-", "_")
    if wanted == EACH:
        return ALONE
    known = {key for one in settings for key in one}
    if wanted not in known:
        raise unknown("setting", name, known | {EACH}, "these runs")
    return wanted


def as_json(
    found: Comparison, entries: list[Entry], key: str, tag: str, last: int, differing: dict[str, list[Any]]
) -> Json:
    groups = [
        {
            "name": group.name,
            "runs": group.run_ids,
            "n": len(group.run_ids),
            "mean": group.final.point,
            "mean_ci95": [group.final.low, group.final.high],
            "iqm": group.iqm.point,
            "iqm_ci95": [group.iqm.low, group.iqm.high],
        }
        for group in found.groups
    ]
    better = [
        {"one": one, "other": other, "probability": value.point, "ci95": [value.low, value.high]}
        for (one, other), value in found.better.items()
    ]
    return {
        "tag": tag,
        "last": last,
        "by": key or EACH,
        "runs": [entry.run_id for entry in entries],
        "groups": groups,
        "is_scaled": found.is_scaled,
        "probability_of_improvement": better,
        "differences": differing,
    }


# --- for people


def _print_groups(found: Comparison, key: str) -> None:
    from mosaic.statistics.comparison import without_common

    iqm = "IQM, SCALED [95 %]" if found.is_scaled else "IQM [95 %]"
    short = without_common([group.name for group in found.groups]) if not key else {}
    columns = ["GROUP" if key else "RUN", "RUNS", "MEAN [95 %]", iqm, "CURVE"]
    if not key:
        columns.remove("RUNS")
    table = output.table(*columns, right=("RUNS",), cut=(columns[0],))
    known = [float(value) for group in found.groups for value in group.curve.mean if math.isfinite(value)]
    bounds = (min(known), max(known)) if known else None
    for group in found.groups:
        cells = [short.get(group.name, group.name), with_interval(group.final), with_interval(group.iqm)]
        if key:
            cells.insert(1, str(len(group.run_ids)))
        table.add_row(*cells, output.sparkline(group.curve.mean.tolist(), CURVE_SIGNS, bounds))
    output.console().print(table)


def _print_better(found: Comparison) -> None:
    if not found.better:
        return
    names = [group.name for group in found.groups]
    screen = output.console()
    screen.print("\nHow likely a run of the row is better than one of the column [95 %]", style="bold")
    table = output.table("", *names)
    for one in names:
        values = [found.better.get((one, other)) for other in names]
        table.add_row(one, *(output.NOTHING if value is None else probability(value) for value in values))
    screen.print(table)


def _print_differences(found: Comparison, entries: list[Entry], differing: dict[str, list[Any]]) -> None:
    """For each group the values that its runs have."""
    from mosaic.statistics.comparison import words

    if not differing:
        return
    place = {entry.run_id: at for at, entry in enumerate(entries)}
    heads = [group.name.partition(" · ")[0] for group in found.groups]
    screen = output.console()
    screen.print("\nWhat differs", style="bold")
    table = output.table("SETTING", *heads, fold=heads)
    for name, row in differing.items():
        cells = [", ".join(dict.fromkeys(words(row[place[run]]) for run in group.run_ids)) for group in found.groups]
        table.add_row(name, *cells)
    screen.print(table)


def with_interval(value: Interval) -> str:
    """`482.1 [450.2, 500]`; without the interval where there is none."""
    if not math.isfinite(value.point):
        return output.NOTHING
    if not math.isfinite(value.low) or value.low == value.high:
        return output.figure(value.point)
    return f"{output.figure(value.point)} [{output.figure(value.low)}, {output.figure(value.high)}]"


def probability(value: Interval) -> str:
    return f"{value.point:.2f} [{value.low:.2f}, {value.high:.2f}]"
