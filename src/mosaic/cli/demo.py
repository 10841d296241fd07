"""`mosaic demo`: from nothing to an agent that balances a pole, in one command."""

from __future__ import annotations

import os
import shutil
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mosaic import formatting
from mosaic.api.policy_lookup import evaluation_payload
from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.cli.evaluate_command import run_evaluation, summary_json
from mosaic.cli.export import save_curve
from mosaic.cli.gui_command import open_workbench_detached
from mosaic.cli.run_follower import report_end, submit_and_follow
from mosaic.cli.show import list_artifacts
from mosaic.contracts.errors import MissingExtra
from mosaic.submission.run_payloads import build_train_payload

if TYPE_CHECKING:
    from mosaic.client import TrainerClient
    from mosaic.contracts.views import EvaluationSummary, RunView

DEMO_SETTINGS: dict[str, Any] = {"env_id": "CartPole-v1", "total_timesteps": 399_872, "seed": 1}
"""CleanRL's defaults but for the steps, which are 781 whole updates; all of five seeds were above 488 after 300,000."""
EVAL_EPISODES = 20


@command()
@pass_context
def demo(context: CliContext) -> int:
    """Trains PPO on CartPole-v1, shows it learning, evaluates it on fresh seeds, and shows what to do next."""
    context.use_local()
    context.print_workspace()
    began_at = time.monotonic()
    output.print_message("Training PPO to balance a pole. A return of 500 is perfect.")
    view = submit_and_follow(context, build_train_payload("cleanrl", "ppo", {**DEMO_SETTINGS, "tags": ("demo",)}, {}))
    if view.stage != "finished" or view.outcome != "succeeded":
        return report_end(context, view)
    output.print_message(f"Evaluating it on {EVAL_EPISODES} fresh seeds.")
    options = {"eval_batch_size": EVAL_EPISODES, "eval_capture_video": find_spec("av") is not None}
    eval_view, evaluation = run_evaluation(context, evaluation_payload(context.trainer(), view.run_id, options))
    if evaluation is None:
        return report_end(context, eval_view)
    summary = evaluation.summary
    files = {"curve": _save_curve(context, view), **_list_made_files(context.trainer(), view, eval_view)}
    if context.is_json:
        output.print_json(
            {**view.model_dump(mode="json"), "evaluation": summary_json(eval_view.run_id, summary), "made": files}
        )
    else:
        _print_report(view, summary, files, time.monotonic() - began_at)
        if open_workbench_detached(context.workspace.root, view.run_id):
            output.echo("\nThe workbench opens on this run; close it whenever you like.")
        else:
            output.echo("\nThere is no display or no Qt here, so the workbench does not open. Elsewhere: mosaic gui")
    return 0


def _save_curve(context: CliContext, view: RunView) -> str | None:
    path = context.workspace.exports(view.run_id) / "curve.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        save_curve(context.trainer(), view, path)
    except MissingExtra as error:
        output.print_message(str(error))
        return None
    return str(path)


def _list_made_files(trainer: TrainerClient, view: RunView, eval_view: RunView) -> dict[str, str | None]:
    files = list_artifacts(trainer, view)
    videos = trainer.files(eval_view.run_id, "videos/*.mp4")
    video = f"{eval_view.run_dir}/{videos[0].name}" if videos else None
    return {"video": video, "checkpoint": files.get("checkpoint"), "tensorboard": files.get("tensorboard")}


def _print_report(view: RunView, summary: EvaluationSummary, artifacts: dict[str, str | None], took_s: float) -> None:
    short = formatting.short_id(view.run_id)
    console = output.console()
    console.print(
        "\nThe agent learned to balance the pole: its mean return was "
        f"{formatting.format_number(view.episodic_return)} at the end of training and "
        f"{formatting.format_number(summary.avg_return)} on {summary.episodes} fresh "
        f"seeds ({formatting.format_duration(took_s)} in all, {formatting.format_count(view.sps)} steps/s)."
    )
    output.echo("\nWhat it wrote:")
    output.print_fields(artifacts.items(), "  ")
    output.echo("\nTry next:")
    commands = [
        (f"show {short}", "everything about this run"),
        ("gui", "the workbench: train, watch and compare in a window"),
        ("train ppo --env-id Acrobot-v1", "another environment"),
    ]
    output.print_fields([(f"{_program_name()} {arguments}", effect) for arguments, effect in commands], "  ")


def _program_name() -> str:
    """How to call us from here: the virtual environment need not be on the path."""
    return "mosaic" if shutil.which("mosaic") else os.path.relpath(sys.argv[0])
