"""`mosaic cancel`, `pause`, `resume` and `resubmit`; `mosaic tag`, `note`, `rename`, `archive`, `delete`, `restore`."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from mosaic.base import formatting
from mosaic.base.run_payloads import (
    apply_assignments,
    default_group_name,
    leave_group,
    parse_assignments,
    parse_seeds,
    split_assignments,
    with_seed,
)
from mosaic.cli import output
from mosaic.cli.context import CliContext, Command, command, pass_context
from mosaic.cli.parameters import (
    COUNT,
    TRUST_HELP,
    find_current_runs,
    find_run,
    find_runs,
    has_ended,
    is_active,
    is_running,
    run_argument,
    run_options,
    runs_argument,
)
from mosaic.contracts.errors import BadInput, NotAllowed, UnknownName
from mosaic.trainer.client.run_lookup import LAST

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView


MAX_UNDO_IDS = 3
"""Deleted runs that are listed in the command that restores them; of more, what the user typed."""


def print_views(context: CliContext, views: list[RunView], template: str) -> None:
    """One object for one run, an array for several; or a sentence about each."""
    if context.is_json:
        output.print_json(views[0] if len(views) == 1 else views)
        return
    for view in views:
        run = formatting.short_id(view.run_id)
        tags = ", ".join(view.tags) or "none"
        output.echo(
            template.format(
                run=run,
                status=formatting.describe_status(view.status),
                folder=context.describe_path(view.run_dir),
                tags=tags,
            )
        )


def change_each(views: Sequence[RunView], change: Callable[[RunView], RunView]) -> list[RunView]:
    """Changes runs one after the other, and prints why some of several are refused: they may have ended meanwhile."""
    changed: list[RunView] = []
    for at, view in enumerate(views, 1):
        try:
            changed.append(change(view))
        except (NotAllowed, UnknownName) as error:
            if at == len(views) and not changed:
                raise
            output.print_message(str(error))
    return changed


def exit_code(chosen: Sequence[RunView], changed: Sequence[RunView]) -> int:
    return 0 if len(changed) == len(chosen) else BadInput.exit_code


@command()
@runs_argument(fits=is_active)
@click.option("--no-wait", is_flag=True, help="Return at once instead of waiting for their end.")
@pass_context
def cancel(context: CliContext, runs: tuple[str, ...], no_wait: bool) -> int:
    """Stops runs, each with a checkpoint from which it can be resumed.

    Writing it may take up to ten minutes. A run that is cancelled again meanwhile is ended at once.
    """
    context.print_workspace()
    trainer = context.trainer()

    def stop(view: RunView) -> RunView:
        try:
            return trainer.cancel_run(view.run_id)
        except NotAllowed:
            if view.stage == "finished":
                raise
            return trainer.get_run(view.run_id)  # it has just ended by itself

    chosen = find_runs(context, runs, is_active)
    views = change_each(chosen, stop)
    if no_wait:
        print_views(context, views, "Run {run} {status}.")
        return exit_code(chosen, views)
    from mosaic.cli.following import wait_for_end

    stopping = [view for view in views if view.stage != "finished"]
    if stopping:
        output.print_message(f"Waiting until {'it has' if len(stopping) == 1 else f'all {len(stopping)} have'} ended.")
    print_views(context, wait_for_end(context, views), "Run {run} {status}.")
    return exit_code(chosen, views)


@command()
@runs_argument(fits=is_running)
@pass_context
def pause(context: CliContext, runs: tuple[str, ...]) -> int:
    """Pauses runs. A paused run keeps its memory and its slot; `mosaic resume` continues it."""
    context.print_workspace()
    trainer = context.trainer()
    chosen = find_runs(context, runs, is_running)
    views = change_each(chosen, lambda view: trainer.pause_run(view.run_id))
    print_views(context, views, "Run {run} was asked to pause. Resume it: mosaic resume {run}")
    return exit_code(chosen, views)


@command()
@runs_argument()
@click.option(
    "--total-timesteps",
    metavar="N",
    type=COUNT,
    help="Train until this many steps in total; extends a finished run.",
)
@click.option("--trust", "is_trusted", is_flag=True, help=TRUST_HELP)
@click.option("--follow/--detach", default=False, help="Stay and watch it.  [default: detach]")
@pass_context
def resume(
    context: CliContext, runs: tuple[str, ...], total_timesteps: int | None, is_trusted: bool, follow: bool
) -> int:
    """Resumes runs: a paused one at once, a finished one from its last good checkpoint."""
    context.print_workspace()
    trainer = context.trainer()
    chosen = find_runs(context, runs, lambda view: view.can_resume(total_timesteps is not None))
    if follow and len(chosen) > 1:
        raise BadInput("--follow takes one run.")
    views = change_each(chosen, lambda view: trainer.resume(view.run_id, total_timesteps, is_trusted))
    if not follow:
        print_views(context, views, "Run {run} resumed. Watch it: mosaic show -f {run}")
        return exit_code(chosen, views)
    from mosaic.cli import following as run_follower

    return run_follower.report_end(context, run_follower.follow(context, views[0]))


@command()
@run_argument(metavar="RUN|GROUP")
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting, such as learning_rate=0.001."
)
@click.option("--seeds", metavar="LIST", help="One run for each seed, 1-5 or 1,3,7; of each of a group's settings.")
@run_options("group")
@click.option("--trust", "is_trusted", is_flag=True, help=TRUST_HELP)
@click.option("--follow/--detach", default=False, help="Stay and watch it.  [default: detach]")
@pass_context
def resubmit(
    context: CliContext,
    run: str,
    assignments: tuple[str, ...],
    seeds: str | None,
    group: str | None,
    is_trusted: bool,
    follow: bool,
) -> int:
    """Starts a new run from the config of another one, with changes; for a group, one from each of its runs.

    KEY is a setting (learning_rate, env_id, seed, …) or a dotted path in the config (schedule.priority).
    The new run is in the group of the other one if no setting but the seed differs.
    A script runs again in its folder, with this shell's environment.
    """
    from mosaic.base.caller_environment import program_environment
    from mosaic.cli.submission import submit_many, submit_run
    from mosaic.features.experiments.api import repeat_member

    written = split_assignments(assignments)
    trainer = context.trainer()
    views = find_current_runs(context, run)
    configs = [trainer.config(view.run_id) for view in views]
    if seeds is not None:
        if "seed" in written:
            raise BadInput("--set seed=… and --seeds cannot both be given.")
        views, configs, group = _choose_seeds(views, configs, seeds, group)
    payloads: list[dict[str, Any]] = []
    differing: dict[str, None] = {}
    for config in configs:
        changes = parse_assignments(config, written) | ({} if group is None else {"group": group})
        payloads.append(apply_assignments(config, changes))
        differing |= dict.fromkeys(leave_group(config, payloads[-1], changes))
    names = ", ".join(differing)
    if len(payloads) == 1:
        if differing:
            why = f"The new run is not in group {configs[0]['metadata']['group']!r}: it differs in {names}."
            output.print_message(f"{why} --group sets one.")
        return submit_run(context, payloads[0], not follow, program_environment(payloads[0]), is_trusted)
    if differing:
        raise BadInput(
            f"The new runs do not belong to group {configs[0]['metadata']['group']!r}, as they differ in {names}. "
            "Name one: --group NAME"
        )
    _require_different(configs, payloads)
    group = payloads[0]["metadata"]["group"]
    members = trainer.runs(group=group, include_archived=True)
    for view, config, payload in zip(views, configs, payloads, strict=True):
        payload["metadata"] |= repeat_member(view, config, payload, members)
    for payload in payloads:  # all of them before the first is submitted
        trainer.check(payload, program_environment(payload), is_trusted)
    return submit_many(context, payloads, group, not follow, program_environment, is_trusted)


def _choose_seeds(
    views: Sequence[RunView], configs: Sequence[dict[str, Any]], seeds: str, group: str | None
) -> tuple[list[RunView], list[dict[str, Any]], str | None]:
    """Return runs, configs with each of the seeds, one of each setting, and the group that was chosen for them."""
    settings: dict[str, tuple[RunView, dict[str, Any]]] = {}
    for view, config in zip(views, configs, strict=True):
        worker = config["metadata"]["worker"]
        if view.seed is None:
            raise BadInput(f"Run {formatting.short_id(view.run_id)} has no setting 'seed': --seeds cannot be given.")
        trained = {key: value for key, value in worker["config"].items() if key != "seed"}
        settings.setdefault(json.dumps([worker["id"], trained], sort_keys=True), (view, config))
    if group is None and not configs[0]["metadata"].get("group"):
        group = default_group_name(views[0].algo or "run", views[0].env_id or "", time.time())
    chosen: list[tuple[RunView, dict[str, Any]]] = []
    for seed in parse_seeds(seeds):
        for view, config in settings.values():
            if config.get("run_name"):
                name = config["run_name"].removesuffix(f"-{config['metadata']['worker']['config'].get('seed')}")
                config = {**config, "run_name": name}
            chosen.append((view, with_seed(config, seed, group or config["metadata"]["group"])))
    return [view for view, _ in chosen], [config for _, config in chosen], group


def _require_different(configs: Sequence[dict[str, Any]], payloads: Sequence[dict[str, Any]]) -> None:
    """Refuses changes that make equal runs of different ones, such as one seed for all."""

    def count(payloads: Sequence[dict[str, Any]]) -> int:
        return len({json.dumps(payload["metadata"]["worker"], sort_keys=True) for payload in payloads})

    if count(payloads) < count(configs):
        raise BadInput(
            f"With these changes, only {count(payloads)} of the {len(payloads)} new runs would differ in their "
            "settings or seed. Change less, or resubmit single runs."
        )


# --- organizing


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
@run_argument(metavar="RUN|GROUP")
@click.argument("tags", metavar="[+TAG|-TAG]…", nargs=-1)
@click.option("--remove", multiple=True, metavar="TAG", help="Remove this tag; the same as -TAG.")
@pass_context
def tag(context: CliContext, run: str, tags: tuple[str, ...], remove: tuple[str, ...]) -> None:
    """Adds tags to runs (+good or good) and removes them (-old). Without tags, prints those they have."""
    added = [tag.removeprefix("+") for tag in tags]
    views = find_runs(context, [run])
    if added or remove:
        context.print_workspace()
        trainer = context.trainer()
        views = [trainer.annotate_run(view.run_id, add_tags=added, remove_tags=remove) for view in views]
    print_views(context, views, "Tags of run {run}: {tags}")


@command()
@run_argument()
@click.argument("text", required=False)
@pass_context
def note(context: CliContext, run: str, text: str | None) -> None:
    """Writes a run's note, or prints it when no TEXT is given. '-' reads it from stdin; '' removes it."""
    view = find_run(context, run)
    if text is not None:
        if text == "-":
            try:
                text = sys.stdin.read().rstrip("\n")
            except UnicodeDecodeError:
                raise BadInput("stdin is not text in UTF-8; expected a note.") from None
        context.print_workspace()
        view = context.trainer().annotate_run(view.run_id, notes=text)
    if context.is_json:
        output.print_json(view)
    elif view.notes:
        output.echo(view.notes)
    else:
        output.print_message(f"Run {formatting.short_id(view.run_id)} has no note.")


@command()
@run_argument()
@click.argument("name")
@pass_context
def rename(context: CliContext, run: str, name: str) -> None:
    """Gives a run another NAME, in any script and with spaces; '' removes it."""
    view = find_run(context, run)
    context.print_workspace()
    view = context.trainer().annotate_run(view.run_id, run_name=name)
    short = formatting.short_id(view.run_id)
    message = f"Run {short} is now named {view.run_name!r}." if view.run_name else f"Run {short} has no name now."
    context.print_result(view, message)


@command()
@runs_argument()
@click.option("--undo", is_flag=True, help="Show them in the list again.")
@pass_context
def archive(context: CliContext, runs: tuple[str, ...], undo: bool) -> int:
    """Hides runs from the list without deleting them; `mosaic runs --archived` shows them."""
    context.print_workspace()
    trainer = context.trainer()

    def fits(view: RunView) -> bool:
        return view.stage == "finished" and view.is_archived is undo

    chosen = find_runs(context, runs, fits, include_archived=undo, is_last_newest=not undo)
    views = change_each(chosen, lambda view: trainer.annotate_run(view.run_id, is_archived=not undo))
    print_views(context, views, "Run {run} is back in the list." if undo else "Run {run} is archived.")
    return exit_code(chosen, views)


@command()
@runs_argument(fits=has_ended)
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_context
def delete(context: CliContext, runs: tuple[str, ...], yes: bool) -> int:
    """Moves finished runs to the trash, from which `mosaic restore` takes them. A run that has not ended is refused."""
    context.print_workspace()
    trainer = context.trainer()
    views = find_runs(context, runs, has_ended, is_last_newest=True)
    if not yes and any(view.stage == "finished" for view in views):
        _confirm_delete(views)
    deleted = change_each(views, lambda view: trainer.delete_run(view.run_id))
    print_views(context, deleted, "Run {run} is in the trash: {folder}")
    if not context.is_json:
        is_long = len(deleted) > MAX_UNDO_IDS and LAST not in map(str.lower, runs)
        names = runs if is_long else [formatting.short_id(view.run_id) for view in deleted]
        output.print_message(f"Undo: {context.add_trainer_option(shlex.join(['mosaic', 'restore', *names]))}")
    return exit_code(views, deleted)


def _confirm_delete(views: list[RunView]) -> None:
    if not sys.stdin.isatty():
        raise BadInput("Nothing was deleted: there is no terminal to confirm in. Use --yes.")
    from mosaic.cli.runs_table import RunsTable

    output.console(is_stderr=True).print(RunsTable(views))
    many = "this run" if len(views) == 1 else f"these {len(views)} runs"
    output.confirm(f"Move {many} to the trash?")
