"""Which checkpoints can be removed, what that makes free, and checkpoints without their replay buffer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.run_folders import WEIGHTS, make_run_folder

from mosaic.base.checkpoint_files import STATE, is_intact, list_steps
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.disk_views import DiskKind
from mosaic.contracts.folder import PENDING_PARTS_DIR, RunFolder
from mosaic.features.disk.daemon import (
    copy_without_replay,
    exchange_folders,
    newest_intact,
    plan_removals,
    removable_checkpoints,
)
from mosaic.worker.checkpoints import CheckpointPart, last_good_checkpoint, load_checkpoint, update_link, write

BUFFER = np.arange(40_000, dtype=np.float64)
FACTS: dict[str, Any] = {"replay": {"is_saved": True, "size_bytes": BUFFER.nbytes, "limit_mb": 100.0}}
ALL = pb.PruneRequest(checkpoints=True, keep=1, replay=True)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return make_run_folder(tmp_path)


def save(folder: RunFolder, *steps: int, part: CheckpointPart | None = None) -> None:
    for step in steps:
        arrays = {"adam": np.arange(5), "replay.rows": BUFFER}
        write(folder, step, WEIGHTS, {**arrays, "replay.block.0": part} if part else arrays, FACTS, {"score": None})
        update_link(folder.last_checkpoint, step)


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_last_best_the_newest_and_what_is_needed_are_kept(folder: RunFolder) -> None:
    save(folder, 1, 2, 3, 4, 5, 6)
    update_link(folder.best_checkpoint, 2)
    update_link(folder.last_checkpoint, 4)
    assert names(removable_checkpoints(folder, 1)) == ["1", "3", "5"]
    assert names(removable_checkpoints(folder, 2)) == ["1", "3"]
    assert names(removable_checkpoints(folder, 1, {"3", "last", "None"})) == ["1", "5"]
    assert removable_checkpoints(folder, 9) == []


def test_checkpoints_that_were_moved_aside_are_removed_and_links_are_not_followed(folder: RunFolder) -> None:
    save(folder, 1, 2)
    os.rename(folder.checkpoint(1), folder.checkpoints / "1.superseded")
    assert names(removable_checkpoints(folder, 1)) == ["1.superseded"]
    assert removable_checkpoints(folder, 1, {"1.superseded"}) == []


def test_the_newest_complete_checkpoint_stays_where_a_newer_one_lost_bytes(folder: RunFolder) -> None:
    save(folder, 1, 2, 3)
    (folder.checkpoint(3) / STATE).write_bytes(b"short")
    assert names(removable_checkpoints(folder, 1)) == ["1"]


def test_checkpoints_of_an_unknown_form_are_left_alone(folder: RunFolder) -> None:
    for step in (1, 2):
        folder.checkpoint(step).mkdir(parents=True)
    assert removable_checkpoints(folder, 1) == []
    assert plan_removals(folder, ALL, ()) == []


def test_changed_bytes_are_found_before_anything_is_removed(folder: RunFolder) -> None:
    save(folder, 1, 2)
    state = folder.checkpoint(2) / STATE
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    assert newest_intact(folder, [folder.checkpoint(1)]) is None
    assert newest_intact(folder, []) == 1


def test_a_block_that_checkpoints_share_becomes_free_with_the_last_of_them(folder: RunFolder, tmp_path: Path) -> None:
    block = tmp_path / "block"
    block.write_bytes(os.urandom(1 << 20))
    save(folder, 1, 2, part=CheckpointPart(block, 1 << 20, "0" * 64))
    block.unlink()
    (only_checkpoints,) = plan_removals(folder, pb.PruneRequest(checkpoints=True, keep=1), ())
    assert only_checkpoints.size_bytes < 1 << 20, "the other checkpoint still has the block"
    checkpoints, replay = plan_removals(folder, ALL, ())
    assert (checkpoints.kind, replay.kind) == (DiskKind.CHECKPOINTS, DiskKind.REPLAY)
    assert checkpoints.size_bytes == only_checkpoints.size_bytes
    assert replay.size_bytes >= (1 << 20) + BUFFER.nbytes


def test_a_checkpoint_without_its_replay_buffer_is_complete_and_says_so(folder: RunFolder, tmp_path: Path) -> None:
    save(folder, 7)
    copy_without_replay(folder.checkpoint(7), tmp_path / "draft" / "7")
    exchange_folders(folder.checkpoint(7), tmp_path / "draft" / "7")
    checkpoint = load_checkpoint(folder.last_checkpoint)
    assert checkpoint.facts["replay"] == {**FACTS["replay"], "is_saved": False, "is_pruned": True}
    assert list(checkpoint.arrays) == ["adam"]
    np.testing.assert_array_equal(checkpoint.arrays["adam"], np.arange(5))
    np.testing.assert_array_equal(checkpoint.weights["actor.weight"], WEIGHTS["actor.weight"])
    assert is_intact(tmp_path / "draft" / "7"), "the old one took the other name"
    assert plan_removals(folder, ALL, ()) == [], "there is nothing left to remove"


def test_folders_are_exchanged_where_the_system_has_no_call_for_it(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(folder, 1, 2)
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: object())
    inode = folder.checkpoint(1).stat().st_ino
    exchange_folders(folder.checkpoint(1), folder.checkpoint(2))
    assert folder.checkpoint(2).stat().st_ino == inode
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["1", "2", "last"]


def test_files_that_a_killed_process_left_are_removed_but_not_what_a_resume_restores(folder: RunFolder) -> None:
    save(folder, 1, 2)
    pending = folder.checkpoints / PENDING_PARTS_DIR
    pending.mkdir()
    (pending / "part").write_bytes(bytes(100_000))
    os.rename(folder.checkpoint(2), folder.checkpoints / ".2.old.tmp")
    (replay,) = plan_removals(folder, pb.PruneRequest(replay=True), ())
    assert names(list(replay.paths)) == ["1", PENDING_PARTS_DIR]
    assert replay.size_bytes >= 100_000 + BUFFER.nbytes
    assert list_steps(folder) == [1]
    assert last_good_checkpoint(folder) is not None


def test_videos_are_removed_as_a_whole(folder: RunFolder) -> None:
    (folder.videos / "deep").mkdir(parents=True)
    (folder.videos / "deep" / "0.mp4").write_bytes(bytes(50_000))
    (videos,) = plan_removals(folder, pb.PruneRequest(videos=True), ())
    assert videos.kind is DiskKind.VIDEOS
    assert videos.size_bytes >= 50_000
