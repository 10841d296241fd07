"""`mosaic eval`: a trained policy on fresh seeds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.cli.run_arguments import run_argument
from mosaic.cli.run_follower import exit_code, report_end, submit_and_follow
from mosaic.cli.text_histogram import histogram_rows
from mosaic.contracts.errors import BadInput, MosaicError, NotAllowed, RunEnded
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.run_kind import RunKind
from mosaic.submission.run_payloads import build_eval_payload
from mosaic.workers import discover_workers

if TYPE_CHECKING:
    from mosaic.client import TrainerClient

if TYPE_CHECKING:
    from mosaic.contracts.views import EvaluationSummary, RunView

Json = dict[str, Any]
SUMMARY_KEYS = (
    *("episodes", "avg_return", "median_return", "min_return", "max_return", "std_return"),
    *("iqm", "ci95", "returns"),
)
MODEL_SUFFIXES = (".cleanrl_model", ".pt", ".pth")


@dataclass(frozen=True)
class EvalOptions:
    """How a policy is to be evaluated."""

    episodes: int = 50
    checkpoint: str = "last"
    has_video: bool = False
    seed_override: int | None = None
    is_repeated: bool = False
    env_id: str | None = None
    algo: str | None = None
    grid_limit: int | None = None
    is_stochastic: bool = False


@command("eval")
@run_argument("policy", "RUN|CHECKPOINT")
@click.option(
    "--episodes",
    metavar="N",
    type=click.IntRange(1),
    default=EvalOptions.episodes,
    show_default=True,
    help="How many to play in each batch.",
)
@click.option("--repeat", is_flag=True, help="Batch after batch on further seeds, until Ctrl-C.")
@click.option(
    "--checkpoint", default="last", show_default=True, metavar="best|last|STEP", help="Which of the run's policies."
)
@click.option("--video", is_flag=True, help="Record the first episodes.")
@click.option("--stochastic", is_flag=True, help="Draw actions as in training, instead of taking the best one.")
@click.option(
    "--seed-override",
    metavar="N",
    type=click.IntRange(0),
    help="First seed, instead of seeds that training never uses.",
)
@click.option("--env-id", metavar="ID", help="Another environment, with the same spaces.")
@click.option("--algo", metavar="NAME", help="The algorithm, where the file does not contain it.")
@click.option("--grid", metavar="N", type=click.IntRange(1), help="How many environments can be watched.")
@pass_context
def evaluate(
    context: CliContext,
    policy: str,
    episodes: int,
    repeat: bool,
    checkpoint: str,
    video: bool,
    stochastic: bool,
    seed_override: int | None,
    env_id: str | None,
    algo: str | None,
    grid: int | None,
) -> int:
    """Evaluates a policy on fresh seeds, deterministically. An evaluation is a run.

    RUN is a run that has trained one. CHECKPOINT is the folder of a checkpoint or of a run, a .cleanrl_model, or a
    file with weights only, with --algo and --env-id.
    """
    context.print_workspace()
    wanted = EvalOptions(episodes, checkpoint, video, seed_override, repeat, env_id, algo, grid, stochastic)
    view, summary = run_evaluation(context, policy, wanted)
    is_done = view.stage == "finished" and (view.outcome == "succeeded" or (repeat and summary is not None))
    if not is_done:
        report_end(context, view)
    elif context.is_json:
        output.print_json(None if summary is None else summary_json(view.run_id, summary))
    if summary is not None and not context.is_json:
        print_summary(view.run_id, summary)
    return 0 if is_done else exit_code(view)


def run_evaluation(context: CliContext, policy: str, options: EvalOptions) -> tuple[RunView, EvaluationSummary | None]:
    """The evaluation's last view and its summary; none where no batch was completed."""
    trained, path = _resolve_policy(context.trainer(), policy, options)
    payload = build_eval_payload(
        trained,
        path,
        options.episodes,
        options.has_video,
        options.seed_override,
        is_repeated=options.is_repeated,
        is_stochastic=options.is_stochastic,
        video_mode=None if options.grid_limit is None else "grid",
        grid_limit=options.grid_limit,
    )
    view = submit_and_follow(context, payload, target_episodes=None if options.is_repeated else options.episodes)
    if view.stage != "finished" or view.outcome not in ("succeeded", "cancelled"):
        return view, None
    evaluation = next(iter(context.trainer().evaluations(view.run_id)), None)
    if evaluation is None and view.outcome == "succeeded":
        raise RunEnded(f"The evaluation ended without a complete batch. Its folder: {view.run_dir}")
    return view, None if evaluation is None else evaluation.summary


def _resolve_policy(trainer: TrainerClient, policy: str, options: EvalOptions) -> tuple[Json, str]:
    """What its policy was trained by and on, in the form of a payload, and where it lies."""
    if is_policy_path(policy):
        if options.checkpoint != "last":
            raise BadInput(
                "--checkpoint chooses among those of a run; a path names one already. Leave one of them out."
            )
        config, worker, path = _inspect_policy_file(trainer, Path(policy).expanduser().absolute())
    else:
        view = resolve_trained_run(trainer, policy)
        found = None if view.kind == RunKind.POLICY_EVAL else checkpoint_path(view, options.checkpoint)
        if found is not None and found.is_file():
            config, worker, path = _inspect_policy_file(trainer, found)
        else:
            payload = trainer.config(view.run_id)
            chosen = payload["metadata"]["worker"]
            config, worker = dict(chosen["config"]), chosen["id"]
            # For an evaluation: the policy that it evaluated.
            path = payload["evaluation"]["policy_path"] if found is None else str(found)
    config |= {key: value for key, value in (("algo", options.algo), ("env_id", options.env_id)) if value is not None}
    return {"metadata": {"worker": {"id": worker, "config": config}}}, path


def is_policy_path(policy: str) -> bool:
    """Whether a file or folder is meant, and not a run."""
    return (
        os.sep in policy or policy.startswith((".", "~")) or policy.endswith(MODEL_SUFFIXES) or Path(policy).is_file()
    )


def _inspect_policy_file(trainer: TrainerClient, path: Path) -> tuple[Json, str, str]:
    """What a worker that can load policies reports about a file."""
    if not path.exists():
        raise BadInput(f"There is no file or folder {path}.")
    refused: MosaicError = NotAllowed("No worker here can load policies.")
    for worker in discover_workers().values():
        if worker.can_load_policies:
            try:
                found = trainer.ask_worker(worker.id, {"ask": "checkpoint", "path": str(path)})["checkpoint"]
            except BadInput as error:
                refused = error
                continue
            config = {key: found[key] for key in ("algo", "env_id", "seed") if found.get(key) is not None}
            return config, worker.id, str(found.get("path") or path)
    raise refused


def resolve_trained_run(trainer: TrainerClient, run: str) -> RunView:
    """`last` means the last training run, as evaluations are runs, too."""
    view = trainer.get(run)
    if run == "last" and view.kind != RunKind.TRAIN:
        return next((other for other in trainer.runs() if other.kind == RunKind.TRAIN), view)
    return view


def checkpoint_path(view: RunView, which: str) -> Path:
    """The checkpoint that is meant, or the model file of a run without any; NotAllowed where the run has none."""
    if which not in ("best", "last") and not which.isdecimal():
        raise BadInput(f"--checkpoint {which!r}: expected best, last or the step of a checkpoint.")
    folder = RunFolder(view.run_dir)
    path = folder.checkpoints / which
    if path.exists():
        return folder.checkpoints / path.resolve().name  # `last` moves on while the run still trains
    steps = sorted(int(one.name) for one in folder.checkpoints.glob("*") if one.name.isdecimal())
    models = sorted(folder.models.rglob(f"*{MODEL_SUFFIXES[0]}"), key=lambda model: model.stat().st_mtime)
    if which == "last" and models and not steps:
        return models[-1]
    has = "It has those of steps " + ", ".join(map(str, steps)) if steps else "It has saved none yet"
    raise NotAllowed(f"Run {output.short_id(view.run_id)} has no checkpoint {which!r}. {has}.")


def print_summary(run_id: str, summary: EvaluationSummary) -> None:
    from rich.text import Text

    output.print_fields(summary_rows(run_id, summary))
    rows = histogram_rows(summary.returns)
    if not rows:
        return
    table = output.create_table("RETURN", "EPISODES", "", right_aligned=("RETURN", "EPISODES"))
    for span, bar, count in rows:
        table.add_row(span, str(count), Text(bar, style="cyan"))
    screen = output.console()
    screen.print()
    screen.print(table)


def summary_rows(run_id: str, summary: EvaluationSummary) -> list[tuple[str, str]]:
    number = output.format_number
    interval = "no interval: it needs at least two episodes"
    if summary.ci95 is not None:
        interval = f"95 % interval: {number(summary.ci95[0])} to {number(summary.ci95[1])}"
    return [
        ("episodes", number(summary.episodes)),
        ("mean return", f"{number(summary.avg_return)} ({interval})"),
        ("deviation", number(summary.std_return)),
        ("median", number(summary.median_return)),
        ("worst, best", f"{number(summary.min_return)}, {number(summary.max_return)}"),
        ("middle half", f"{number(summary.iqm)} on average (IQM)"),
        ("run", run_id),
    ]


def summary_json(run_id: str, summary: EvaluationSummary) -> dict[str, Any]:
    return {**summary.model_dump(mode="json", include=set(SUMMARY_KEYS)), "run_id": run_id}
