"""F11: a checkpoint that is damaged, or is not what its name says, is never resumed from in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.helpers.daemons import ended
from tests.helpers.worker_runs import small, train_here

from mosaic.base.checkpoint_files import list_steps
from mosaic.contracts.errors import CheckpointDamaged
from mosaic.contracts.folder import RunFolder
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.worker.checkpoints import last_good_checkpoint, load_checkpoint


def flip_weights(folder: RunFolder) -> None:
    for step in list_steps(folder):
        path = folder.checkpoint(step) / "weights.safetensors"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)


def test_a_resume_with_all_checkpoints_damaged_is_refused_and_changes_nothing(trainer: TrainerClient) -> None:
    """F11: it would start from step 0 and lose its curve."""
    payload = {"metadata": {"worker": {"id": "cleanrl", "config": small()}}, "artifacts": {}}
    before = ended(trainer, trainer.submit(payload).run_id)
    points = sum(len(series.values) for series in trainer.metrics(before.run_id))
    flip_weights(RunFolder(before.run_dir))
    with pytest.raises(CheckpointDamaged, match=r"No checkpoint of run .* is intact.*mosaic resubmit"):
        trainer.resume(before.run_id, 128)
    after = trainer.get_run(before.run_id)
    assert (after.outcome, after.global_step, len(after.attempts)) == ("succeeded", before.global_step, 1)
    assert sum(len(series.values) for series in trainer.metrics(before.run_id)) == points


def test_a_worker_that_finds_no_intact_checkpoint_refuses(tmp_path: Path) -> None:
    """F11: also where they were damaged after the daemon had looked."""
    folder = train_here(RunFolder(tmp_path / "it's a run"), small())
    flip_weights(folder)
    journal = folder.journal.read_bytes()
    with pytest.raises(CheckpointDamaged, match="no intact checkpoint"):
        train_here(folder, small(total_timesteps=128), is_resume=True)
    assert folder.journal.read_bytes() == journal


def test_an_older_checkpoint_under_a_newer_name_is_damaged(tmp_path: Path) -> None:
    """F11: the step of the manifest is compared with the name."""
    folder = train_here(RunFolder(tmp_path / "run"), small(extras={"checkpoint_every": 32}))
    newest = list_steps(folder)[-1]
    folder.checkpoint(newest).rename(folder.checkpoint(newest + 1000))
    with pytest.raises(CheckpointDamaged, match=f"it is that of step {newest}, under the name of another"):
        load_checkpoint(folder.checkpoint(newest + 1000))
    used = last_good_checkpoint(folder)
    assert used is not None
    assert used.step < newest
