"""Submits runs, and unless detached stays with them until their end."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mosaic.base import formatting
from mosaic.cli import output
from mosaic.cli.context import INTERRUPTED_EXIT_CODE, CliContext
from mosaic.trainer.client.run_wait import InterruptCounter

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView


def submit_run(
    context: CliContext,
    payload: dict[str, Any],
    is_detached: bool,
    environment: dict[str, str] | None = None,
    is_trusted: bool = False,
) -> int:
    """Submits one run and, unless detached, stays with it until its end."""
    context.print_workspace()
    if not is_detached:
        from mosaic.cli.following import report_end, submit_and_follow

        return report_end(context, submit_and_follow(context, payload, None, environment, is_trusted))
    view = context.submit(payload, environment, is_trusted)
    output.print_warnings(view)
    stage = f"{view.stage} ({view.wait_reason})" if view.wait_reason else view.stage
    context.print_result(view, f"Run {view.run_id} is {stage}. Its folder: {context.describe_path(view.run_dir)}")
    if not context.is_json:
        short = formatting.short_id(view.run_id)
        watch, stop = map(context.add_trainer_option, (f"mosaic show -f {short}", f"mosaic cancel {short}"))
        output.print_message(f"Watch it: {watch}    Stop it: {stop}")
    return 0


def submit_many(
    context: CliContext,
    payloads: list[dict[str, Any]],
    group: str,
    is_detached: bool,
    get_environment: Callable[[dict[str, Any]], dict[str, str] | None],
    is_trusted: bool = False,
) -> int:
    """Submits the runs of a group and, unless detached, stays with them until their end."""
    context.print_workspace()
    context.trainer()  # from then on, a Ctrl-C is for the runs
    views: list[RunView] = []
    with InterruptCounter() as interrupts:
        for payload in payloads:
            if not interrupts.count:
                submitted = context.submit(payload, get_environment(payload), is_trusted, lambda: interrupts.count > 0)
                views.append(submitted)
    output.print_warnings(*views)
    if len(views) < len(payloads):
        output.print_message(
            f"Interrupted: {len(views)} of {len(payloads)} runs were submitted, and continue in group {group}. "
            f"Cancel them: mosaic cancel {shlex.quote(group)}"
        )
        return INTERRUPTED_EXIT_CODE
    output.print_message(f"{len(views)} runs in group {group}. List them: mosaic runs --group {group}")
    if not is_detached:
        from mosaic.cli.following import describe_detached, exit_code, follow_many

        views = follow_many(context, views)
        if any(view.stage != "finished" for view in views):
            list_runs = context.add_trainer_option(f"mosaic runs --group {shlex.quote(group)}")
            output.print_message(f"{describe_detached(views)} List them: {list_runs}")
    if context.is_json:
        output.print_json(views)
    else:
        from mosaic.cli.runs_table import RunsTable

        output.console().print(RunsTable(views))
    return 0 if is_detached else max(exit_code(view) for view in views)
