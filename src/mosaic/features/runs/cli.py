"""`mosaic runs`, `config` and `diff`, and the table of runs."""

from __future__ import annotations

import fnmatch
import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mosaic.base import formatting
from mosaic.cli import output
from mosaic.cli.context import CliContext, command, pass_context
from mosaic.cli.parameters import find_run, run_argument
from mosaic.cli.runs_table import PROBLEM_MARK, RunsTable
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.options import RunKind
from mosaic.contracts.play import ANY_AGENT, PlaySummary
from mosaic.contracts.states import ENDED
from mosaic.features.evaluate.api import files_saved_by_script
from mosaic.features.hub.core import PushState

if TYPE_CHECKING:
    from mosaic.contracts.states import Attempt
    from mosaic.contracts.views import RunView, WandbStatus
    from mosaic.trainer.client.trainer_client import TrainerClient

DEFAULT_LIMIT = 30
STATUSES = (
    *("queued", "starting", "running", "paused", "stopping", "finished"),
    *("succeeded", "failed", "cancelled", "rejected", "lost"),
)


@command()
@click.option(
    "--status", multiple=True, type=click.Choice(STATUSES), help="Only runs at this stage or with this outcome."
)
@click.option("--tag", "tags", multiple=True, help="Only runs with this tag.")
@click.option("--algo", default="", help="Only runs of this algorithm.")
@click.option("--env", "env_id", default="", help="Only runs on this environment.")
@click.option("--group", default="", help="Only runs of this group.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1),
    help=f"Show at most N.  [default: {DEFAULT_LIMIT}, with --json all]",
)
@click.option("--all", "is_all", is_flag=True, help="All of them.")
@click.option("--archived", is_flag=True, help="Archived runs, too.")
@pass_context
def runs(
    context: CliContext, /, limit: int | None, is_all: bool, archived: bool, **filters: str | tuple[str, ...]
) -> None:
    """Lists runs, newest first."""
    if limit is None:
        limit = 0 if is_all or context.is_json else DEFAULT_LIMIT + 1
    views = context.runs(**filters, include_archived=archived, limit=limit)
    if context.is_json:
        output.print_json(views)
        return
    if not views:
        output.print_message(
            f"No run in {context.place} matches."
            if any(filters.values())
            else f"No runs yet in {context.place}. Make one: mosaic train ppo --env-id CartPole-v1"
        )
        return
    is_cut = limit == DEFAULT_LIMIT + 1 and len(views) == limit
    output.console().print(RunsTable(views[:DEFAULT_LIMIT] if is_cut else views))
    if is_cut:
        output.print_message(f"Only the newest {DEFAULT_LIMIT} are shown. All of them: mosaic runs --all")
    elif len(views) > 1:
        output.print_message(summarize_runs(views))
    with_problem = [view for view in views if view.problem]
    if with_problem:
        short = formatting.short_id(with_problem[0].run_id)
        number = f"{len(with_problem)} runs have" if len(with_problem) > 1 else "One run has"
        output.print_message(f"{PROBLEM_MARK} {number} files that cannot be read. See: mosaic show {short}")


def summarize_runs(views: list[RunView]) -> str:
    """`30 runs: 18 succeeded, 2 running, 10 queued. Next in the queue: 2 of 2 slots busy, place 1.`"""
    numbers = Counter(view.status for view in views)
    listed = ", ".join(f"{numbers[status]} {status}" for status in (*STATUSES, ENDED, "stalled") if numbers[status])
    queued = sorted((view for view in views if view.queue_position), key=lambda view: view.queue_position or 0)
    waiting = f" Next in the queue: {queued[0].wait_reason}." if queued else ""
    return f"{formatting.count_noun(len(views), 'run')}: {listed}.{waiting}"


@command()
@run_argument()
@pass_context
def config(context: CliContext, run: str) -> None:
    """Prints the config that made a run, as it can be submitted again."""
    payload = context.trainer().config(find_run(context, run).run_id)
    if context.is_json:
        output.print_json(payload)
    else:
        output.print_json(payload, indent=2)


@command()
@run_argument("one")
@run_argument("other")
@pass_context
def diff(context: CliContext, one: str, other: str) -> None:
    """Shows which settings of two runs differ. A setting that was not given counts with its default."""
    from mosaic.base.run_payloads import diff_settings, effective_settings

    trainer = context.trainer()
    views = [find_run(context, one), find_run(context, other)]
    differences = diff_settings(*(effective_settings(trainer.config(view.run_id)) for view in views))
    short = formatting.short_ids([view.run_id for view in views])
    if context.is_json:
        output.print_json({"runs": [view.run_id for view in views], "differences": differences})
        return
    if not differences:
        output.print_message("The two runs have the same settings.")
        return
    heads = [short[view.run_id] for view in views]
    table = output.create_table("SETTING", *heads, wrap=heads)
    for name, values in differences.items():
        table.add_row(name, *("not set" if value is None else _format_value(value) for value in values))
    output.console().print(table)


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# --- `mosaic show`: everything about one run.


@command()
@run_argument()
@click.option("-f", "--follow", is_flag=True, help="Watch it live until its end first; Ctrl-C detaches.")
@pass_context
def show(context: CliContext, run: str, follow: bool) -> None:
    """Shows everything about a run: its state, history, files, its last metrics."""
    trainer = context.trainer()
    view = find_run(context, run)
    if follow and view.stage != "finished":
        from mosaic.cli.following import follow as follow_run

        view = follow_run(context, view, may_cancel=False)
        trainer = context.trainer()
    last = {series.tag: series.values[-1] for series in trainer.metrics(view.run_id, last_only=True) if series.values}
    files = list_artifacts(trainer, view)
    saved_files = files_saved_by_script(trainer, view)
    wandb = next(iter(trainer.read_wandb(view.run_id)), None)
    push = PushState.parse(trainer.read_json(view.run_id, "hub/push.json"))
    settings = trainer.read_settings(view.run_id)
    played = trainer.play_summary(view.run_id) if view.kind is RunKind.PLAY else None
    if context.is_json:
        shown = {
            "files": files,
            "saved_files": saved_files,
            "metrics": last,
            "wandb": None if wandb is None else wandb.model_dump(mode="json"),
            "hub": None if push is None else push.to_json(),
            "played": None
            if played is None
            else played.model_dump(mode="json", include={"agents"}, exclude_unset=True),
            "resolved": settings.model_dump(mode="json"),
        }
        output.print_json({**view.model_dump(mode="json"), **shown})
        return
    _print_run(
        view,
        context.describe_path(view.run_dir),
        files,
        saved_files,
        last,
        [
            *([] if played is None else _played_rows(played)),
            ("W&B", _format_wandb_status(wandb)),
            ("Hub", _format_push(push)),
            *formatting.surroundings_rows(settings),
        ],
    )


def list_artifacts(trainer: TrainerClient, view: RunView) -> dict[str, str]:
    """The paths of a run's files and folders that exist, by what they are."""
    folder = RunFolder(view.run_dir)
    wanted = {
        "config": folder.config,
        "checkpoint": folder.last_checkpoint,
        "best checkpoint": folder.best_checkpoint,
        "tensorboard": folder.tensorboard,
        "evaluation": folder.eval_summary,
        "videos": folder.videos,
        "analytics": folder.analytics,
        "journal": folder.journal,
        "logs": folder.logs,
    }
    paths = [str(folder.path / file.name) for file in trainer.files(view.run_id)]
    found = {
        label: str(wanted_path)
        for label, wanted_path in wanted.items()
        if any(path == str(wanted_path) or path.startswith(f"{wanted_path}/") for path in paths)
    }
    models = fnmatch.filter(paths, f"{folder.models}/*.cleanrl_model") or files_saved_by_script(trainer, view)
    return found | ({"model": models[-1]} if models else {})


def _print_run(
    view: RunView,
    folder: str,
    files: dict[str, str],
    saved_files: list[str],
    last_metrics: dict[str, float],
    more_fields: Sequence[tuple[str, str | None]],
) -> None:
    output.print_run_heading(view)
    output.print_fields(_run_fields(view, more_fields), "  ")
    root = view.run_dir.rstrip("/") + "/"
    sections: dict[str, list[tuple[str, str]]] = {
        "History": [(_entry_time(entry.at, view.history[0].at), entry.message) for entry in view.history],
        "Attempts": [(str(one.number), _format_attempt(one)) for one in view.attempts if len(view.attempts) > 1],
        "Last metrics": [(tag, formatting.format_number(value)) for tag, value in sorted(last_metrics.items())],
        f"Files in {folder}": [(name, path.removeprefix(root)) for name, path in files.items()],
        "Files that the script saved": [(str(number), path) for number, path in enumerate(saved_files, 1)],
    }
    for title, rows in sections.items():
        if rows:
            output.echo()
            output.echo(title, is_bold=True)
            output.print_fields(rows, "  ")


def _run_fields(view: RunView, more_fields: Sequence[tuple[str, str | None]]) -> list[tuple[str, Any]]:
    step, total = view.global_step, view.total_timesteps if view.kind == RunKind.TRAIN else None
    share = f" ({formatting.format_progress(view)})" if view.stage != "finished" else ""
    done = f"{step:,}" + (f" of {total:,}{share}" if total else "") if step is not None else None
    started, finished = view.started_at, view.finished_at
    hardware = formatting.format_hardware(view.hardware) if view.hardware and view.stage != "finished" else None
    return [
        ("run", view.run_id),
        ("name", view.run_name),
        ("worker", formatting.describe_worker(view)),
        ("worker id", view.worker_id),
        ("agent", view.agent_id),
        ("why", view.end_reason),
        ("problem", view.problem),
        ("warning", "\n".join(view.warnings) or None),
        ("runs on", formatting.describe_place(view) or None),
        ("waits for", None if view.checkpoint_wait else view.wait_reason),
        ("still", view.checkpoint_wait),
        ("steps", done),
        ("pace", f"{view.sps:,.0f} steps/s" if view.sps else None),
        ("time left", formatting.format_duration(view.seconds_left) if view.seconds_left is not None else None),
        ("return", output.describe_return(view)),
        ("submitted", formatting.format_timestamp(view.submitted_at)),
        ("by", view.submitted_by),
        ("started", formatting.format_timestamp(started) if started else None),
        (
            "finished",
            f"{formatting.format_timestamp(finished)}, after {formatting.format_duration(view.active_s)}"
            if finished and started
            else None,
        ),
        ("process", f"{view.pid}" if view.pid else None),
        ("hardware", hardware),
        ("checkpoint", output.describe_checkpoint(view)),
        *more_fields,
        ("group", view.group),
        ("tags", ", ".join(view.tags or ()) or None),
        ("note", view.notes),
        ("archived", "yes" if view.is_archived else None),
        ("imported", "yes: what its config would execute needs --trust" if view.is_imported else None),
    ]


def _played_rows(summary: PlaySummary) -> list[tuple[str, str | None]]:
    """Return who acted in a session, with the mean return, and what that took."""
    rows: list[tuple[str, str | None]] = []
    for agent, row in summary.agents.items():
        episodes, mean = formatting.count_noun(row.episodes, "episode"), formatting.format_number(row.avg_return)
        text = f"{row.who_acted}, mean return {mean} of {episodes}"
        rows.append(("played" if agent == ANY_AGENT else agent, text))
        rows += [(actor, totals.describe()) for actor, totals in row.totals.items()]
    return rows


def _format_push(push: PushState | None) -> str | None:
    if push is None:
        return None
    if push.state == "pushed":
        return f"step {push.step:,} is at {push.url}"
    return f"not at {push.repo}: {push.problem}"


def _format_wandb_status(status: WandbStatus | None) -> str | None:
    return None if status is None else ", ".join(filter(None, (status.state, status.url, status.error)))


def _format_attempt(attempt: Attempt) -> str:
    ended = attempt.ended_at
    span = f", ran {formatting.format_duration(ended - attempt.started_at)}" if ended else ", still running"
    place = f", on {attempt.node}" if attempt.node else ""
    return f"{formatting.format_timestamp(attempt.started_at)}{span}{', resumed' if attempt.is_resume else ''}{place}"


def _entry_time(at: float, started_at: float) -> str:
    return f"{formatting.format_timestamp(at)}  +{formatting.format_duration(at - started_at)}"
