"""`mosaic push` and `mosaic pull`: policies to and from the Hugging Face Hub."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mosaic.base import formatting
from mosaic.cli import output
from mosaic.cli.context import CliContext, command, pass_context
from mosaic.cli.parameters import DURATION, find_run, run_argument
from mosaic.contracts.errors import BadInput, MosaicError, NotAllowed
from mosaic.contracts.folder import RunFolder
from mosaic.features.evaluate.api import choose_checkpoint
from mosaic.trainer.client.run_lookup import has_policy

if TYPE_CHECKING:
    from mosaic.features.hub.core import PolicyDescription, PullResult
    from mosaic.trainer.client.trainer_client import TrainerClient

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView

_TIMEOUT_OPTION = click.option(
    "--timeout",
    "timeout_s",
    metavar="DURATION",
    type=DURATION,
    default=60.0,
    show_default=True,
    help="How long the Hub may take to answer.",
)


@command()
@run_argument()
@click.option("--repo", required=True, metavar="OWNER/NAME", help="The model repository; created if it does not exist.")
@click.option("--private", "is_private", is_flag=True, help="Create it as a private repository.")
@click.option("--checkpoint", default="last", show_default=True, metavar="best|last|STEP", help="Checkpoint to push.")
@click.option("--with-video/--no-video", "has_video", default=True, show_default=True, help="Include a video.")
@_TIMEOUT_OPTION
@pass_context
def push(
    context: CliContext, run: str, repo: str, is_private: bool, checkpoint: str, has_video: bool, timeout_s: float
) -> None:
    """Pushes a run's policy to the Hugging Face Hub, with settings, evaluation, video and a model card.

    Pushing to the same repository again adds a commit; files that the Hub has already are not uploaded again. The token
    is taken from HF_TOKEN or from `hf auth login`.
    """
    from mosaic.features.hub.core import PushRequest
    from mosaic.features.hub.core_push import push as push_policy

    context.require_local()
    context.print_workspace()
    trainer = context.trainer()
    view = find_run(context, run, lambda view: has_policy(view) and view.checkpoint_step is not None)
    folder = RunFolder(view.run_dir)
    chosen = trainer.open_file(view.run_id, choose_checkpoint(trainer, view, checkpoint))
    if not chosen.is_dir():
        raise NotAllowed(f"Run {formatting.short_id(view.run_id)} has a model file, but no checkpoint to push.")
    with tempfile.TemporaryDirectory() as scratch, output.progress_bar(f"Pushing to {repo}") as on_progress:
        request = PushRequest(
            repo=repo,
            folder=folder,
            checkpoint=chosen,
            evaluation=_find_evaluation(trainer, folder, int(chosen.name)),
            model=_export_model(trainer, view, folder, chosen, Path(scratch)),
            is_private=is_private,
            has_video=has_video,
        )
        result = push_policy(request, on_progress, timeout_s)
    if context.is_json:
        output.print_json({"run_id": view.run_id, **asdict(result)})
        return
    for sentence in result.left_out:
        output.print_message(sentence.replace("RUN", formatting.short_id(view.run_id)))
    output.echo(f"Pushed step {result.step:,} ({formatting.format_size(result.size_bytes)}) to {result.url}")


def _export_model(
    trainer: TrainerClient, view: RunView, folder: RunFolder, checkpoint: Path, scratch: Path
) -> Path | None:
    """Lets the worker write CleanRL's model file of this checkpoint; a run has one of its last checkpoint only."""
    from mosaic.features.hub.core import MODEL_SUFFIX, find_model_file

    if find_model_file(folder, checkpoint) is not None:
        return None
    into = scratch / f"{view.algo}{MODEL_SUFFIX}"
    try:
        trainer.ask_worker(view.worker, {"ask": "model", "path": str(checkpoint), "into": str(into)})
    except MosaicError:
        return None  # the worker does not support that format; the push reports what is missing
    return into


def _find_evaluation(trainer: TrainerClient, folder: RunFolder, step: int) -> RunFolder | None:
    """Returns the newest evaluation of that checkpoint with at least one complete batch."""
    for evaluation in trainer.read_evaluations():
        policy = Path(evaluation.summary.policy_path or "/")
        if evaluation.summary.checkpoint_step == step and folder.path.resolve() in policy.resolve().parents:
            return RunFolder(trainer.get_run(evaluation.run_id).run_dir)
    return None


@command()
@click.argument("repo", metavar="OWNER/NAME")
@click.option("--revision", metavar="SHA", help="A branch, tag or commit.  [default: the newest commit of main]")
@click.option("--out", metavar="DIR", type=click.Path(), help="Create the run's folder here, outside the workspace.")
@click.option(
    "--max-gb", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True, metavar="GB",
    help="Refuse a policy with more.",
)  # fmt: skip
@_TIMEOUT_OPTION
@pass_context
def pull(
    context: CliContext, repo: str, revision: str | None, out: str | None, max_gb: float, timeout_s: float
) -> None:
    """Downloads a policy from the Hugging Face Hub as a run, to be evaluated like any other.

    Accepts repositories of `mosaic push` and of CleanRL's own scripts. Every file is checked against its hash, and no
    code in it is run.
    """
    target = _check_target_folder(out) if out is not None else None
    context.print_workspace()
    parent = target.parent if target else context.workspace.trainer
    if target is None:
        context.trainer()  # creates the workspace, as the user's own, before something is written there
    # On the same disk as the run's final folder.
    with tempfile.TemporaryDirectory(prefix=".pulling-", dir=parent, ignore_cleanup_errors=True) as staging:
        folder, result = _pull_run(context, repo, revision, Path(staging), timeout_s, max_gb)
        if target is not None:
            folder.path.replace(target)
            imported: RunView | None = None
            run_dir = str(target)
        else:
            imported = context.trainer().import_run(str(folder.path))
            run_dir = imported.run_dir
    if context.is_json:
        view = {"run_id": folder.run_id, "run_dir": run_dir} if imported is None else imported.model_dump(mode="json")
        output.print_json({**view, "repo": result.repo, "commit": result.commit, "url": result.url})
        return
    policy = result.policy
    output.echo(f"Pulled {policy.algo} on {policy.env_id} to {run_dir}")
    output.echo(f"Evaluate it: mosaic eval {_eval_argument(RunFolder(run_dir), policy, target)}")


def _pull_run(
    context: CliContext, repo: str, revision: str | None, staging: Path, timeout_s: float, max_gb: float
) -> tuple[RunFolder, PullResult]:
    """Creates a run folder inside `staging`, checked by the worker that will load it."""
    from ulid import ULID

    from mosaic.features.hub.core_pull import check_loadable, create_run_folder
    from mosaic.features.hub.core_pull import pull as pull_policy

    downloaded = staging / "repository"
    downloaded.mkdir()
    with output.progress_bar(f"Pulling {repo}") as on_progress:
        result = pull_policy(repo, downloaded, revision, on_progress, timeout_s, max_gb)
    policy = result.policy
    check_loadable(policy)
    folder = RunFolder(staging / str(ULID()))
    create_run_folder(downloaded, folder, folder.run_id, result)
    context.trainer().ask_worker(policy.worker, {"ask": "checkpoint", "path": str(_policy_file(folder, policy))})
    return folder, result


def _policy_file(folder: RunFolder, policy: PolicyDescription) -> Path:
    if policy.step is not None:
        return folder.checkpoint(policy.step)
    return next(folder.models.glob("*/*"))


def _eval_argument(folder: RunFolder, policy: PolicyDescription, target: Path | None) -> str:
    if policy.step is None:
        return f"'{next(folder.models.glob('*/*'))}'"
    return formatting.short_id(folder.run_id) if target is None else f"'{folder.path}'"


def _check_target_folder(out: str) -> Path:
    target = Path(out).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadInput(f"--out {out}: the folder exists and is not empty. Choose another one.")
    if not target.parent.is_dir():
        raise BadInput(f"--out {out}: there is no folder {target.parent}.")
    return target
