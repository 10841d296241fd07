"""`mosaic cancel`, `pause`, `resume` and `resubmit`."""

from __future__ import annotations

from typing import Any

import click

from mosaic.cli import output
from mosaic.cli.arguments import run_argument, runs_argument
from mosaic.cli.door import Door, command, pass_door
from mosaic.contracts.errors import BadInput
from mosaic.plugins.payloads import changed, parse_assignment

Json = dict[str, Any]


def answer(door: Door, views: list[Json], sentence: str) -> None:
    """One object for one run, an array for several; or a sentence about each."""
    if door.is_json:
        output.print_json(views[0] if len(views) == 1 else views)
        return
    for view in views:
        click.echo(sentence.format(run=output.short_id(view["run_id"]), status=output.status(view)))


@command()
@runs_argument()
@click.option("--no-wait", is_flag=True, help="Return at once instead of when they have ended.")
@pass_door
def cancel(door: Door, runs: tuple[str, ...], no_wait: bool) -> None:
    """Stops runs, each with a checkpoint from which it can be resumed."""
    door.announce()
    trainer = door.trainer()
    views = [trainer.cancel(run) for run in runs]
    if no_wait:
        answer(door, views, "Run {run} is {status}.")
        return
    from mosaic.cli.following import wait_for_end

    stopping = [view for view in views if view["stage"] != "finished"]
    if stopping:
        output.say(f"Waiting until {'it has' if len(stopping) == 1 else f'all {len(stopping)} have'} ended.")
    answer(door, wait_for_end(door, views), "Run {run} has ended: {status}.")


@command()
@runs_argument()
@pass_door
def pause(door: Door, runs: tuple[str, ...]) -> None:
    """Pauses runs. A paused run keeps its memory and its slot; `mosaic resume` lets it go on."""
    door.announce()
    trainer = door.trainer()
    answer(door, [trainer.pause(run) for run in runs], "Run {run} is asked to pause. Go on: mosaic resume {run}")


@command()
@runs_argument()
@click.option(
    "--total-timesteps",
    metavar="N",
    type=click.IntRange(1),
    help="Train until so many steps in all; extends a finished run.",
)
@click.option("--follow/--detach", default=False, help="Stay and watch it.  [default: detach]")
@pass_door
def resume(door: Door, runs: tuple[str, ...], total_timesteps: int | None, follow: bool) -> int:
    """Goes on with runs: a paused one at once, one that has ended from its last good checkpoint."""
    if follow and len(runs) > 1:
        raise BadInput("--follow takes one run.")
    door.announce()
    trainer = door.trainer()
    views = [trainer.resume(run, total_timesteps) for run in runs]
    if not follow:
        answer(door, views, "Run {run} goes on. Watch it: mosaic show -f {run}")
        return 0
    from mosaic.cli.following import exit_code, report_end
    from mosaic.cli.following import follow as follow_run

    ended = follow_run(door, views[0])
    report_end(door, ended)
    return exit_code(ended)


@command()
@run_argument()
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting, such as learning_rate=0.001."
)
@click.option("--follow/--detach", default=False, help="Stay and watch it.  [default: detach]")
@pass_door
def resubmit(door: Door, run: str, assignments: tuple[str, ...], follow: bool) -> int:
    """Starts a new run from the config of another one, changed where you say so.

    KEY is a setting (learning_rate, env_id, seed, …) or a dotted path in the config (schedule.priority).
    """
    from mosaic.cli.train import start
    from mosaic.plugins.schema import reserved_extras

    wanted = [parse_assignment(text) for text in assignments]
    payload = door.trainer().config(run)
    worker = payload["metadata"]["worker"]["id"]
    return start(door, changed(payload, wanted, reserved_extras(worker)), is_detached=not follow)
