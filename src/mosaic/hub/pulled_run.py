"""Makes a run folder of a repository that was pulled: a run like any other, that nobody here has trained."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic.contracts.errors import BadInput
from mosaic.contracts.files import write_json, write_text
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.states import HistoryEntry, Outcome, RunRecord, Stage
from mosaic.hub.description import CARD_FILE, EVALUATION_FILE, VIDEO_FILE, PolicyDescription
from mosaic.journal import Journal
from mosaic.plugins import get_worker
from mosaic.plugins.algorithm_schema import get_algorithm

HUB_TAG = "hub"


def check_loadable(policy: PolicyDescription) -> None:
    """Refuses what nobody here could load."""
    get_worker(policy.worker)
    if get_algorithm(policy.algo).worker.id != policy.worker:
        raise BadInput(f"{policy.algo!r} is an algorithm of another worker than {policy.worker!r} here.")


def create_run_folder(source: Path, target: RunFolder, run_id: str, pulled: Mapping[str, Any]) -> None:
    """Only files that the description names, each at its place; what else may lie in `source` stays there."""
    policy = PolicyDescription.model_validate(pulled["policy"])
    now = time.time()
    target.path.mkdir(parents=True, exist_ok=True)
    for name, inside in policy.checkpoint_files().items():
        assert policy.step is not None
        _move(source / name, target.checkpoint(policy.step) / inside)
    if policy.step is not None:
        for link in (target.last_checkpoint, target.best_checkpoint):
            link.symlink_to(str(policy.step))
    if policy.model is not None:
        _move(source / policy.model, target.model(f"{policy.env_id}__{policy.algo}__{policy.seed}__0", policy.algo))
    further = {
        VIDEO_FILE: target.videos / VIDEO_FILE,
        EVALUATION_FILE: target.hub / EVALUATION_FILE,
        CARD_FILE: target.hub / CARD_FILE,
    }
    for name, place in further.items():
        if (source / name).is_file() and (name == CARD_FILE or name in policy.files):
            _move(source / name, place)
    target.logs.mkdir(exist_ok=True)
    write_json(target.config, policy.to_payload())
    said = f"Pulled from {pulled['url']}, revision {pulled['commit'][:10]}."
    record = RunRecord(
        run_id=run_id,
        stage=Stage.FINISHED,
        outcome=Outcome.SUCCEEDED,
        reason=said,
        worker=policy.worker,
        algo=policy.algo,
        env_id=policy.env_id,
        seed=policy.seed,
        total_timesteps=policy.total_timesteps,
        tags=(HUB_TAG,),
        notes=said,
        submitted_at=now,
        queued_at=now,
        finished_at=now,
        story=(HistoryEntry(at=now, stage=Stage.FINISHED, message=said),),
    )
    write_text(target.record, record.model_dump_json(indent=2) + "\n")
    _write_journal(target, policy)


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(source, target)


def _write_journal(target: RunFolder, policy: PolicyDescription) -> None:
    """A journal that says what lists and forms want to know: how far it was, and that it has a checkpoint."""
    journal = Journal(target.journal)
    try:
        if policy.step is not None:
            journal.append("progress", global_step=policy.step, total_timesteps=policy.total_timesteps)
            path = f"{target.checkpoints.name}/{policy.step}"
            journal.append("checkpoint", step=policy.step, path=path, is_best=True, score=policy.score)
    finally:
        journal.close()
