"""F25: a checkpoint or model file with code in it is refused wherever it is read, and the code never runs."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.commands import mosaic
from tests.helpers.daemons import ended
from tests.helpers.run_folders import forge_state
from tests.helpers.worker_runs import small

from mosaic.base.run_payloads import build_eval_payload
from mosaic.contracts.errors import BadInput, CheckpointDamaged
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.trainer.client.trainer_client import TrainerClient


class CreatesFolder:
    """A pickle of it creates a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def test_code_in_a_checkpoint_is_never_run(trainer: TrainerClient, workspace: Workspace, tmp_path: Path) -> None:
    """F25: by resume, evaluation, the picker of the window, the preview of its metadata, and the command line."""
    canary = tmp_path / "canary"
    worker = {"id": "cleanrl", "config": small(extras={"checkpoint_every": 32})}
    run_id = trainer.submit({"metadata": {"worker": worker}, "artifacts": {}}).run_id
    folder = RunFolder(ended(trainer, run_id).run_dir)
    forged = folder.checkpoint(64)
    forge_state(forged, pickle.dumps(CreatesFolder(canary)))
    model = tmp_path / "ppo.cleanrl_model"
    with zipfile.ZipFile(model, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a.weight": CreatesFolder(canary)}))
    for path, error in ((forged, CheckpointDamaged), (model, BadInput)):
        with pytest.raises(error, match=r"is damaged|contains more than weights"):
            trainer.inspect_checkpoint("cleanrl", str(path))
        for call in (trainer.check, trainer.submit):
            with pytest.raises(error, match=r"is damaged|contains more than weights"):
                call(build_eval_payload(worker, str(path)))
    assert mosaic(workspace, "eval", str(model), "--env-id", "CartPole-v1", "--algo", "ppo").code == 2
    trainer.resume(run_id, 128)
    view = ended(trainer, run_id)
    assert view.outcome == "succeeded"
    assert "Resumed from step 32." in [entry.message for entry in view.history]
    assert not canary.exists()
