"""`mosaic leaderboard`: all evaluated policies of the workspace, the best first."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import click

from mosaic import formatting
from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.contracts.errors import unknown_name_error

if TYPE_CHECKING:
    from mosaic.statistics import ConfidenceInterval
    from mosaic.statistics.ranking import LeaderboardEntry

COLUMNS = ("RANK", "POLICY", "ALGO", "STEP", "EPISODES", "MEAN", "95 %", "IQM", "EVALUATED")
RIGHT_ALIGNED = ("RANK", "STEP", "EPISODES", "MEAN", "IQM", "EVALUATED")


@command()
@click.option("--env", "env_id", default="", metavar="ENV", help="Only policies on this environment.")
@pass_context
def leaderboard(context: CliContext, env_id: str) -> None:
    """Ranks all evaluated policies, for each environment by the lower end of the 95 % interval of the mean return.

    The newest evaluation of a checkpoint counts, with all its batches.
    """
    from mosaic.statistics.ranking import rank_policies

    trainer = context.trainer()
    places = rank_policies(trainer.evaluations(env_id=env_id))
    if env_id and not places:
        known = {str(evaluation.summary.env_id) for evaluation in trainer.evaluations()}
        if known:
            raise unknown_name_error("environment", env_id, known, "the evaluations")
    if context.is_json:
        output.print_json([place.to_json() for place in places])
        return
    if not places:
        output.print_message(
            f"No policy has been evaluated yet in {context.workspace.root}. Evaluate one: mosaic eval RUN"
        )
        return
    names = formatting.short_ids(list({place.trained.run_id for place in places if place.trained}))
    screen = output.console()
    for at, (env, group) in enumerate(itertools.groupby(places, key=lambda place: place.env_id)):
        if at:
            screen.print()
        screen.print(env, style="bold")
        table = output.create_table(*COLUMNS, right_aligned=RIGHT_ALIGNED, truncate=("POLICY", "ALGO"))
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


def format_interval(value: ConfidenceInterval) -> str:
    """`450.2 to 500`."""
    if not math.isfinite(value.low):
        return formatting.PLACEHOLDER
    return f"{formatting.format_number(value.low)} to {formatting.format_number(value.high)}"
