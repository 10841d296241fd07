"""`mosaic play`: actors act in an environment; `mosaic replay`: what a run recorded, simulated again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mosaic import formatting
from mosaic.api.play_payload import ActorRequest, build_match_payload
from mosaic.api.replays import check_export_path, export_recording, fetch_recording, replay_episodes
from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.cli.control_commands import TRUST_HELP
from mosaic.cli.parameters import COUNT, ENV_KWARGS, find_run, run_argument
from mosaic.cli.run_follower import exit_code, report_end, submit_and_follow
from mosaic.contracts.errors import BadInput
from mosaic.contracts.play import ANY_AGENT

if TYPE_CHECKING:
    from mosaic.contracts.play_results import PlaySummary
    from mosaic.contracts.replays import ReplayReport
    from mosaic.contracts.views import RunView

DIFFERENT_EXIT_CODE = 1
DEFAULT_EPISODES = 1


@command("play")
@click.argument("env_id", metavar="ENV")
@click.option(
    "--actor",
    "actor",
    default="random",
    show_default=True,
    metavar="ACTOR",
    help="Who acts: random, policy:RUN, script:FILE, llm:MODEL or bdi:FILE.",
)
@click.option(
    "--actor-option",
    "actor_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the actor, such as base_url=http://127.0.0.1:8000/v1. Can be given several times.",
)
@click.option("--opponent", metavar="ACTOR", help="Who acts for the other agents of a game; unset: the actor.")
@click.option(
    "--opponent-option", "opponent_options", multiple=True, metavar="KEY=VALUE", help="The same of the opponent."
)
@click.option("--episodes", type=COUNT, default=DEFAULT_EPISODES, show_default=True, metavar="N")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, metavar="S", help="Of the first episode.")
@click.option("--max-steps", type=COUNT, metavar="N", help="End each episode after this many steps.")
@click.option("--rate", "rate_hz", type=click.FloatRange(0, min_open=True), metavar="HZ", help="Steps per second.")
@click.option(
    "--env-kwargs",
    metavar="NAME=VALUE",
    type=ENV_KWARGS,
    help="Settings of the environment, such as is_slippery=false, or as JSON.",
)
@click.option("--record/--no-record", default=True, help="Store every episode for `mosaic replay`.")
@click.option("--compare-frames", is_flag=True, help="Record hashes of frames, too, which a replay compares.")
@click.option("--trust", "is_trusted", is_flag=True, help=TRUST_HELP)
@pass_context
def play(
    context: CliContext,
    /,
    env_id: str,
    actor: str,
    actor_options: tuple[str, ...],
    opponent: str | None,
    opponent_options: tuple[str, ...],
    env_kwargs: dict[str, Any] | None,
    is_trusted: bool,
    **settings: Any,
) -> int:
    """Lets actors act in an environment. A session is a run: it can be watched, stopped and replayed."""
    context.print_workspace()
    given = {name: value for name, value in settings.items() if value is not None}
    if env_kwargs is not None:
        given["env_kwargs"] = env_kwargs
    if opponent is None and opponent_options:
        raise BadInput("--opponent-option needs --opponent.")
    others = None if opponent is None else ActorRequest(opponent, parse_actor_options(opponent_options))
    first = ActorRequest(actor, parse_actor_options(actor_options))
    payload = build_match_payload(context.trainer(), env_id, first, others, given)
    view = submit_and_follow(context, payload, settings["episodes"], is_trusted=is_trusted)
    summary = context.trainer().play_summary(view.run_id) if view.outcome == "succeeded" else None
    if summary is None:
        report_end(context, view)
        return exit_code(view)
    if context.is_json:
        output.print_json({**summary.model_dump(mode="json", exclude_unset=True), "run_id": view.run_id})
    else:
        print_play_summary(view, summary)
    return 0


def parse_actor_options(texts: Sequence[str]) -> dict[str, str]:
    """Return options by name, as text; the actor reads and checks them."""
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            # The text is not repeated: it may be a key.
            raise BadInput("An option of an actor is KEY=VALUE, such as --actor-option timeout_s=30.")
        options[name.strip().replace("-", "_")] = value
    return options


def print_play_summary(view: RunView, summary: PlaySummary) -> None:
    number = formatting.format_number
    table = output.create_table("AGENT", "ACTOR", "EPISODES", "MEAN RETURN", "95 % INTERVAL", "STEPS",
                                right_aligned=("EPISODES", "MEAN RETURN", "STEPS"))  # fmt: skip
    for agent, row in summary.agents.items():
        interval = row.ci95
        table.add_row(
            "" if agent == ANY_AGENT else agent,
            row.who_acted,
            number(row.episodes),
            number(row.avg_return),
            "" if interval is None else f"{number(interval[0])} to {number(interval[1])}",
            number(row.avg_length),
        )
    output.console().print(table)
    for row in summary.agents.values():
        for actor, totals in row.totals.items():
            output.echo(f"{actor}: {totals.describe()}")
    output.echo(f"\nReplay it: mosaic replay {formatting.short_id(view.run_id)}")


@command("replay")
@run_argument()
@click.option("--episode", "number", type=click.IntRange(0), metavar="N", help="One episode, from 0; unset: all.")
@click.option("--export", "path", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write what is replayed to a file: .mp4, .gif, or .jsonl with one line per step.")  # fmt: skip
@click.option(
    "--observations", "has_observations", is_flag=True, help="With .jsonl: the observation of each step, too."
)
@pass_context
def replay(context: CliContext, /, run: str, number: int | None, path: Path | None, has_observations: bool) -> int:
    """Simulates recorded episodes again and compares rewards, endings and observations."""
    if has_observations and (path is None or path.suffix.lower() != ".jsonl"):
        raise BadInput("--observations needs --export FILE.jsonl.")
    if path is not None:
        check_export_path(path)
    trainer = context.trainer()
    view = find_run(context, run, lambda view: view.has_recording)
    if path is None:
        reports = list(replay_episodes(fetch_recording(trainer, view.run_id), number))
    else:
        from mosaic.client.exports import ExportTask

        with output.progress_bar("Writing", unit="steps") as show:
            task = ExportTask(path.name, show)
            reports = export_recording(trainer, view, path, task, number, has_observations)
    is_identical = combine_reports(reports)
    if context.is_json:
        first = next((report for report in reports if report.difference is not None), None)
        difference = None if first is None or first.difference is None else first.difference
        output.print_json(
            {
                "run_id": view.run_id,
                "identical": is_identical,
                "first_difference": None
                if first is None or difference is None
                else {"episode": first.episode, **difference.model_dump()},
                "file": None if path is None else str(path.absolute()),
                "episodes": reports,
            }
        )
    else:
        print_reports(reports)
        if path is not None:
            output.echo(f"Wrote {path.absolute()} ({formatting.format_size(path.stat().st_size)})")
    return DIFFERENT_EXIT_CODE if is_identical is False else 0


def combine_reports(reports: Sequence[ReplayReport]) -> bool | None:
    """Return whether all episodes are identical; None if they were not simulated again."""
    verdicts = {report.is_identical for report in reports}
    return False if False in verdicts else None if None in verdicts else True


def print_reports(reports: Sequence[ReplayReport]) -> None:
    for warning in reports[0].warnings if reports else ():
        output.print_message(f"Warning: {warning}")
    number = formatting.format_number
    table = output.create_table("EPISODE", "STEPS", "RETURN", "REPLAY", right_aligned=("STEPS", "RETURN"))
    for report in reports:
        outcome = report.describe()
        if report.ending == "running":
            outcome += " (incomplete: the episode was not played to its end)"
        table.add_row(str(report.episode), number(report.steps), number(report.total_reward), outcome)
    output.console().print(table)
