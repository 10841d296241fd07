"""`mosaic tag`, `note`, `archive` and `delete`."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from mosaic import formatting
from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, Command, command, pass_context
from mosaic.cli.control_commands import print_views
from mosaic.cli.run_arguments import run_argument, runs_argument
from mosaic.contracts.errors import BadInput

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView


def normalize_tag_arguments(args: Sequence[str]) -> list[str]:
    """`-old` becomes `--remove old`: what begins with a dash would be an option to the parser."""
    plain: list[str] = []
    for arg in args:
        is_removal = re.fullmatch(r"-[^\W_][\w.@+-]*", arg) and arg != "-h"
        plain.extend(("--remove", arg[1:]) if is_removal else (arg,))
    return plain


class TagCommand(Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, normalize_tag_arguments(args))


@click.command(cls=TagCommand)
@run_argument()
@click.argument("tags", metavar="[+TAG|-TAG]…", nargs=-1)
@click.option("--remove", multiple=True, metavar="TAG", help="Remove this tag; the same as -TAG.")
@pass_context
def tag(context: CliContext, run: str, tags: tuple[str, ...], remove: tuple[str, ...]) -> None:
    """Adds tags to a run (+good or good) and removes them (-old). Without tags, prints those it has."""
    if not tags and not remove:
        view = context.trainer().get(run)
    else:
        context.print_workspace()
        view = context.trainer().annotate(run, add_tags=[tag.removeprefix("+") for tag in tags], remove_tags=remove)
    if context.is_json:
        output.print_json(view)
    else:
        click.echo(f"Tags of run {formatting.short_id(view.run_id)}: {', '.join(view.tags) or 'none'}")


@command()
@run_argument()
@click.argument("text", required=False)
@pass_context
def note(context: CliContext, run: str, text: str | None) -> None:
    """Writes a run's note, or prints it when no TEXT is given. '-' reads it from stdin; '' removes it."""
    if text is None:
        view = context.trainer().get(run)
    else:
        if text == "-":
            text = sys.stdin.read().rstrip("\n")
        context.print_workspace()
        view = context.trainer().annotate(run, notes=text)
    if context.is_json:
        output.print_json(view)
    elif view.notes:
        click.echo(view.notes)
    else:
        output.print_message(f"Run {formatting.short_id(view.run_id)} has no note.")


@command()
@runs_argument()
@click.option("--undo", is_flag=True, help="Show them in the list again.")
@pass_context
def archive(context: CliContext, runs: tuple[str, ...], undo: bool) -> None:
    """Hides runs from the list without deleting them; `mosaic runs --archived` shows them."""
    context.print_workspace()
    trainer = context.trainer()
    views = [trainer.annotate(run, is_archived=not undo) for run in runs]
    print_views(context, views, "Run {run} is back in the list." if undo else "Run {run} is archived.")


@command()
@runs_argument()
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_context
def delete(context: CliContext, runs: tuple[str, ...], yes: bool) -> None:
    """Moves finished runs to the trash. A run that has not ended is refused."""
    context.print_workspace()
    trainer = context.trainer()
    # Resolved once: with 'last', a run that starts now must not be the one that is deleted.
    views = [trainer.get(run) for run in runs]
    if not yes and any(view.stage == "finished" for view in views):
        _confirm_delete(views)
    deleted = [trainer.delete(view.run_id) for view in views]
    if context.is_json:
        output.print_json(deleted[0] if len(deleted) == 1 else deleted)
        return
    for view in deleted:
        click.echo(f"Run {formatting.short_id(view.run_id)} is in the trash: {view.run_dir}")
    output.print_message(f"Undo: mosaic import {shlex.quote(deleted[0].run_dir)}")


def _confirm_delete(views: list[RunView]) -> None:
    if not sys.stdin.isatty():
        raise BadInput("Nothing was deleted: there is no terminal to confirm in. Use --yes.")
    from mosaic.cli.runs_commands import runs_table

    output.console(is_stderr=True).print(runs_table(views))
    many = "this run" if len(views) == 1 else f"these {len(views)} runs"
    click.confirm(f"Move {many} to the trash?", abort=True, err=True)
