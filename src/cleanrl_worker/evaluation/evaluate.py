"""Evaluates a policy of this worker: in a run of its own, or after training."""

from __future__ import annotations

from dataclasses import replace

from cleanrl_worker.evaluation.loading import LoadedPolicy, load_for_evaluation
from cleanrl_worker.shell.launcher import ConsoleRun
from cleanrl_worker.shell.worker_config import WORKER_NAME, WorkerRequest
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.options import RunKind
from mosaic.worker.evaluation_batches import EvaluationBatches, play_batches
from mosaic.worker.run import Run
from mosaic.worker.worker_run import open_evaluation

EPISODES_AFTER_TRAINING = 10


def run_evaluation(request: WorkerRequest, loaded: LoadedPolicy, folder: RunFolder) -> None:
    """Run one batch, or batches until stopped."""
    with open_evaluation(ConsoleRun, WORKER_NAME, request, folder, loaded.env_id) as run:
        play_batches(request.payload, loaded, run)


def evaluate_after_training(request: WorkerRequest, run: Run, logs_points: bool) -> None:
    """Evaluate as CleanRL does after saving a model: some episodes, whose returns go to the run's event file.

    They do not where the run was evaluated during training: their points would be by number, not by step.
    """
    evaluation = request.evaluation.model_copy(
        update={
            "policy_path": str(run.folder.path),
            "episodes": request.evaluation.episodes or EPISODES_AFTER_TRAINING,
        }
    )
    payload = request.payload.model_copy(update={"kind": RunKind.POLICY_EVAL, "evaluation": evaluation})
    config = request.config.model_copy(update={"algo": None, "env_id": None, "algo_params": {}})
    try:
        loaded = load_for_evaluation(replace(request, config=config, payload=payload))
        batches = EvaluationBatches(payload, loaded, run, is_evaluation_run=False, logs_points=logs_points)
        try:
            batches.play_batch()
        finally:
            batches.close()
    except MosaicError as error:
        run.warn(f"The policy was trained but could not be evaluated: {error}", "eval_summary_warning")
