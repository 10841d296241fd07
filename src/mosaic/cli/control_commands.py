"""`mosaic cancel`, `pause`, `resume` and `resubmit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mosaic import formatting
from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.cli.run_arguments import run_argument, runs_argument
from mosaic.contracts.errors import BadInput
from mosaic.submission.run_payloads import apply_assignments, parse_assignment

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView


def print_views(context: CliContext, views: list[RunView], template: str) -> None:
    """One object for one run, an array for several; or a sentence about each."""
    if context.is_json:
        output.print_json(views[0] if len(views) == 1 else views)
        return
    for view in views:
        click.echo(template.format(run=formatting.short_id(view.run_id), status=view.status))


@command()
@runs_argument()
@click.option("--no-wait", is_flag=True, help="Return at once instead of waiting for their end.")
@pass_context
def cancel(context: CliContext, runs: tuple[str, ...], no_wait: bool) -> None:
    """Stops runs, each with a checkpoint from which it can be resumed."""
    context.print_workspace()
    trainer = context.trainer()
    views = [trainer.cancel(run) for run in runs]
    if no_wait:
        print_views(context, views, "Run {run} is {status}.")
        return
    from mosaic.cli.run_follower import wait_for_end

    stopping = [view for view in views if view.stage != "finished"]
    if stopping:
        output.print_message(f"Waiting until {'it has' if len(stopping) == 1 else f'all {len(stopping)} have'} ended.")
    print_views(context, wait_for_end(context, views), "Run {run} has ended: {status}.")


@command()
@runs_argument()
@pass_context
def pause(context: CliContext, runs: tuple[str, ...]) -> None:
    """Pauses runs. A paused run keeps its memory and its slot; `mosaic resume` continues it."""
    context.print_workspace()
    trainer = context.trainer()
    print_views(
        context, [trainer.pause(run) for run in runs], "Run {run} was asked to pause. Resume it: mosaic resume {run}"
    )


@command()
@runs_argument()
@click.option(
    "--total-timesteps",
    metavar="N",
    type=click.IntRange(1),
    help="Train until this many steps in total; extends a finished run.",
)
@click.option("--follow/--detach", default=False, help="Stay and watch it.  [default: detach]")
@pass_context
def resume(context: CliContext, runs: tuple[str, ...], total_timesteps: int | None, follow: bool) -> int:
    """Resumes runs: a paused one at once, a finished one from its last good checkpoint."""
    if follow and len(runs) > 1:
        raise BadInput("--follow takes one run.")
    context.print_workspace()
    trainer = context.trainer()
    views = [trainer.resume(run, total_timesteps) for run in runs]
    if not follow:
        print_views(context, views, "Run {run} resumed. Watch it: mosaic show -f {run}")
        return 0
    from mosaic.cli.run_follower import exit_code, report_end
    from mosaic.cli.run_follower import follow as follow_run

    ended = follow_run(context, views[0])
    report_end(context, ended)
    return exit_code(ended)


@command()
@run_argument()
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting, such as learning_rate=0.001."
)
@click.option("--follow/--detach", default=False, help="Stay and watch it.  [default: detach]")
@pass_context
def resubmit(context: CliContext, run: str, assignments: tuple[str, ...], follow: bool) -> int:
    """Starts a new run from the config of another one, with changes.

    KEY is a setting (learning_rate, env_id, seed, …) or a dotted path in the config (schedule.priority).
    """
    from mosaic.cli.train_commands import submit_run

    wanted = [parse_assignment(text) for text in assignments]
    payload = context.trainer().config(run)
    return submit_run(context, apply_assignments(payload, wanted), is_detached=not follow)
