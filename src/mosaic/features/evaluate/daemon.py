"""The results of evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import structlog

from mosaic.base.eval_summary import EvalSummaryInvalid, read_eval_summary
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.trainer_pb2_handlers import Handlers
from mosaic.contracts.views import Evaluation, EvaluationSummary, TrainedRun
from mosaic.trainer.records import Records
from mosaic.trainer.services import Services

log = structlog.get_logger("mosaic.features.evaluate.daemon")


def read_evaluations(services: Services, request: pb.EvaluationsRequest) -> Iterator[Evaluation]:
    run_id = services.records.resolve(request.run) if request.run else ""
    return find_evaluations(services.records, run_id, request.env_id)


def find_evaluations(records: Records, run_id: str = "", env_id: str = "") -> Iterator[Evaluation]:
    """Newest first, without evaluations that have no complete batch yet or whose summary is invalid.

    A training run that ended with an evaluation counts as one.
    """
    for record, folder in records.runs_with("eval_summary.json", run_id):
        summary = _read_summary(folder)
        if summary is None or (env_id and summary.env_id != env_id):
            continue
        yield Evaluation(
            run_id=record.run_id,
            stage=record.stage,
            outcome=record.outcome,
            evaluated_at=record.finished_at or folder.eval_summary.stat().st_mtime,
            summary=summary,
            trained=_find_trained_run(records, summary.policy_path or ""),
        )


def _read_summary(folder: RunFolder) -> EvaluationSummary | None:
    """None where there is none, or where it is invalid: other people's workers write it, too."""
    try:
        summary = read_eval_summary(folder.eval_summary)
    except EvalSummaryInvalid as error:
        log.info("evaluation_unreadable", run_id=folder.run_id, error=str(error))
        return None
    if summary is None or summary.policy_path is None:
        return summary
    return summary.model_copy(update={"policy_path": folder.from_portable(summary.policy_path)})


def _find_trained_run(records: Records, policy_path: str) -> TrainedRun | None:
    """A run's folder is named by its id, wherever the workspace has been moved to."""
    for part in reversed(PurePath(policy_path).parts):
        record = records.index.get_record(part)
        if record is not None:
            progress = records.index.get_progress(part)
            return TrainedRun.model_validate(dict(record) | {"episodic_return": progress.mean_return})
    return None


HANDLERS: Handlers = {"ReadEvaluations": read_evaluations}
