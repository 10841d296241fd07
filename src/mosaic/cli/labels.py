"""`mosaic tag`, `note`, `archive` and `delete`."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import click

from mosaic.cli import output
from mosaic.cli.arguments import run_argument, runs_argument
from mosaic.cli.control import answer
from mosaic.cli.door import Command, Door, command, pass_door
from mosaic.contracts.errors import BadInput


def with_remove_options(args: Sequence[str]) -> list[str]:
    """`-old` becomes `--remove old`: what begins with a dash would be an option to the parser."""
    plain: list[str] = []
    for arg in args:
        is_removal = re.fullmatch(r"-[^\W_][\w.@+-]*", arg) and arg != "-h"
        plain.extend(("--remove", arg[1:]) if is_removal else (arg,))
    return plain


class TagCommand(Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_remove_options(args))


@click.command(cls=TagCommand)
@run_argument()
@click.argument("tags", metavar="[+TAG|-TAG]…", nargs=-1)
@click.option("--remove", multiple=True, metavar="TAG", help="Remove this tag; the same as -TAG.")
@pass_door
def tag(door: Door, run: str, tags: tuple[str, ...], remove: tuple[str, ...]) -> None:
    """Adds tags to a run (+good or good) and removes them (-old). Without tags, prints those it has."""
    if not tags and not remove:
        view = door.trainer().get(run)
    else:
        door.announce()
        view = door.trainer().annotate(run, add_tags=[tag.removeprefix("+") for tag in tags], remove_tags=remove)
    if door.is_json:
        output.print_json(view)
    else:
        click.echo(f"Tags of run {output.short_id(view['run_id'])}: {', '.join(view['tags']) or 'none'}")


@command()
@run_argument()
@click.argument("text", required=False)
@pass_door
def note(door: Door, run: str, text: str | None) -> None:
    """Writes a run's note, or prints it when no TEXT is given. '-' reads it from stdin; '' removes it."""
    if text is None:
        view = door.trainer().get(run)
    else:
        if text == "-":
            text = sys.stdin.read().rstrip("\n")
        door.announce()
        view = door.trainer().annotate(run, notes=text)
    if door.is_json:
        output.print_json(view)
    elif view.get("notes"):
        click.echo(view["notes"])
    else:
        output.say(f"Run {output.short_id(view['run_id'])} has no note.")


@command()
@runs_argument()
@click.option("--undo", is_flag=True, help="Bring them back into the list.")
@pass_door
def archive(door: Door, runs: tuple[str, ...], undo: bool) -> None:
    """Takes runs out of the list without deleting them; `mosaic runs --archived` shows them."""
    door.announce()
    trainer = door.trainer()
    views = [trainer.annotate(run, is_archived=not undo) for run in runs]
    answer(door, views, "Run {run} is back in the list." if undo else "Run {run} is archived.")


@command()
@runs_argument()
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_door
def delete(door: Door, runs: tuple[str, ...], yes: bool) -> None:
    """Moves finished runs to the trash. A run that has not ended is refused."""
    door.announce()
    trainer = door.trainer()
    # Named once and for all: with 'last', a run that starts meanwhile must not be the one that goes.
    views = [trainer.get(run) for run in runs]
    if not yes and any(view["stage"] == "finished" for view in views):
        _confirm(views)
    deleted = [trainer.delete(view["run_id"]) for view in views]
    if door.is_json:
        output.print_json(deleted[0] if len(deleted) == 1 else deleted)
        return
    for view in deleted:
        click.echo(f"Run {output.short_id(view['run_id'])} is in the trash: {view['run_dir']}")
    output.say(f"Bring it back: mosaic import {shlex.quote(deleted[0]['run_dir'])}")


def _confirm(views: list[dict[str, Any]]) -> None:
    if not sys.stdin.isatty():
        raise BadInput("Nothing was deleted: nobody can be asked here. Say it with --yes.")
    from mosaic.cli.runs import runs_table

    output.console(is_stderr=True).print(runs_table(views))
    many = "this run" if len(views) == 1 else f"these {len(views)} runs"
    click.confirm(f"Move {many} to the trash?", abort=True, err=True)
