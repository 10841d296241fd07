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
from mosaic.contracts.states import Outcome, RunRecord, Stage, StoryLine
from mosaic.hub.description import CARD, EVALUATION, VIDEO, Description
from mosaic.journal import Journal
from mosaic.plugins import worker
from mosaic.plugins.schema import algorithm

TAG = "hub"


def known(policy: Description) -> None:
    """Refuses what nobody here could load."""
    worker(policy.worker)
    if algorithm(policy.algo).worker.id != policy.worker:
        raise BadInput(f"{policy.algo!r} is an algorithm of another worker than {policy.worker!r} here.")


def make_run(source: Path, target: RunFolder, run_id: str, pulled: Mapping[str, Any]) -> None:
    """Only files that the description names, each at its place; what else may lie in `source` stays there."""
    policy = Description.model_validate(pulled["policy"])
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
    further = {VIDEO: target.videos / VIDEO, EVALUATION: target.hub / EVALUATION, CARD: target.hub / CARD}
    for name, place in further.items():
        if (source / name).is_file() and (name == CARD or name in policy.files):
            _move(source / name, place)
    target.logs.mkdir(exist_ok=True)
    write_json(target.config, policy.payload())
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
        tags=(TAG,),
        notes=said,
        submitted_at=now,
        queued_at=now,
        finished_at=now,
        story=(StoryLine(at=now, stage=Stage.FINISHED, said=said),),
    )
    write_text(target.record, record.model_dump_json(indent=2) + "\n")
    _tell(target, policy)


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(source, target)


def _tell(target: RunFolder, policy: Description) -> None:
    """A journal that says what lists and forms want to know: how far it was, and that it has a checkpoint."""
    journal = Journal(target.journal)
    try:
        if policy.step is not None:
            journal.append("progress", global_step=policy.step, total_timesteps=policy.total_timesteps)
            path = f"{target.checkpoints.name}/{policy.step}"
            journal.append("checkpoint", step=policy.step, path=path, is_best=True, score=policy.score)
    finally:
        journal.close()
