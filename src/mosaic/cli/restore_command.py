"""`mosaic restore`: lists the trash, and takes runs out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from mosaic import formatting
from mosaic.api.run_lookup import LAST
from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.contracts.errors import UnknownName

if TYPE_CHECKING:
    from mosaic.contracts.disk_views import TrashedRun

MIN_ID_PART = 4


@command()
@click.argument("runs", metavar="[RUN|GROUP…]", nargs=-1)
@pass_context
def restore(context: CliContext, runs: tuple[str, ...]) -> None:
    """Restores deleted runs, as they were. Without RUN, lists the trash; 'last' is the run that was deleted last."""
    trainer = context.trainer()
    trash = list(trainer.list_trash(has_sizes=not runs))
    if not runs:
        _print_trash(context, trash)
        return
    chosen = {run.run_id: run for name in runs for run in find_trashed(trash, name)}
    context.print_workspace()
    views = [trainer.import_run(run.path) for run in chosen.values()]
    if context.is_json:
        output.print_json(views[0] if len(views) == 1 else views)
        return
    for view in views:
        output.echo(f"Run {formatting.short_id(view.run_id)} is back in the list.")


def find_trashed(trash: Sequence[TrashedRun], name: str) -> list[TrashedRun]:
    """Return the deleted runs that a name refers to: a group's, or the one with this id, part of an id, or name.

    `trash` begins with the run that was deleted last.
    """
    if name.lower() == LAST and trash:
        return [trash[0]]
    if exact := [run for run in trash if run.run_id == name]:
        return exact
    if members := [run for run in trash if run.group == name]:
        return members
    part = name.upper()
    found = [run for run in trash if name == run.run_name or part == run.run_id.upper()]
    if not found and len(part) >= MIN_ID_PART:
        found = [run for run in trash if run.run_id.upper().startswith(part) or run.run_id.upper().endswith(part)]
    if len(found) > 1:
        ids = ", ".join(run.run_id for run in found)
        raise UnknownName(f"{name!r} could be any of {ids}. Give the id of one of them.")
    if not found:
        raise UnknownName(f"No run or group {name!r} in the trash. List it: mosaic restore")
    return found


def _print_trash(context: CliContext, trash: Sequence[TrashedRun]) -> None:
    if context.is_json:
        output.print_json(trash)
        return
    if not trash:
        output.print_message(f"The trash of {context.place} is empty.")
        return
    columns = ("RUN", "NAME", "GROUP", "ALGO", "ENV", "SEED", "SIZE", "DELETED", "DAYS LEFT")
    table = output.create_table(*columns, right_aligned=columns[5:], truncate=columns[1:5])
    short = formatting.short_ids([run.run_id for run in trash])
    for run in trash:
        table.add_row(
            short[run.run_id],
            run.run_name or "",
            run.group or "",
            run.algo or "",
            run.env_id or "",
            "" if run.seed is None else str(run.seed),
            formatting.format_size(run.size_bytes or 0),
            formatting.format_ago(run.deleted_at),
            f"{run.seconds_left / 86_400:.0f}",
        )
    output.console().print(table)
