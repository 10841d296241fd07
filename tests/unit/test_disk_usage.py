"""What the files of a run take on the disk, by kind."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.run_folders import WEIGHTS, make_run_folder

from mosaic.contracts.disk_views import DiskKind
from mosaic.contracts.folder import RunFolder
from mosaic.trainer.disk_usage import classify_file, measure_folder, measure_run
from mosaic.worker.checkpoints import update_link, write


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return make_run_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("checkpoints/12/weights.safetensors", DiskKind.CHECKPOINTS),
        ("checkpoints/12/replay.block.3", DiskKind.REPLAY),
        ("checkpoints/.parts.tmp/0a1b", DiskKind.REPLAY),
        ("videos/0.mp4", DiskKind.VIDEOS),
        ("tensorboard_eval/x", DiskKind.TENSORBOARD),
        ("mine/events.out.tfevents.1", DiskKind.TENSORBOARD),
        ("logs/cleanrl.stderr.log", DiskKind.LOGS),
        ("journal.jsonl", DiskKind.JOURNALS),
        ("journal.123.jsonl", DiskKind.JOURNALS),
        ("recording.bin", DiskKind.JOURNALS),
        ("wandb/run-1/files", DiskKind.WANDB),
        ("runs/x/ppo.cleanrl_model", DiskKind.OTHER),
        ("replay.txt", DiskKind.OTHER),
    ],
)
def test_a_file_has_a_kind(name: str, kind: DiskKind) -> None:
    assert classify_file(name) is kind


def test_a_replay_buffer_inside_a_checkpoint_is_counted_apart(folder: RunFolder) -> None:
    buffer = np.zeros(100_000)
    write(folder, 5, WEIGHTS, {"adam": np.zeros(20_000), "replay.rows": buffer}, {}, {"score": None})
    sizes = measure_run(folder.path)
    assert buffer.nbytes <= sizes[DiskKind.REPLAY] < buffer.nbytes + 1000
    assert sizes[DiskKind.CHECKPOINTS] >= 20_000 * 8


@pytest.mark.skipif(shutil.which("du") is None, reason="du is missing")
def test_the_sum_is_that_of_du_also_with_links_and_holes(folder: RunFolder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "large").write_bytes(os.urandom(3 << 20))
    write(folder, 5, WEIGHTS, {"adam": np.zeros(20_000)}, {}, {"score": None})
    update_link(folder.last_checkpoint, 5)
    block = folder.checkpoint(5) / "replay.block.0"
    block.write_bytes(os.urandom(1 << 20))
    folder.checkpoint(6).mkdir()
    os.link(block, folder.checkpoint(6) / "replay.block.0")
    os.symlink(outside, folder.path / "elsewhere")
    os.symlink(outside / "large", folder.path / "videos")
    with open(folder.path / "hole", "wb") as file:
        file.truncate(1 << 30)
    sizes = measure_run(folder.path)
    listed = subprocess.run(["du", "-s", "--block-size=1", folder.path], capture_output=True, text=True, check=True)
    assert sizes.total() == int(listed.stdout.split()[0])
    assert sizes[DiskKind.REPLAY] == block.stat().st_blocks * 512, "once, whatever the number of its names"


def test_what_is_not_there_takes_nothing(tmp_path: Path) -> None:
    assert measure_run(tmp_path / "gone").total() == 0
    assert measure_folder(tmp_path / "gone") == 0
