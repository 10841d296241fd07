"""`mosaic show`: everything about one run."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mosaic import formatting
from mosaic.api.policy_lookup import files_saved_by_script
from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.cli.parameters import find_run, run_argument
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.options import RunKind
from mosaic.contracts.play import ANY_AGENT
from mosaic.contracts.play_results import PlaySummary
from mosaic.hub.description import PushState

if TYPE_CHECKING:
    from mosaic.client import TrainerClient
    from mosaic.contracts.states import Attempt
    from mosaic.contracts.views import RunView, WandbStatus


@command()
@run_argument()
@click.option("-f", "--follow", is_flag=True, help="Watch it live until its end first; Ctrl-C detaches.")
@pass_context
def show(context: CliContext, run: str, follow: bool) -> None:
    """Shows everything about a run: its state, history, files, its last metrics."""
    trainer = context.trainer()
    view = find_run(context, run)
    if follow and view.stage != "finished":
        from mosaic.cli.run_follower import follow as follow_run

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
