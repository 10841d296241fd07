"""Creates a run folder from a pulled repository: a run like any other, except that it was trained elsewhere."""

from __future__ import annotations

import os
import time
from pathlib import Path

from mosaic.common.files import write_json, write_text
from mosaic.contracts.errors import BadInput
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.states import HistoryEntry, Outcome, RunRecord, Stage
from mosaic.hub.description import CARD_FILE, EVALUATION_FILE, VIDEO_FILE, PolicyDescription, PullResult
from mosaic.journal import Journal
from mosaic.submission.algorithm_schema import get_algorithm
from mosaic.workers import get_worker

HUB_TAG = "hub"


def check_loadable(policy: PolicyDescription) -> None:
    """Raises where no installed worker can load the policy."""
    get_worker(policy.worker)
    if get_algorithm(policy.algo).worker.id != policy.worker:
        raise BadInput(f"{policy.algo!r} is not an algorithm of worker {policy.worker!r} in this installation.")


def create_run_folder(source: Path, target: RunFolder, run_id: str, pulled: PullResult) -> None:
    """Moves only files that the description names, each to its place; anything else stays in `source`."""
    policy = pulled.policy
    now = time.time()
    target.path.mkdir(parents=True, exist_ok=True)
    if policy.step is not None:
        for name, inside in policy.checkpoint_files().items():
            _move(source / name, target.checkpoint(policy.step) / inside)
        for link in (target.last_checkpoint, target.best_checkpoint):
            link.symlink_to(str(policy.step))
    if policy.model is not None:
        _move(source / policy.model, target.model(f"{policy.env_id}__{policy.algo}__{policy.seed}__0", policy.algo))
    for name, parent in ((VIDEO_FILE, target.videos), (EVALUATION_FILE, target.hub), (CARD_FILE, target.hub)):
        if (source / name).is_file() and (name == CARD_FILE or name in policy.files):
            _move(source / name, parent / name)
    target.logs.mkdir(exist_ok=True)
    write_json(target.config, policy.to_payload())
    message = f"Pulled from {pulled.url}, revision {pulled.commit[:10]}."
    record = RunRecord(
        run_id=run_id,
        stage=Stage.FINISHED,
        outcome=Outcome.SUCCEEDED,
        reason=message,
        worker=policy.worker,
        algo=policy.algo,
        env_id=policy.env_id,
        seed=policy.seed,
        total_timesteps=policy.total_timesteps,
        tags=(HUB_TAG,),
        notes=message,
        submitted_at=now,
        queued_at=now,
        finished_at=now,
        history=(HistoryEntry(at=now, stage=Stage.FINISHED, message=message),),
    )
    write_text(target.record, record.model_dump_json(indent=2) + "\n")
    if policy.step is not None:  # what lists and forms show of a run: its progress and its checkpoint
        journal = Journal(target.journal)
        journal.append("progress", global_step=policy.step, total_timesteps=policy.total_timesteps)
        path = f"{target.checkpoints.name}/{policy.step}"
        journal.append("checkpoint", step=policy.step, path=path, is_best=True, score=policy.score)
        journal.close()


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(source, target)
