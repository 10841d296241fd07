"""`mosaic train`, `check` and `submit`: from settings or a file to runs."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mosaic import formatting
from mosaic.cli import output
from mosaic.cli.algorithm_options import AlgorithmGroup
from mosaic.cli.cli_context import CliContext, Command, command, pass_context
from mosaic.cli.script_command import caller_environment
from mosaic.contracts.errors import BadInput
from mosaic.submission.algorithm_schema import Algorithm, load_algorithms
from mosaic.submission.run_payloads import default_group_name, parse_seeds, with_seed
from mosaic.submission.verdict_table import verdict_rows

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView

Json = dict[str, Any]


def _submit_training(
    context: CliContext, algorithm: Algorithm, payload: Json, seeds: str | None, is_detached: bool
) -> int:
    environment = caller_environment() if algorithm.is_user_script else None
    if seeds is None:
        return submit_run(context, payload, is_detached, environment)
    group = payload["metadata"].get("group") or default_group_name(
        algorithm.name, payload["metadata"]["worker"]["config"].get("env_id", ""), time.time()
    )
    payloads = [with_seed(payload, seed, group) for seed in parse_seeds(seeds)]
    return _submit_many(context, payloads, group, is_detached, environment)


def submit_run(context: CliContext, payload: Json, is_detached: bool, environment: dict[str, str] | None = None) -> int:
    """Submits one run and, unless detached, stays with it until its end."""
    context.print_workspace()
    if is_detached:
        return _report_submitted(context, context.trainer().submit(payload, environment))
    from mosaic.cli.run_follower import report_end, submit_and_follow

    return report_end(context, submit_and_follow(context, payload, environment=environment))


def _report_submitted(context: CliContext, view: RunView) -> int:
    context.print_result(view, f"Run {view.run_id} is {view.stage}. Its folder: {view.run_dir}")
    if not context.is_json:
        short = formatting.short_id(view.run_id)
        output.print_message(f"Watch it: mosaic show -f {short}    Stop it: mosaic cancel {short}")
    return 0


def _submit_many(
    context: CliContext, payloads: list[Json], group: str, is_detached: bool, environment: dict[str, str] | None
) -> int:
    context.print_workspace()
    trainer = context.trainer()
    views = [trainer.submit(payload, environment) for payload in payloads]
    output.print_message(f"{len(views)} runs in group {group}. List them: mosaic runs --group {group}")
    if not is_detached:
        from mosaic.cli.run_follower import exit_code, follow_many

        views = follow_many(context, views)
    if context.is_json:
        output.print_json(views)
    else:
        from mosaic.cli.runs_commands import runs_table

        output.console().print(runs_table(views))
    return 0 if is_detached else max(exit_code(view) for view in views)


train = AlgorithmGroup(
    _submit_training,
    is_check=False,
    name="train",
    help="""Trains an agent and watches it. Ctrl-C stops the run with a checkpoint; a second Ctrl-C detaches.

    \b
    mosaic train ppo --env-id CartPole-v1 --total-timesteps 50000
    mosaic train ppo --env-id CartPole-v1 --seeds 1-5 --detach

    `mosaic train ALGORITHM --help` shows every setting.""",
)


# --- check


def _check_settings(context: CliContext, algorithm: Algorithm, payload: Json, seeds: str | None, _: bool) -> int:
    if seeds is not None:
        parse_seeds(seeds)
    return _print_verdict(context, payload, algorithm)


def _print_verdict(context: CliContext, payload: Json, algorithm: Algorithm | None = None) -> int:
    environment = caller_environment() if algorithm is not None and algorithm.is_user_script else None
    verdict = context.trainer().check(payload, environment)
    if context.is_json:
        output.print_json(verdict)
        return 0
    click.echo("The worker would run this. Nothing was started.")
    output.print_fields(verdict_rows(verdict.summary, algorithm), "  ")
    return 0


class CheckGroup(AlgorithmGroup):
    """Takes the name of a file where `train` takes an algorithm."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        is_file = cmd_name == "-" or cmd_name.endswith(".json") or Path(cmd_name).is_file()
        if not is_file or cmd_name in load_algorithms():
            return super().get_command(ctx, cmd_name)

        def check_file() -> int:
            return _print_verdict(click.get_current_context().ensure_object(CliContext), read_payload(cmd_name))

        return Command(cmd_name, callback=check_file, help=f"Checks the config in {cmd_name}.")


check = CheckGroup(
    _check_settings,
    is_check=True,
    name="check",
    help="""Asks the worker what it would do with a config; nothing is started.

    \b
    mosaic check ppo --env-id CartPole-v1 --learning-rate 0.001
    mosaic check config.json""",
)


# --- submit


def read_payload(path: str) -> Json:
    """The config in a file; `-` is stdin."""
    name = "stdin" if path == "-" else path
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
        payload = json.loads(text)
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise BadInput(f"{name} is not a text file; expected a config as JSON.") from None
    except ValueError as error:
        raise BadInput(f"{name} is not valid JSON: {error}.") from None
    if not isinstance(payload, dict):
        raise BadInput(f"{name} holds {type(payload).__name__}; expected a JSON object with metadata and artifacts.")
    return payload


@command()
@click.argument("config", metavar="CONFIG.json")
@click.option("--follow", is_flag=True, help="Stay and watch the run until its end.")
@pass_context
def submit(context: CliContext, config: str, follow: bool) -> int:
    """Submits a whole config from a JSON file; '-' reads it from stdin."""
    return submit_run(context, read_payload(config), is_detached=not follow)
