"""`mosaic push` and `mosaic pull`: policies to and from the Hugging Face Hub."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.cli.evaluate_command import checkpoint_path, resolve_trained_run
from mosaic.cli.run_arguments import run_argument
from mosaic.contracts.errors import BadInput, MosaicError, NotAllowed
from mosaic.contracts.folder import RunFolder

if TYPE_CHECKING:
    from mosaic.client import TrainerClient
    from mosaic.hub.description import PolicyDescription
    from mosaic.hub.hub_client import OnProgress

Json = dict[str, Any]
_TIMEOUT_OPTION = click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    help="How long the Hub may be silent.",
)


@command()
@run_argument()
@click.option("--repo", required=True, metavar="OWNER/NAME", help="The model on the Hub; made where there is none.")
@click.option("--private", "is_private", is_flag=True, help="Make it a private one, where it is made.")
@click.option(
    "--checkpoint", default="last", show_default=True, metavar="best|last|STEP", help="Which of its policies."
)
@click.option("--with-video/--no-video", "has_video", default=True, show_default=True, help="Send a video along.")
@_TIMEOUT_OPTION
@pass_context
def push(
    context: CliContext, run: str, repo: str, is_private: bool, checkpoint: str, has_video: bool, timeout_s: float
) -> None:
    """Sends a run's policy to the Hugging Face Hub, with settings, evaluation, video and a model card.

    Once more to the same repository makes a new commit; what the Hub has already is not sent again. The token is that
    of HF_TOKEN or of `hf auth login`.
    """
    from mosaic.hub import hub_client, push_state

    context.print_workspace()
    trainer = context.trainer()
    view = resolve_trained_run(trainer, run)
    folder = RunFolder(view["run_dir"])
    chosen = checkpoint_path(view, checkpoint)
    if not chosen.is_dir():
        raise NotAllowed(f"Run {output.short_id(view['run_id'])} has a model file, but no checkpoint to push.")
    with tempfile.TemporaryDirectory() as scratch, _transfer_progress(f"Pushing to {repo}") as on_progress:
        done = hub_client.push(
            folder,
            chosen,
            repo,
            evaluation=_find_evaluation(trainer, folder, int(chosen.name)),
            model=_export_model(trainer, view, folder, chosen, Path(scratch)),
            is_private=is_private,
            has_video=has_video,
            timeout_s=timeout_s,
            on_progress=on_progress,
        )
    push_state.write(folder, state="pushed", **done)
    if context.is_json:
        output.print_json({"run_id": view["run_id"], **done})
        return
    for sentence in done["left_out"]:
        output.print_message(sentence.replace("RUN", output.short_id(view["run_id"])))
    click.echo(f"Pushed step {done['step']:,} ({output.format_size(done['size_bytes'])}) to {done['url']}")


def _export_model(
    trainer: TrainerClient, view: Json, folder: RunFolder, checkpoint: Path, scratch: Path
) -> Path | None:
    """The worker writes the file that users of CleanRL know of any checkpoint; a run has it of its last one only."""
    from mosaic.hub.bundle import find_model_file
    from mosaic.hub.description import MODEL_SUFFIX

    if find_model_file(folder, checkpoint) is not None:
        return None
    into = scratch / f"{view['algo']}{MODEL_SUFFIX}"
    try:
        trainer.ask_worker(view["worker"], {"ask": "model", "path": str(checkpoint), "into": str(into)})
    except MosaicError:
        return None  # a worker that knows no such form; the card says what is missing
    return into


def _find_evaluation(trainer: TrainerClient, folder: RunFolder, step: int) -> RunFolder | None:
    """The newest evaluation of that checkpoint that played at least one episode to its end."""
    from mosaic.hub.bundle import read_eval_summary

    for view in trainer.runs():
        if view["kind"] != "policy_eval":
            continue
        played = RunFolder(view["run_dir"])
        summary = read_eval_summary(played) or {}
        policy = Path(str(summary.get("policy_path") or "/"))
        if summary.get("checkpoint_step") == step and folder.path.resolve() in policy.resolve().parents:
            return played
    return None


@command()
@click.argument("repo", metavar="OWNER/NAME")
@click.option("--revision", metavar="SHA", help="A branch, tag or commit.  [default: the newest of main]")
@click.option("--out", metavar="DIR", type=click.Path(), help="Make the run's folder here, outside of the workspace.")
@_TIMEOUT_OPTION
@pass_context
def pull(context: CliContext, repo: str, revision: str | None, out: str | None, timeout_s: float) -> None:
    """Brings a policy from the Hugging Face Hub as a run, to be evaluated like any other.

    Takes repositories that `mosaic push` made, and those of CleanRL's own scripts. Every file is checked against its
    hash, and nothing in it is run.
    """
    target = _check_target_folder(out) if out is not None else None
    context.print_workspace()
    with _staging_folder(target.parent if target else context.workspace.trainer) as staging:
        made, done = _pull_run(context, repo, revision, staging, timeout_s)
        if target is not None:
            made.path.replace(target)
            view: Json = {"run_id": made.run_id, "run_dir": str(target)}
        else:
            view = context.trainer().import_run(str(made.path))
    if context.is_json:
        output.print_json({**view, "repo": done["repo"], "commit": done["commit"], "url": done["url"]})
        return
    policy = done["policy"]
    click.echo(f"{policy['algo']} on {policy['env_id']} is here now: {view['run_dir']}")
    click.echo(f"Evaluate it: mosaic eval {_eval_argument(RunFolder(view['run_dir']), policy, target)}")


def _pull_run(
    context: CliContext, repo: str, revision: str | None, staging: Path, timeout_s: float
) -> tuple[RunFolder, Json]:
    """A run folder inside of `staging`, looked through by the worker that will load it."""
    from ulid import ULID

    from mosaic.hub import hub_client, pulled_run
    from mosaic.hub.description import PolicyDescription

    downloaded = staging / "repository"
    downloaded.mkdir()
    with _transfer_progress(f"Pulling {repo}") as on_progress:
        done = hub_client.pull(repo, downloaded, revision, timeout_s=timeout_s, on_progress=on_progress)
    policy = PolicyDescription.model_validate(done["policy"])
    pulled_run.check_loadable(policy)
    made = RunFolder(staging / str(ULID()))
    pulled_run.create_run_folder(downloaded, made, made.run_id, done)
    context.trainer().ask_worker(policy.worker, {"ask": "checkpoint", "path": str(_policy_file(made, policy))})
    return made, done


def _policy_file(folder: RunFolder, policy: PolicyDescription) -> Path:
    if policy.step is not None:
        return folder.checkpoint(policy.step)
    return next(folder.models.glob("*/*"))


def _eval_argument(folder: RunFolder, policy: Json, target: Path | None) -> str:
    if policy["step"] is None:
        return f"'{next(folder.models.glob('*/*'))}'"
    return output.short_id(folder.run_id) if target is None else f"'{folder.path}'"


def _check_target_folder(out: str) -> Path:
    target = Path(out).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadInput(f"--out {out}: it is there already and not empty. Name another folder.")
    if not target.parent.is_dir():
        raise BadInput(f"--out {out}: there is no folder {target.parent}.")
    return target


@contextmanager
def _staging_folder(parent: Path) -> Iterator[Path]:
    """On the same disk as where the run will be, and gone afterwards."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".pulling-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _transfer_progress(title: str) -> Iterator[OnProgress]:
    """Bytes of files that are through; nothing where nobody sees it."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    console = output.console(is_stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TextColumn("{task.fields[file]}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=None, file="")
        yield lambda at: progress.update(task, completed=at.done_bytes, total=at.total_bytes or None, file=at.file)
