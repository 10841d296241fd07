"""The results of a workspace's evaluations, read from their run folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import structlog

from mosaic.common.eval_summary import EvalSummaryInvalid, read_eval_summary
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.views import Evaluation, EvaluationSummary, TrainedRun
from mosaic.trainer.records import Records

log = structlog.get_logger("mosaic.trainer.evaluation_results")


def evaluations(records: Records, run_id: str = "", env_id: str = "") -> Iterator[Evaluation]:
    """Newest first, without evaluations that have no complete batch yet or whose summary is invalid.

    A training run that ended with an evaluation counts as one.
    """
    for record, _ in records.index.list_runs(run_id=run_id):
        folder = records.folder(record.run_id)
        summary = read_summary(folder)
        if summary is None or (env_id and summary.env_id != env_id):
            continue
        yield Evaluation(
            run_id=record.run_id,
            stage=record.stage,
            outcome=record.outcome,
            evaluated_at=record.finished_at or folder.eval_summary.stat().st_mtime,
            summary=summary,
            trained=_training_run_of(records, summary.policy_path or ""),
        )


def read_summary(folder: RunFolder) -> EvaluationSummary | None:
    """None where there is none, or where it is invalid: other people's workers write it, too."""
    try:
        return read_eval_summary(folder.eval_summary)
    except EvalSummaryInvalid as error:
        log.info("evaluation_unreadable", run_id=folder.run_id, error=str(error))
        return None


def _training_run_of(records: Records, policy_path: str) -> TrainedRun | None:
    """A run's folder is named by its id, wherever the workspace has been moved to."""
    for part in reversed(PurePath(policy_path).parts):
        record = records.index.get_record(part)
        if record is not None:
            return TrainedRun(run_id=record.run_id, run_name=record.run_name, algo=record.algo, seed=record.seed)
    return None
