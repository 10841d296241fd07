"""`mosaic show`: everything about one run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mosaic import formatting
from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.cli.live_view import format_hardware
from mosaic.cli.run_arguments import run_argument
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.run_kind import RunKind
from mosaic.hub.hub_client import PushState
from mosaic.sidecar import sync_state

if TYPE_CHECKING:
    from mosaic.contracts.states import Attempt
    from mosaic.contracts.views import RunView


@command()
@run_argument()
@click.option("-f", "--follow", is_flag=True, help="Watch it live until its end first; Ctrl-C detaches.")
@pass_context
def show(context: CliContext, run: str, follow: bool) -> None:
    """Shows everything about a run: its state, history, files, its last metrics."""
    trainer = context.trainer()
    view = trainer.get(run)
    if follow and view.stage != "finished":
        from mosaic.cli.run_follower import follow as follow_run

        view = follow_run(context, view, may_cancel=False)
        trainer = context.trainer()
    last = {series.tag: series.values[-1] for series in trainer.metrics(view.run_id, last_only=True) if series.values}
    found = run_files(view.run_dir)
    if context.is_json:
        wandb = sync_state.read(RunFolder(view.run_dir))
        told = None if wandb is None else wandb.to_json()
        push = PushState.read(RunFolder(view.run_dir))
        hub = None if push is None else push.to_json()
        output.print_json({**view.model_dump(mode="json"), "files": found, "metrics": last, "wandb": told, "hub": hub})
        return
    _print_run(view, found, last)


def run_files(run_dir: str) -> dict[str, str]:
    """The files of a run that exist, by what they are."""
    folder = RunFolder(run_dir)
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
    found = {name: str(path) for name, path in wanted.items() if _has_content(path)}
    models = [str(path) for path in sorted(folder.models.glob("*/*.cleanrl_model"))] or _script_saved_files(folder)
    return found | ({"model": models[-1]} if models else {})


def _script_saved_files(folder: RunFolder) -> list[str]:
    """Files that the user's script saved itself."""
    try:
        listed = json.loads(folder.analytics.read_text()).get("saved_files") or []
        return [str(entry["path"]) for entry in listed]
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return []


def _has_content(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def _print_run(view: RunView, files: dict[str, str], last_metrics: dict[str, float]) -> None:
    from rich.text import Text

    console = output.console()
    word = view.status
    console.print(
        Text.assemble(
            (word.capitalize(), f"bold {output.OUTCOME_STYLES.get(word, '')}"),
            "  ",
            (formatting.run_description(view), "bold"),
        )
    )
    output.print_fields(_run_fields(view), "  ")
    if view.history:
        _print_section_title("History")
        started_at = view.history[0].at
        output.print_fields(
            [(_entry_time(entry.at, started_at), entry.message) for entry in view.history],
            "  ",
        )
    if len(view.attempts or ()) > 1:
        _print_section_title("Attempts")
        output.print_fields([(str(attempt.number), _format_attempt(attempt)) for attempt in view.attempts], "  ")
    if last_metrics:
        _print_section_title("Last metrics")
        output.print_fields(
            [(tag, formatting.format_number(value)) for tag, value in sorted(last_metrics.items())], "  "
        )
    if files:
        _print_section_title(f"Files in {view.run_dir}")
        root = view.run_dir.rstrip("/") + "/"
        output.print_fields([(name, path.removeprefix(root)) for name, path in files.items()], "  ")


def _print_section_title(title: str) -> None:
    click.echo()
    click.secho(title, bold=True)


def _run_fields(view: RunView) -> list[tuple[str, Any]]:
    step, total = view.global_step, view.total_timesteps if view.kind == RunKind.TRAIN else None
    episodes = view.episodes or 0
    share = f" ({formatting.format_progress(view)})" if view.stage != "finished" else ""
    done = f"{step:,}" + (f" of {total:,}{share}" if total else "") if step is not None else None
    span = f"mean of the last {min(100, episodes)} of {episodes:,} episodes"
    started, finished = view.started_at, view.finished_at
    took = (finished or time.time()) - started if started else None
    hardware = format_hardware(view.hardware) if view.hardware and view.stage != "finished" else None
    checkpoint = view.checkpoint_step
    return [
        ("run", view.run_id),
        ("name", view.run_name),
        ("worker id", view.worker_id),
        ("agent", view.agent_id),
        ("why", view.reason if view.outcome != "succeeded" else None),
        ("steps", done),
        ("pace", f"{view.sps:,.0f} steps/s" if view.sps else None),
        ("time left", formatting.format_duration(view.seconds_left) if view.seconds_left is not None else None),
        ("return", f"{formatting.format_number(view.episodic_return)} ({span})" if episodes else None),
        ("submitted", formatting.format_timestamp(view.submitted_at)),
        ("started", formatting.format_timestamp(started) if started else None),
        (
            "finished",
            f"{formatting.format_timestamp(finished)}, after {formatting.format_duration(took)}"
            if finished and took
            else None,
        ),
        ("process", f"{view.pid}" if view.pid else None),
        ("hardware", hardware),
        ("checkpoint", f"step {checkpoint:,}" if checkpoint is not None else None),
        ("W&B", _format_wandb_state(view.run_dir)),
        ("Hub", _format_hub_state(view.run_dir)),
        ("group", view.group),
        ("tags", ", ".join(view.tags or ()) or None),
        ("note", view.notes),
        ("archived", "yes" if view.is_archived else None),
    ]


def _format_hub_state(run_dir: str) -> str | None:
    push = PushState.read(RunFolder(run_dir))
    if push is None:
        return None
    if push.state == "pushed":
        return f"step {push.step:,} is at {push.url}"
    return f"not at {push.repo}: {push.problem}"


def _format_wandb_state(run_dir: str) -> str | None:
    state = sync_state.read(RunFolder(run_dir))
    return None if state is None else ", ".join(filter(None, (state.state, state.url, state.error)))


def _format_attempt(attempt: Attempt) -> str:
    ended = attempt.ended_at
    span = f", ran {formatting.format_duration(ended - attempt.started_at)}" if ended else ", still running"
    return f"{formatting.format_timestamp(attempt.started_at)}{span}{', resumed' if attempt.is_resume else ''}"


def _entry_time(at: float, started_at: float) -> str:
    return f"{formatting.format_timestamp(at)}  +{formatting.format_duration(at - started_at)}"
