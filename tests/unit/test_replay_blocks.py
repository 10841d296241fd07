"""Large replay buffers are saved in block files that checkpoints share."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.helpers.run_folders import make_run_folder

from cleanrl_worker.environments.vector import EpisodeEnd
from cleanrl_worker.replay import blocks as replay_blocks
from cleanrl_worker.replay import ring as replay_ring
from cleanrl_worker.replay.buffers import FrameReplay, Replay
from cleanrl_worker.replay.prioritized import PrioritizedReplay
from mosaic.base.checkpoint_files import is_intact
from mosaic.contracts.folder import PENDING_PARTS_DIR, RunFolder
from mosaic.worker import checkpoints
from mosaic.worker.checkpoints import Checkpoint, last_good_checkpoint, load_checkpoint

SHAPE = (2, 2)
KINDS = ("rows", "frames", "priorities")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_ring, "MIN_BLOCKED_SIZE_MB", 0)
    monkeypatch.setattr(replay_blocks, "BLOCK_BYTES", 128)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = make_run_folder(tmp_path)
    folder.checkpoints.mkdir(parents=True, exist_ok=True)
    return folder


def make_replay(kind: str, folder: RunFolder, envs: int = 1, capacity: int = 20) -> Any:
    replay: Any
    if kind == "rows":
        replay = Replay(capacity * envs, envs, (4, np.float32), (1, np.int64), seed=1)
    elif kind == "frames":
        replay = FrameReplay(capacity * envs, envs, SHAPE, 2, seed=1)
    else:
        replay = PrioritizedReplay(
            capacity * envs, envs, SHAPE, 2, seed=1, n_step=2, gamma=0.9, alpha=0.5, beta=0.4, epsilon=1e-6
        )
    run: Any = SimpleNamespace(folder=folder)
    replay.enable_block_files(run, 1)
    return replay


class FakeSteps:
    """Steps of some environments, with occasional episode ends."""

    def __init__(self, kind: str, envs: int) -> None:
        self._rng = np.random.default_rng(5)
        self._kind, self._envs = kind, envs

    def seen(self) -> Any:
        if self._kind == "rows":
            return self._rng.normal(size=(self._envs, 4)).astype(np.float32)
        return self._rng.integers(256, size=(self._envs, *SHAPE), dtype=np.uint8)

    def lead(self, kept: Any, steps: int) -> None:
        for _ in range(steps):
            shape = (self._envs, 1) if self._kind == "rows" else self._envs
            last = self.seen()[0] if self._kind == "rows" else np.stack([self.seen()[0]] * 2)
            luck = self._rng.random()
            endings = [EpisodeEnd(0, last, luck < 0.1, 0.0, 1)] if luck < 0.2 else []
            kept.add(self._rng.integers(5, size=shape), self._rng.normal(size=self._envs), endings, self.seen())


def save_replay(kept: Any, folder: RunFolder, step: int) -> Checkpoint:
    arrays, facts = kept.checkpoint_state(1)
    checkpoints.write(folder, step, {"w": np.zeros(1)}, arrays, {"replay": facts}, {"score": None})
    return load_checkpoint(folder.checkpoint(step))


def restore_replay_from(kind: str, folder: RunFolder, checkpoint: Checkpoint, **sizes: int) -> Any:
    replay = make_replay(kind, folder, **sizes)
    assert replay.restore(checkpoint.arrays, checkpoint.facts["replay"], checkpoint.parts) is None
    return replay


def assert_equal_buffers(one: Any, other: Any) -> None:
    batch, other_batch = one.allocate_batch(16), other.allocate_batch(16)
    one.sample(batch)
    other.sample(other_batch)
    assert (batch.observations == other_batch.observations).all()
    assert (batch.next_observations == other_batch.next_observations).all()
    other_arrays = other._stored_arrays() | other._volatile_arrays()
    for name, part in (one._stored_arrays() | one._volatile_arrays()).items():
        assert part[:, : one._used_rows].tobytes() == other_arrays[name][:, : one._used_rows].tobytes(), name


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_at_any_time_comes_back_and_continues_identically(
    kind: str, envs: int, folder: RunFolder
) -> None:
    life, replay = FakeSteps(kind, envs), make_replay(kind, folder, envs)
    replay.start(life.seen())
    life.lead(replay, 3)
    saved = []
    for step in range(1, 40, 3):
        saved.append(save_replay(replay, folder, step))
        assert any(name.startswith(replay_blocks.BLOCK_PREFIX) for name in saved[-1].parts)
        assert not {"replay.rows", "replay.frames"} & saved[-1].arrays.keys()
        restored = restore_replay_from(kind, folder, saved[-1], envs=envs)
        assert restored._blocks.block_rows == replay._blocks.block_rows
        twin = restore_replay_from(kind, folder, saved[-1], envs=envs)
        rng_state = life._rng.bit_generator.state
        life.lead(restored, 5)
        life._rng.bit_generator.state = rng_state
        life.lead(twin, 5)
        assert_equal_buffers(restore_replay_from(kind, folder, save_replay(restored, folder, 1000), envs=envs), twin)
        life.lead(replay, 3)
    # The first checkpoint is unchanged by later writes.
    assert is_intact(folder.checkpoint(1))
    early = restore_replay_from(kind, folder, load_checkpoint(folder.checkpoint(1)), envs=envs)
    assert early._step_count == saved[0].facts["replay"]["count"] == 3


def test_an_episode_that_was_interrupted_is_saved_as_truncated(folder: RunFolder) -> None:
    life, replay = FakeSteps("rows", 1), make_replay("rows", folder)
    replay.start(life.seen())
    # The latest observation is the first of its block, so that the previous one is in another block.
    for _ in range(2 * replay._blocks.block_rows):
        replay.add(np.zeros((1, 1), int), np.zeros(1), [], life.seen())
    save_replay(replay, folder, 1)
    replay.mark_truncated(life.seen())
    restored = restore_replay_from("rows", folder, save_replay(replay, folder, 2))
    assert replay._truncations[0, replay._head - 1]
    assert_equal_buffers(restored, replay)


def test_blocks_that_did_not_change_are_shared_and_not_written_again(folder: RunFolder) -> None:
    life, replay = FakeSteps("rows", 1), make_replay("rows", folder, capacity=200)
    replay.start(life.seen())
    life.lead(replay, 120)
    save_replay(replay, folder, 1)
    life.lead(replay, replay._blocks.block_rows)
    save_replay(replay, folder, 2)

    def files(step: int) -> set[int]:
        return {path.stat().st_ino for path in folder.checkpoint(step).glob(f"{replay_blocks.BLOCK_PREFIX}*")}

    assert len(files(1)) > 20
    assert len(files(1) - files(2)) == 1, "the one that rows were added to"
    restored = restore_replay_from("rows", folder, load_checkpoint(folder.checkpoint(2)), capacity=200)
    save_replay(restored, folder, 3)
    assert files(3) == files(2), "nor after a run was resumed"


def test_full_blocks_are_written_ahead_of_checkpoints(folder: RunFolder) -> None:
    life, replay = FakeSteps("rows", 1), make_replay("rows", folder, capacity=200)
    replay.start(life.seen())
    life.lead(replay, 120)
    waiting = len(list((folder.checkpoints / PENDING_PARTS_DIR).iterdir()))
    assert waiting == 120 // replay._blocks.block_rows
    replay.checkpoint_state(1)
    assert len(list((folder.checkpoints / PENDING_PARTS_DIR).iterdir())) == waiting + 1
    checkpoints.remove_pending_parts(folder)
    assert not (folder.checkpoints / PENDING_PARTS_DIR).exists()


def test_blocks_of_a_too_large_buffer_are_not_written_ahead(folder: RunFolder) -> None:
    life, replay = FakeSteps("rows", 1), make_replay("rows", folder, capacity=200)
    replay._limit_mb = 0.001
    replay.start(life.seen())
    life.lead(replay, 120)
    waiting = len(list((folder.checkpoints / PENDING_PARTS_DIR).iterdir()))
    assert 0 < waiting < 120 // replay._blocks.block_rows
    arrays, facts = replay.checkpoint_state(0.001)
    assert (arrays, facts["is_saved"]) == ({}, False)


def test_a_larger_buffer_resumes_from_what_a_smaller_one_saved(folder: RunFolder) -> None:
    life, replay = FakeSteps("frames", 2), make_replay("frames", folder, envs=2)
    replay.start(life.seen())
    life.lead(replay, 15)
    restored = restore_replay_from("frames", folder, save_replay(replay, folder, 1), envs=2, capacity=50)
    assert_equal_buffers(replay, restored)
    life.lead(restored, 40)
    assert_equal_buffers(
        restore_replay_from("frames", folder, save_replay(restored, folder, 2), envs=2, capacity=50), restored
    )


def test_a_block_that_is_damaged_or_missing_is_damage_only_for_a_resume(folder: RunFolder) -> None:
    life, replay = FakeSteps("rows", 1), make_replay("rows", folder)
    replay.start(life.seen())
    life.lead(replay, 9)
    save_replay(replay, folder, 1)
    life.lead(replay, 9)
    for step, harm in ((2, "flipped"), (3, "missing")):
        part = save_replay(replay, folder, step).parts[f"{replay_blocks.BLOCK_PREFIX}4"].path
        data = bytearray(part.read_bytes())
        part.unlink()
        if harm == "flipped":
            data[3] ^= 1
            part.write_bytes(data)
    good = last_good_checkpoint(folder)
    assert good is not None
    assert good.step == 1
    light = last_good_checkpoint(folder, with_parts=False)
    assert light is not None
    assert light.step == 3
    # If no checkpoint has all of its blocks, its weights can still be used.
    (folder.checkpoint(1) / f"{replay_blocks.BLOCK_PREFIX}0").unlink()
    bare = last_good_checkpoint(folder)
    assert bare is not None
    assert (bare.step, bare.parts) == (3, {})
    message = make_replay("rows", folder).restore(bare.arrays, bare.facts["replay"], bare.parts)
    assert message == "the replay buffer is missing or incomplete and is filled again"


def test_where_no_block_can_be_written_the_checkpoint_reports_it(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    life, replay = FakeSteps("rows", 1), make_replay("rows", folder)
    replay.start(life.seen())
    monkeypatch.setattr(
        replay_blocks.ReplayBlocks, "_write_block_file", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left"))
    )
    life.lead(replay, 12)
    arrays, facts = replay.checkpoint_state(1)
    assert facts["block_rows"] is None
    assert arrays["replay.rows"].shape[1] == replay._used_rows


def test_where_there_are_no_hard_links_files_are_copied(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    life, replay = FakeSteps("rows", 1), make_replay("rows", folder)
    replay.start(life.seen())
    life.lead(replay, 12)
    assert_equal_buffers(restore_replay_from("rows", folder, save_replay(replay, folder, 1)), replay)
