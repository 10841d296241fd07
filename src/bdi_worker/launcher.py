"""Runs one training or evaluation from its config to its last file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bdi_worker import WORKER_NAME
from bdi_worker.policy import load_for_evaluation
from bdi_worker.training import Training, check_training
from bdi_worker.worker_config import BdiSettings, WorkerRequest
from mosaic import __version__
from mosaic.arena.evaluation_batches import EvaluatedPolicy, play_batches
from mosaic.contracts.errors import BadInput, CheckpointDamaged, MosaicError
from mosaic.contracts.folder import RUN_DIR_VARIABLE, TENSORBOARD_VARIABLE, RunFolder, Workspace
from mosaic.contracts.options import OPTIONS
from mosaic.envs.factory import render_help
from mosaic.run import Checkpoint, Run, last_good_checkpoint
from mosaic.run.live_frames import LiveFrames

TRAINING_CAPABILITIES = ("inbox", "pause", "checkpoint", "resume")
EVALUATION_CAPABILITIES = ("inbox", "pause")


def run_folder(run_id: str) -> RunFolder:
    """Return the folder given by the environment, else one in the workspace."""
    run_dir = os.environ.get(RUN_DIR_VARIABLE)
    return RunFolder(run_dir) if run_dir else Workspace.resolve().run(run_id)


Job = Callable[[], None]


def build_job(request: WorkerRequest, folder: RunFolder, is_resume: bool) -> Job:
    """Check everything as a dry run does, so that a refusal comes before the folder is touched."""
    if request.payload.is_evaluation:
        _, loaded = load_for_evaluation(request)
        return lambda: _evaluate(request, loaded, folder)
    settings = request.settings()
    resumed = last_good_checkpoint(folder) if is_resume else None
    if is_resume and resumed is None:
        # From the beginning it would lose the curve that it has.
        reason = f"There is no intact checkpoint to resume from in {folder.checkpoints}"
        raise CheckpointDamaged(f"{reason}. Train it again from the beginning: mosaic resubmit {folder.run_id}")
    check_training(settings, resumed)
    return lambda: _train(request, settings, folder, resumed)


def write_rejection(folder: RunFolder, reason: str) -> None:
    """Record that the worker refused an accepted run."""
    with Run(folder, worker=WORKER_NAME, version=__version__, capabilities=()) as run:
        if run.attempt == 1:  # a later attempt that starts nothing must not drop the results of earlier ones
            run.hello()
        run.finish("rejected", reason)


def _evaluate(request: WorkerRequest, loaded: EvaluatedPolicy, folder: RunFolder) -> None:
    with _open_run(request, folder, capabilities=EVALUATION_CAPABILITIES) as run:
        run.hello()
        run.frames = _make_live_frames(request, run, loaded.env_id)
        play_batches(request.payload, loaded, run)


def _train(request: WorkerRequest, settings: BdiSettings, folder: RunFolder, resumed: Checkpoint | None) -> None:
    with _open_run(
        request,
        folder,
        capabilities=TRAINING_CAPABILITIES,
        total_timesteps=settings.total_timesteps,
        keep_checkpoints=request.payload.artifacts.keep_checkpoints or OPTIONS["keep_checkpoints"].default,
        checkpoint_every=settings.checkpoint_interval,
    ) as run:
        run.hello(resumed)
        if resumed is None:
            run.hyperparameters(settings.model_dump())
        run.frames = _make_live_frames(request, run, settings.env_id)
        Training(settings, run, resumed).train()
        is_done = run.global_step >= settings.total_timesteps or not run.stop_requested
        run.finish("succeeded" if is_done else "stopped")


@contextlib.contextmanager
def _open_run(request: WorkerRequest, folder: RunFolder, **options: Any) -> Iterator[Run]:
    """Open the run. An error that the user can act on ends it with that reason."""
    with Run(
        folder,
        worker=WORKER_NAME,
        version=__version__,
        tensorboard=_tensorboard_folder(request, folder),
        names=request.names,
        **options,
    ) as run:
        try:
            yield run
        except MosaicError as error:
            run.finish("rejected" if isinstance(error, BadInput) else "failed", str(error))
            raise


def _tensorboard_folder(request: WorkerRequest, folder: RunFolder) -> Path | None:
    tensorboard = request.payload.artifacts.tensorboard
    if not tensorboard.enabled:
        return None
    if tensorboard.directory is not None:
        return folder.path / tensorboard.directory
    if request.payload.is_evaluation:
        return folder.tensorboard_eval
    directory = os.environ.get(TENSORBOARD_VARIABLE)
    return Path(directory).absolute() if directory else folder.tensorboard


def _make_live_frames(request: WorkerRequest, run: Run, env_id: str) -> LiveFrames | None:
    video = request.payload.artifacts.video
    if video.mode == "off":
        return None
    limit = 1 if video.mode == "single" else video.grid_limit
    return LiveFrames(run.folder, limit, run.warn, render_help(env_id))
