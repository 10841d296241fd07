"""Runs one training or evaluation from its config to its last file."""

from __future__ import annotations

from collections.abc import Callable

from bdi_worker import WORKER_NAME
from bdi_worker.policy import load_for_evaluation, recording_header
from bdi_worker.training import Training, check_training
from bdi_worker.worker_config import BdiSettings, WorkerRequest
from mosaic.contracts.folder import RunFolder
from mosaic.worker.checkpoints import Checkpoint
from mosaic.worker.evaluation_batches import EvaluatedPolicy, play_batches
from mosaic.worker.recorders import record_training
from mosaic.worker.run import Run
from mosaic.worker.worker_run import open_evaluation, open_training, require_checkpoint

Job = Callable[[], None]


def build_job(request: WorkerRequest, folder: RunFolder, is_resume: bool) -> Job:
    """Check everything as a dry run does, so that a refusal comes before the folder is touched."""
    if request.payload.is_evaluation:
        _, loaded = load_for_evaluation(request)
        return lambda: _evaluate(request, loaded, folder)
    settings = request.settings()
    resumed = require_checkpoint(folder) if is_resume else None
    check_training(settings, resumed)
    return lambda: _train(request, settings, folder, resumed)


def _evaluate(request: WorkerRequest, loaded: EvaluatedPolicy, folder: RunFolder) -> None:
    with open_evaluation(Run, WORKER_NAME, request, folder, loaded.env_id) as run:
        play_batches(request.payload, loaded, run)


def _train(request: WorkerRequest, settings: BdiSettings, folder: RunFolder, resumed: Checkpoint | None) -> None:
    with open_training(Run, WORKER_NAME, request, folder, settings, resumed) as run:
        with record_training(request.payload, run, recording_header(settings, settings.env_id), resumed):
            Training(settings, run, resumed).train()
        is_done = run.global_step >= settings.total_timesteps or not run.stop_requested
        run.finish("succeeded" if is_done else "stopped", None if is_done else run.stop_note)
