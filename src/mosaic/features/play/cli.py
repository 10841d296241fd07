"""`mosaic play`: actors act in an environment; `mosaic replay`: what a run recorded, simulated again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mosaic.base import formatting
from mosaic.cli import output
from mosaic.cli.context import INTERRUPTED_EXIT_CODE, CliContext, command, common_options, pass_context
from mosaic.cli.following import exit_code, report_end, submit_and_follow
from mosaic.cli.output import print_settings
from mosaic.cli.parameters import COUNT, ENV_KWARGS, TRUST_HELP, find_run, run_argument
from mosaic.contracts.errors import BadInput, RunEnded, unknown_name_error
from mosaic.contracts.play import ANY_AGENT, LLM_KEY_NAME
from mosaic.contracts.setting_field import SettingField
from mosaic.features.play.core import ActorRequest, build_match_payload
from mosaic.features.replay.api import check_export_path, export_recording, fetch_recording, replay_episodes
from mosaic.worker.actor_registry import ActorDescription, discover_actors

if TYPE_CHECKING:
    from mosaic.contracts.play import PlaySummary
    from mosaic.contracts.replays import ReplayReport
    from mosaic.contracts.views import RunView
    from mosaic.features.play.api import DuelPlan, DuelResult, MeanEstimate

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
        from mosaic.trainer.client.exports import ExportTask

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


# --- `mosaic actors`: who can act in an environment.


def _complete_kind(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [kind for kind in discover_actors() if kind.startswith(incomplete)]


@command()
@click.argument("kind", required=False, shell_complete=_complete_kind)
@pass_context
def actors(context: CliContext, kind: str | None) -> None:
    """Lists the kinds of actors, or explains one and its options."""
    known = discover_actors()
    if kind is None:
        if context.is_json:
            output.print_json([_to_json(description) for description in known.values()])
        else:
            _print_actors(list(known.values()))
        return
    if kind not in known:
        raise unknown_name_error("actor", kind, known)
    if context.is_json:
        output.print_json(_to_json(known[kind]))
    else:
        _print_actor(known[kind])


def _to_json(description: ActorDescription) -> dict[str, object]:
    return {
        "kind": description.kind,
        "title": description.title,
        "about": description.about,
        "target": description.target,
        "needs": list(description.needs),
        "is_multi_agent": description.is_multi_agent,
        "is_discrete_only": description.is_discrete_only,
        "is_installed": not missing(description),
        "install": missing(description) or None,
        "examples": list(description.examples),
        "options": [option_to_json(option) for option in description.options],
    }


def option_to_json(option: SettingField) -> dict[str, object]:
    return {
        "name": option.name,
        "type": option.type,
        "default": option.default,
        "help": option.help,
        "constraints": dict(option.constraints or {}),
    }


def missing(description: ActorDescription) -> str:
    """What to install, or why a plug-in cannot be loaded; empty where it can act."""
    return description.problem or description.install_hint


def _print_actors(descriptions: list[ActorDescription]) -> None:
    table = output.create_table("ACTOR", "NEEDS", "WHAT IT IS", "", wrap=("WHAT IT IS", ""))
    for description in descriptions:
        name = f"{description.kind}:…" if description.target else description.kind
        others = [need for need in description.needs if need not in description.target]
        needs = ", ".join(filter(None, (description.target, *others)))
        table.add_row(name, needs or formatting.PLACEHOLDER, description.about, missing(description))
    output.console().print(table)
    output.print_message("One of them in detail: mosaic actors llm    Let one act: mosaic play ENV --actor random")


def _print_actor(description: ActorDescription) -> None:
    output.print_fields(
        [
            ("actor", description.kind),
            ("what it is", description.about),
            ("target", description.target or "none"),
            ("acts with", description.capabilities),
            *([("examples", ", ".join(description.examples))] if description.examples else []),
            *([("missing", missing(description))] if missing(description) else []),
        ]
    )
    if description.options:
        print_settings("OPTION", description.options)
        output.print_message(f"Set one: mosaic play ENV --actor {description.kind} --actor-option NAME=VALUE")


# --- `mosaic duel`: actors compared in an environment under the same seeds.


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
    from mosaic.base.progress_line import ProgressLine
    from mosaic.features.play.api import plan_duel, read_duel_file, run_duel

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


# --- `mosaic llm login|logout|status`: the API key of the actor `llm`.


LOGIN_COMMAND = "mosaic llm login"


@click.group(params=common_options())
def llm() -> None:
    """Language models as actors: the API key of an OpenAI-compatible server."""


@command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.pass_context
@pass_context
def login(context: CliContext, ctx: click.Context) -> None:
    """Stores the API key of the server that has your models. Servers on this machine usually need none.

    It is stored in the system keyring, else in a file that only you can read. It is read from a hidden prompt or from
    stdin: mosaic llm login < key.txt
    """
    from mosaic.cli.api_keys import read_key, store_key

    store_key(context, LLM_KEY_NAME, read_key("API key", LOGIN_COMMAND, ctx.args), LOGIN_COMMAND)


@command()
@pass_context
def logout(context: CliContext) -> None:
    """Deletes the stored API key."""
    from mosaic.base.secret_store import delete_secret, secret_location

    is_deleted = delete_secret(LLM_KEY_NAME)
    context.print_result({"forgotten": int(is_deleted)}, "Deleted the key." if is_deleted else "No key was stored.")
    if not context.is_json and secret_location(LLM_KEY_NAME) == "environment":
        output.print_message("OPENAI_API_KEY is still set in this environment.")


@command()
@pass_context
def status(context: CliContext) -> None:
    """Shows where the API key is stored, never the key itself."""
    from mosaic.base.secret_store import secret_location
    from mosaic.cli.api_keys import describe_key_location

    location = secret_location(LLM_KEY_NAME)
    context.print_result({"key": location}, f"key  {describe_key_location(LLM_KEY_NAME, location, LOGIN_COMMAND)}")


for _command in (login, logout, status):
    llm.add_command(_command)
