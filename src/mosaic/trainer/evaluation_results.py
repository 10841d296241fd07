"""What the evaluations of a workspace have found: read from their folders, as each says it itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import structlog

from mosaic.contracts.folder import RunFolder
from mosaic.trainer.records import Records

log = structlog.get_logger("mosaic.trainer.evaluation_results")

Json = dict[str, Any]
SUMMARY_FIELDS = ("algo", "env_id", "policy_path", "checkpoint_step", "deterministic", "videos")
PER_EPISODE_FIELDS = ("seeds", "lengths")
"""Rows of a batch that nobody compares; they stay in the file."""


def evaluations(records: Records, run_id: str = "", env_id: str = "") -> Iterator[Json]:
    """The newest first; without those that have played no whole batch yet, or whose summary cannot be read.

    A training that ends with an evaluation counts as one.
    """
    for record, _ in records.index.list_runs(run_id=run_id):
        folder = records.folder(record["run_id"])
        summary = read_summary(folder)
        if summary is None or (env_id and summary.get("env_id") != env_id):
            continue
        yield {
            "run_id": record["run_id"],
            "stage": record["stage"],
            "outcome": record["outcome"],
            "evaluated_at": record["finished_at"] or folder.eval_summary.stat().st_mtime,
            **{name: summary.get(name) for name in SUMMARY_FIELDS},
            "trained": _training_run_of(records, str(summary.get("policy_path") or "")),
            "batches": [
                {name: value for name, value in batch.items() if name not in PER_EPISODE_FIELDS}
                for batch in summary["batches"]
            ],
        }


def read_summary(folder: RunFolder) -> Json | None:
    """It is written by a worker, perhaps of somebody else: one that lacks its facts is passed over."""
    try:
        summary = json.loads(folder.eval_summary.read_text())
        if all(batch["returns"] for batch in summary["batches"]) and summary["batches"]:
            return dict(summary)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.info("evaluation_unreadable", run_id=folder.run_id, error=f"{type(error).__name__}: {error}")
    return None


def _training_run_of(records: Records, policy_path: str) -> Json | None:
    """The run that the policy is of. A run's folder bears its id, wherever the workspace has been moved to."""
    for part in reversed(PurePath(policy_path).parts):
        record = records.index.get_record(part)
        if record is not None:
            return {"run_id": record.run_id, "run_name": record.run_name, "algo": record.algo, "seed": record.seed}
    return None
