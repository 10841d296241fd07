"""What every worker does around its training or evaluation, by the sections of the payload that all of them share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mosaic import __version__
from mosaic.base.files import file_size
from mosaic.contracts.errors import BadInput, CheckpointDamaged, MosaicError
from mosaic.contracts.folder import RUN_DIR_VARIABLE, TENSORBOARD_VARIABLE, RunFolder, Workspace
from mosaic.contracts.options import OPTIONS
from mosaic.contracts.payload import Payload
from mosaic.worker.checkpoints import Checkpoint, last_good_checkpoint
from mosaic.worker.envs.factory import render_help
from mosaic.worker.live_frames import LiveFrames
from mosaic.worker.run import Run

TRAINING_CAPABILITIES = ("inbox", "pause", "checkpoint", "resume")
AnyRun = TypeVar("AnyRun", bound=Run)


class DecodedRequest(Protocol):
    """A worker's request: its payload, and the names that its config gives to the worker process and to the agent."""

    @property
    def payload(self) -> Payload: ...
    @property
    def names(self) -> dict[str, str]: ...


class TrainingSettings(Protocol):
    """The settings that every training has."""

    @property
    def env_id(self) -> str: ...
    @property
    def total_timesteps(self) -> int: ...
    @property
    def checkpoint_interval(self) -> int: ...
    @property
    def checkpoint_minutes(self) -> float: ...
    def model_dump(self) -> dict[str, Any]: ...


def run_folder(run_id: str) -> RunFolder:
    """Return the folder given by the environment, else one in the workspace."""
    run_dir = os.environ.get(RUN_DIR_VARIABLE)
    return RunFolder.hold(run_dir) if run_dir else Workspace.resolve().run(run_id)


def require_free_folder(folder: RunFolder, is_resume: bool) -> None:
    """Raise if a worker that was started by hand would write into the folder of another run."""
    if not is_resume and (folder.record.exists() or file_size(folder.journal) > 0):
        raise BadInput(
            f"There is a run {folder.run_id!r} already, in {folder.path}. Give another run_id, or none; or continue "
            "that run from its last checkpoint: --resume"
        )


def tensorboard_folder(payload: Payload, folder: RunFolder) -> Path | None:
    """Return the folder of event files; None if they are disabled."""
    tensorboard = payload.artifacts.tensorboard
    if not tensorboard.enabled:
        return None
    if tensorboard.directory is not None:
        return folder.path / tensorboard.directory
    if payload.is_evaluation:
        return folder.tensorboard_eval
    directory = os.environ.get(TENSORBOARD_VARIABLE)
    is_own = not directory or os.path.abspath(directory) == str(folder.origin / folder.tensorboard.name)
    return folder.tensorboard if is_own or not directory else Path(directory).absolute()


def make_live_frames(payload: Payload, run: Run, env_id: str) -> LiveFrames | None:
    """Publish frames as set by `artifacts.video.mode`; nothing is rendered without a viewer."""
    video = payload.artifacts.video
    if video.mode == "off":
        return None
    limit = 1 if video.mode == "single" else video.grid_limit
    return LiveFrames(run.folder, limit, run.warn, render_help(env_id))


def require_checkpoint(folder: RunFolder) -> Checkpoint:
    """Return the checkpoint from which a run resumes."""
    checkpoint = last_good_checkpoint(folder)
    if checkpoint is None:
        # From the beginning it would lose the curve that it has.
        reason = f"There is no intact checkpoint to resume from in {folder.checkpoints}"
        raise CheckpointDamaged(f"{reason}. Train it again from the beginning: mosaic resubmit {folder.run_id}")
    return checkpoint


@contextmanager
def open_training(
    kind: type[AnyRun],
    worker: str,
    request: DecodedRequest,
    folder: RunFolder,
    settings: TrainingSettings,
    resumed: Checkpoint | None,
) -> Iterator[AnyRun]:
    """Open and announce the run of a training. An error that the user can act on ends it with that reason."""
    with _open_run(
        kind,
        worker,
        request,
        folder,
        capabilities=TRAINING_CAPABILITIES,
        total_timesteps=settings.total_timesteps,
        keep_checkpoints=request.payload.artifacts.keep_checkpoints or OPTIONS["keep_checkpoints"].default,
        checkpoint_every=settings.checkpoint_interval,
        checkpoint_minutes=settings.checkpoint_minutes,
    ) as run:
        run.hello(resumed)
        if resumed is None:
            run.hyperparameters(settings.model_dump())
        run.env_id = settings.env_id
        run.frames = make_live_frames(request.payload, run, settings.env_id)
        yield run


@contextmanager
def open_evaluation(
    kind: type[AnyRun], worker: str, request: DecodedRequest, folder: RunFolder, env_id: str
) -> Iterator[AnyRun]:
    """Do the same for an evaluation."""
    with _open_run(kind, worker, request, folder, capabilities=("inbox", "pause")) as run:
        run.hello()
        run.frames = make_live_frames(request.payload, run, env_id)
        yield run


@contextmanager
def _open_run(
    kind: type[AnyRun], worker: str, request: DecodedRequest, folder: RunFolder, **options: Any
) -> Iterator[AnyRun]:
    tensorboard = tensorboard_folder(request.payload, folder)
    with (
        kind(
            folder, worker=worker, version=__version__, tensorboard=tensorboard, names=request.names, **options
        ) as run,
        finish_with_errors(run),
    ):
        yield run


@contextmanager
def finish_with_errors(run: Run) -> Iterator[None]:
    """End the run with the reason of an error that the user can act on."""
    try:
        yield
    except MosaicError as error:
        run.finish("rejected" if isinstance(error, BadInput) else "failed", str(error))
        raise


def write_rejection(worker: str, folder: RunFolder, reason: str) -> None:
    """Record that the worker refused an accepted run."""
    with Run(folder, worker=worker, version=__version__, capabilities=()) as run:
        if run.attempt == 1:  # a later attempt that starts nothing must not drop the results of earlier ones
            run.hello()
        run.finish("rejected", reason)
