"""Runs one training or evaluation from its config to its last file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from bdi_worker import WORKER_NAME
from bdi_worker.policy import load_for_evaluation, recording_header
from bdi_worker.training import Training, check_training
from bdi_worker.worker_config import BdiSettings, WorkerRequest
from mosaic import __version__
from mosaic.arena.evaluation_batches import EvaluatedPolicy, play_batches
from mosaic.arena.training_artifacts import record_training_episodes, record_training_videos
from mosaic.contracts.errors import CheckpointDamaged
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.options import OPTIONS
from mosaic.run import Checkpoint, Run, last_good_checkpoint
from mosaic.run.worker_run import finish_with_errors, make_live_frames, tensorboard_folder

TRAINING_CAPABILITIES = ("inbox", "pause", "checkpoint", "resume")
EVALUATION_CAPABILITIES = ("inbox", "pause")


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


def _evaluate(request: WorkerRequest, loaded: EvaluatedPolicy, folder: RunFolder) -> None:
    with _open_run(request, folder, capabilities=EVALUATION_CAPABILITIES) as run:
        run.hello()
        run.frames = make_live_frames(request.payload, run, loaded.env_id)
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
        run.frames = make_live_frames(request.payload, run, settings.env_id)
        header = recording_header(settings, settings.env_id)
        resumed_from = None if resumed is None else resumed.step
        with (
            record_training_videos(request.payload, run),
            record_training_episodes(request.payload, run, header, resumed_from),
        ):
            Training(settings, run, resumed).train()
        is_done = run.global_step >= settings.total_timesteps or not run.stop_requested
        run.finish("succeeded" if is_done else "stopped")


@contextlib.contextmanager
def _open_run(request: WorkerRequest, folder: RunFolder, **options: Any) -> Iterator[Run]:
    with (
        Run(
            folder,
            worker=WORKER_NAME,
            version=__version__,
            tensorboard=tensorboard_folder(request.payload, folder),
            names=request.names,
            **options,
        ) as run,
        finish_with_errors(run),
    ):
        yield run
