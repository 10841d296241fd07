"""`mosaic disk` and `mosaic prune`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import click

from mosaic.base import formatting
from mosaic.cli import output
from mosaic.cli.context import CliContext, command, pass_context
from mosaic.cli.parameters import DURATION, find_runs, runs_argument
from mosaic.contracts.errors import BadInput, BadReply, UnknownName
from mosaic.trainer.client.run_lookup import LAST

if TYPE_CHECKING:
    from mosaic.contracts.disk_views import DiskUsage, PruneItem, RunUsage, TrashedRun

LARGEST_RUNS = 10
MAX_ROWS = 30
KIND_TITLES = {
    "checkpoints": "checkpoints",
    "replay": "replay buffers in checkpoints",
    "videos": "videos",
    "tensorboard": "TensorBoard",
    "logs": "logs",
    "journals": "journals and recordings",
    "wandb": "W&B",
    "other": "configs, models and others",
    "trash": "trash",
    "index": "index",
}


@command()
@runs_argument(required=False)
@pass_context
def disk(context: CliContext, runs: tuple[str, ...]) -> None:
    """Shows what the workspace holds, or some of its runs, by kind, and the largest runs.

    Sizes are what is allocated on the disk; a file that several checkpoints share counts once, and links are not
    followed.
    """
    chosen = [view.run_id for view in find_runs(context, runs, include_archived=True)] if runs else []
    usage: DiskUsage | None = None
    with output.progress_bar("Measuring", "runs") as show:
        for usage in context.trainer().read_disk_usage(chosen, largest=len(chosen) or LARGEST_RUNS):
            show(usage.run_count, usage.run_total)
    if usage is None:
        raise BadReply("The trainer did not answer what its disk holds.")
    if context.is_json:
        output.print_json(usage)
        return
    table = output.create_table("KIND", "SIZE", "SHARE", right_aligned=("SIZE", "SHARE"))
    for kind, size_bytes in sorted(usage.size_bytes.items(), key=lambda row: -row[1]):
        share = f"{size_bytes / max(1, usage.total_bytes):.0%}"
        table.add_row(KIND_TITLES[kind], formatting.format_size(size_bytes), share)
    runs_text = f"{usage.run_total:,} {'run' if usage.run_total == 1 else 'runs'}"
    table.add_row(f"all of {runs_text}", formatting.format_size(usage.total_bytes), "")
    output.console().print(table)
    if usage.largest:
        output.echo()
        _print_largest(usage.largest)
    free = formatting.format_size(usage.free_bytes)
    output.print_message(f"Free on this disk: {free}. To remove something: mosaic prune --help")


def _print_largest(largest: tuple[RunUsage, ...]) -> None:
    table = output.create_table("RUN", "STATUS", "ALGO", "ENV", "SIZE", "MOST OF IT", right_aligned=("SIZE",))
    short = formatting.short_ids([run.run_id for run in largest])
    for run in largest:
        most = max(run.size_bytes.items(), key=lambda row: row[1], default=("other", 0))[0]
        words = (run.status, run.algo, run.env_id)
        cells = (word or formatting.PLACEHOLDER for word in words)
        table.add_row(short[run.run_id], *cells, formatting.format_size(run.total_bytes), KIND_TITLES[most])
    output.console().print(table)


@command()
@runs_argument(required=False)
@click.option("--checkpoints", is_flag=True, help="Old checkpoints; those that `last` and `best` point to are kept.")
@click.option(
    "--keep", metavar="N", type=click.IntRange(1), help="With --checkpoints: keep the newest N.  [default: 1]"
)
@click.option("--replay", is_flag=True, help="Replay buffers in checkpoints: the run can be resumed, but not exactly.")
@click.option("--videos", is_flag=True, help="Videos.")
@click.option("--trash", is_flag=True, help="Deleted runs, of the whole workspace; they cannot be restored afterwards.")
@click.option(
    "--older-than",
    metavar="30d",
    type=DURATION,
    default=0.0,
    help="Only runs that ended, and trash that was deleted, longer ago than this.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.  [default: ask; without a terminal, a dry run]")
@pass_context
def prune(
    context: CliContext,
    runs: tuple[str, ...],
    checkpoints: bool,
    keep: int | None,
    replay: bool,
    videos: bool,
    trash: bool,
    older_than: float,
    dry_run: bool,
    yes: bool,
) -> None:
    """Removes what finished runs no longer need, of the runs that are named, or of all.

    A run that has not ended is refused. What a waiting or running run or the result of an evaluation refers to is
    kept.
    """
    chosen = {"checkpoints": checkpoints, "replay": replay, "videos": videos, "trash": trash}
    if not any(chosen.values()):
        raise BadInput(
            "Say what to remove: --checkpoints, --replay, --videos or --trash. See what there is: mosaic disk"
        )
    if keep is not None and not checkpoints:
        raise BadInput("--keep goes with --checkpoints.")
    if trash and runs:
        raise BadInput("--trash means the deleted runs of the whole workspace; leave out the runs, or --trash.")
    context.print_workspace()
    views = find_runs(context, runs, lambda view: view.stage == "finished", include_archived=True, is_last_newest=True)
    is_asking = not yes and sys.stdin.isatty() and not context.is_json
    is_dry_run = dry_run or not yes

    def run_prune(run_ids: list[str], kinds: Collection[str]) -> list[PruneItem]:
        items: list[PruneItem] = []
        parts = context.trainer().prune_runs(
            run_ids,
            checkpoints="checkpoints" in kinds,
            keep=keep or 1,
            replay="replay" in kinds,
            videos="videos" in kinds,
            trash="trash" in kinds,
            older_than_s=older_than,
            is_dry_run=is_dry_run,
        )
        with output.progress_bar("Searching" if is_dry_run else "Removing", "runs") as show:
            for part in parts:
                items.extend(part.items)
                show(part.run_count, part.run_total)
                for note in part.notes:
                    output.print_message(note)
        return items

    items = run_prune([view.run_id for view in views], [kind for kind, is_chosen in chosen.items() if is_chosen])
    if items and is_asking and not dry_run:
        _print_items(items)
        output.confirm(f"Remove {formatting.format_size(_total(items))}? This cannot be undone.")
        is_dry_run = False
        # What was shown, and nothing of other runs.
        run_ids = list(dict.fromkeys(item.run_id for item in items if item.kind != "trash"))
        items = run_prune(run_ids, {str(item.kind) for item in items})
    _print_result(context, items, is_dry_run=is_dry_run, is_shown=not is_dry_run and is_asking)


def _total(items: list[PruneItem]) -> int:
    return sum(item.size_bytes for item in items)


def _print_items(items: list[PruneItem]) -> None:
    table = output.create_table("RUN", "WHAT", "NAMES", "SIZE", right_aligned=("SIZE",), truncate=("NAMES",))
    short = formatting.short_ids(list(dict.fromkeys(item.run_id for item in items)))
    shown = sorted(items, key=lambda item: -item.size_bytes)[:MAX_ROWS]
    for item in shown:
        names = ", ".join(item.names)
        table.add_row(short[item.run_id], KIND_TITLES[item.kind], names, formatting.format_size(item.size_bytes))
    output.console().print(table)
    if len(items) > len(shown):
        output.print_message(f"The largest {len(shown)} of {len(items)} are shown; --json has all.")


def _print_result(context: CliContext, items: list[PruneItem], *, is_dry_run: bool, is_shown: bool) -> None:
    total = _total(items)
    if context.is_json:
        by_kind: Counter[str] = Counter()
        for item in items:
            by_kind[str(item.kind)] += item.size_bytes
        result = {"is_dry_run": is_dry_run, "size_bytes": total, "by_kind": by_kind, "items": [*map(_to_json, items)]}
        output.print_json(result)
        return
    if not items:
        output.print_message("There is nothing to remove.")
        return
    if not is_shown:
        _print_items(items)
    number = len({item.run_id for item in items})
    many = f"{formatting.format_size(total)} of {number} {'run' if number == 1 else 'runs'}"
    output.print_message(f"Would remove {many}. Remove it: add --yes" if is_dry_run else f"Removed {many}.")


def _to_json(item: PruneItem) -> dict[str, Any]:
    return item.model_dump(mode="json")


# --- `mosaic restore`: lists the trash, and takes runs out of it.


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
