"""`mosaic duel`: actors compared in an environment under the same seeds."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mosaic import formatting
from mosaic.cli import output
from mosaic.cli.cli_context import INTERRUPTED_EXIT_CODE, CliContext, command, pass_context
from mosaic.contracts.errors import BadInput, RunEnded

if TYPE_CHECKING:
    from mosaic.api.duel_results import DuelResult, MeanEstimate
    from mosaic.api.duels import DuelPlan

_FILE_TYPE = click.Path(dir_okay=False, path_type=Path)


@command("duel")
@click.argument("file", metavar="FILE.yaml", type=_FILE_TYPE)
@click.option("--out", metavar="F.jsonl", type=_FILE_TYPE, help="Every episode, one JSON object per line.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Check everything and show what would run.")
@pass_context
def duel(context: CliContext, /, file: Path, out: Path | None, is_dry_run: bool) -> int:
    """Compares actors in an environment under the same seeds. Each actor's session is a run; a group contains them.

    FILE.yaml has the keys env, actors and seeds, and optionally env_kwargs, opponent, swap_sides, episodes, rate_hz,
    max_steps, record and name.
    """
    from mosaic.api.duels import ProgressLine, plan_duel, read_duel_file, run_duel

    config = read_duel_file(file)
    if out is not None and not out.absolute().parent.is_dir():
        raise BadInput(f"--out {out}: there is no folder {out.absolute().parent}.")
    context.print_workspace()
    trainer = context.trainer()
    plan = plan_duel(trainer, config)
    if is_dry_run:
        print_plan(context, plan)
        return 0
    with closing(ProgressLine()) as show:
        result = run_duel(trainer, context.call_with_reconnect, plan, show)
    if out is not None:
        result.write_jsonl(out)
    if context.is_json:
        output.print_json(result.to_json())
    else:
        print_result(result)
        if out is not None:
            output.echo(f"Wrote {out.absolute()}")
    if result.is_complete:
        return 0
    return INTERRUPTED_EXIT_CODE if has_cancelled(result) else RunEnded.exit_code


def has_cancelled(result: DuelResult) -> bool:
    return any((actor.problem or "").startswith("cancelled") for actor in result.actors)


def print_plan(context: CliContext, plan: DuelPlan) -> None:
    seeds = list(plan.config.all_seeds)
    if context.is_json:
        sessions = [{"actor": session.actor.name, "side": session.side} for session in plan.sessions]
        output.print_json({"env_id": plan.config.env, "seeds": seeds, "sessions": sessions})
        return
    shown = f"{seeds[0]} to {seeds[-1]}" if seeds == list(range(seeds[0], seeds[0] + len(seeds))) else str(seeds)[1:-1]
    output.echo(f"{plan.config.env}, {formatting.count_noun(len(seeds), 'episode')} in each session. Seeds: {shown}")
    opponent = plan.config.opponent
    table = output.create_table("ACTOR", *(("AS AGENT", "AGAINST") if opponent else ()))
    for session in plan.sessions:
        table.add_row(session.actor.name, *((str(session.side), opponent.name) if opponent else ()))
    output.console().print(table)


def print_result(result: DuelResult) -> None:
    number = formatting.format_number
    is_game = result.opponent is not None
    columns = ("ACTOR", "EPISODES", "MEAN", "S.E.", "95 %", f"DIFFERENCE TO {result.actors[0].label}", "95 %", "STEPS")
    games = ("WON", "DRAWN", "LOST") if is_game else ()
    right_aligned = tuple(name for name in (*columns, *games) if name not in ("ACTOR", "95 %"))
    table = output.create_table(*columns, *games, right_aligned=right_aligned, truncate=("ACTOR",))
    for actor in result.actors:
        outcomes = (actor.wins, actor.draws, actor.losses) if is_game else ()
        table.add_row(
            actor.label,
            f"{actor.episodes:,}" if actor.is_complete else f"{actor.episodes:,} of {actor.expected_episodes:,}",
            *map(number, mean_and_error(actor.returns)),
            format_interval(actor.returns),
            number(None if actor.difference is None else actor.difference.mean),
            format_interval(actor.difference),
            number(actor.avg_length),
            *(number(count) for count in outcomes),
        )
    output.console().print(table)
    for actor in result.actors:
        if actor.totals is not None:
            output.echo(f"{actor.label}: {actor.totals.describe()}")
        if actor.problem is not None:
            output.print_message(f"{actor.label} is incomplete: {actor.problem}")
    output.echo(f"\nIts runs: mosaic runs --group {result.name}")


def mean_and_error(estimate: MeanEstimate | None) -> tuple[float | None, float | None]:
    return (None, None) if estimate is None else (estimate.mean, estimate.standard_error)


def format_interval(estimate: MeanEstimate | None) -> str:
    if estimate is None or estimate.ci95 is None:
        return formatting.PLACEHOLDER
    low, high = map(formatting.format_number, estimate.ci95)
    return f"{low} to {high}"
