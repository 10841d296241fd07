"""Large replay buffers are saved in blocks that checkpoints share."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.helpers.run_folders import make_run_folder

from cleanrl_worker import replay_blocks, replay_ring
from cleanrl_worker.prioritised import PrioritisedReplay
from cleanrl_worker.replay import FrameReplay, Replay
from cleanrl_worker.vector_envs import EpisodeEnd
from mosaic.contracts.folder import RunFolder
from mosaic.run import Checkpoint, checkpoints, last_good_checkpoint, load_checkpoint

SHAPE = (2, 2)
KINDS = ("rows", "frames", "priorities")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_ring, "MIN_BLOCKED_SIZE_MB", 0)
    monkeypatch.setattr(replay_blocks, "BLOCK_BYTES", 128)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = make_run_folder(tmp_path)
    found.checkpoints.mkdir(parents=True, exist_ok=True)
    return found


def made(kind: str, folder: RunFolder, envs: int = 1, capacity: int = 20) -> Any:
    found: Any
    if kind == "rows":
        found = Replay(capacity * envs, envs, (4, np.float32), (1, np.int64), seed=1)
    elif kind == "frames":
        found = FrameReplay(capacity * envs, envs, SHAPE, 2, seed=1)
    else:
        found = PrioritisedReplay(
            capacity * envs, envs, SHAPE, 2, seed=1, n_step=2, gamma=0.9, alpha=0.5, beta=0.4, epsilon=1e-6
        )
    run: Any = SimpleNamespace(folder=folder)
    found.enable_block_files(run, 1)
    return found


class Life:
    """Steps of some environments, with an end now and then."""

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


def saved(kept: Any, folder: RunFolder, step: int) -> Checkpoint:
    arrays, facts = kept.checkpoint_state(1)
    checkpoints.write(folder, step, {"w": np.zeros(1)}, arrays, {"replay": facts}, {"score": None})
    return load_checkpoint(folder.checkpoint(step))


def restored(kind: str, folder: RunFolder, checkpoint: Checkpoint, **sizes: int) -> Any:
    found = made(kind, folder, **sizes)
    assert found.restore(checkpoint.arrays, checkpoint.facts["replay"], checkpoint.parts) is None
    return found


def assert_alike(one: Any, other: Any) -> None:
    batch, other_batch = one.allocate_batch(16), other.allocate_batch(16)
    one.sample(batch)
    other.sample(other_batch)
    assert (batch.observations == other_batch.observations).all()
    assert (batch.next_observations == other_batch.next_observations).all()
    others = other._stored_arrays() | other._volatile_arrays()
    for name, part in (one._stored_arrays() | one._volatile_arrays()).items():
        assert part[:, : one._used_rows].tobytes() == others[name][:, : one._used_rows].tobytes(), name


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_at_any_time_comes_back_and_goes_on_alike(kind: str, envs: int, folder: RunFolder) -> None:
    life, kept = Life(kind, envs), made(kind, folder, envs)
    kept.start(life.seen())
    life.lead(kept, 3)
    found = []
    for step in range(1, 40, 3):
        found.append(saved(kept, folder, step))
        assert any(name.startswith(replay_blocks.BLOCK_PREFIX) for name in found[-1].parts)
        assert not {"replay.rows", "replay.frames"} & found[-1].arrays.keys()
        back = restored(kind, folder, found[-1], envs=envs)
        assert back._blocks.block_rows == kept._blocks.block_rows
        twin = restored(kind, folder, found[-1], envs=envs)
        rng_state = life._rng.bit_generator.state
        life.lead(back, 5)
        life._rng.bit_generator.state = rng_state
        life.lead(twin, 5)
        assert_alike(restored(kind, folder, saved(back, folder, 1000), envs=envs), twin)
        life.lead(kept, 3)
    # What was saved first is still what it was, whatever was written since.
    assert checkpoints.is_intact(folder.checkpoint(1))
    early = restored(kind, folder, load_checkpoint(folder.checkpoint(1)), envs=envs)
    assert early._step_count == found[0].facts["replay"]["count"] == 3


def test_an_episode_that_was_interrupted_is_saved_as_cut_short(folder: RunFolder) -> None:
    life, kept = Life("rows", 1), made("rows", folder)
    kept.start(life.seen())
    # The newest observation is the first of its block, so that the one before it lies in another.
    for _ in range(2 * kept._blocks.block_rows):
        kept.add(np.zeros((1, 1), int), np.zeros(1), [], life.seen())
    saved(kept, folder, 1)
    kept.mark_truncated(life.seen())
    back = restored("rows", folder, saved(kept, folder, 2))
    assert kept._truncations[0, kept._head - 1]
    assert_alike(back, kept)


def test_blocks_that_did_not_change_are_shared_and_not_written_again(folder: RunFolder) -> None:
    life, kept = Life("rows", 1), made("rows", folder, capacity=200)
    kept.start(life.seen())
    life.lead(kept, 120)
    saved(kept, folder, 1)
    life.lead(kept, kept._blocks.block_rows)
    saved(kept, folder, 2)

    def files(step: int) -> set[int]:
        return {path.stat().st_ino for path in folder.checkpoint(step).glob(f"{replay_blocks.BLOCK_PREFIX}*")}

    assert len(files(1)) > 20
    assert len(files(1) - files(2)) == 1, "the one that rows were added to"
    again = restored("rows", folder, load_checkpoint(folder.checkpoint(2)), capacity=200)
    saved(again, folder, 3)
    assert files(3) == files(2), "nor after a run was resumed"


def test_what_is_full_is_written_before_a_checkpoint_asks_for_it(folder: RunFolder) -> None:
    life, kept = Life("rows", 1), made("rows", folder, capacity=200)
    kept.start(life.seen())
    life.lead(kept, 120)
    waiting = len(list((folder.checkpoints / checkpoints.PENDING_PARTS_DIR).iterdir()))
    assert waiting == 120 // kept._blocks.block_rows
    kept.checkpoint_state(1)
    assert len(list((folder.checkpoints / checkpoints.PENDING_PARTS_DIR).iterdir())) == waiting + 1
    checkpoints.remove_pending_parts(folder)
    assert not (folder.checkpoints / checkpoints.PENDING_PARTS_DIR).exists()


def test_nothing_is_written_ahead_of_what_is_too_large_to_be_saved(folder: RunFolder) -> None:
    life, kept = Life("rows", 1), made("rows", folder, capacity=200)
    kept._limit_mb = 0.001
    kept.start(life.seen())
    life.lead(kept, 120)
    waiting = len(list((folder.checkpoints / checkpoints.PENDING_PARTS_DIR).iterdir()))
    assert 0 < waiting < 120 // kept._blocks.block_rows
    arrays, facts = kept.checkpoint_state(0.001)
    assert (arrays, facts["is_saved"]) == ({}, False)


def test_a_larger_buffer_goes_on_from_what_a_smaller_one_saved(folder: RunFolder) -> None:
    life, kept = Life("frames", 2), made("frames", folder, envs=2)
    kept.start(life.seen())
    life.lead(kept, 15)
    back = restored("frames", folder, saved(kept, folder, 1), envs=2, capacity=50)
    assert_alike(kept, back)
    life.lead(back, 40)
    assert_alike(restored("frames", folder, saved(back, folder, 2), envs=2, capacity=50), back)


def test_a_block_that_is_damaged_or_missing_is_damage_only_for_whoever_goes_on(folder: RunFolder) -> None:
    life, kept = Life("rows", 1), made("rows", folder)
    kept.start(life.seen())
    life.lead(kept, 9)
    saved(kept, folder, 1)
    life.lead(kept, 9)
    for step, harm in ((2, "flipped"), (3, "missing")):
        part = saved(kept, folder, step).parts[f"{replay_blocks.BLOCK_PREFIX}4"].path
        data = bytearray(part.read_bytes())
        part.unlink()
        if harm == "flipped":
            data[3] ^= 1
            part.write_bytes(data)
    good = last_good_checkpoint(folder)
    assert good is not None
    assert good.step == 1
    assert [path.name for path in good.skipped] == ["3", "2"]
    light = last_good_checkpoint(folder, with_parts=False)
    assert light is not None
    assert light.step == 3
    # Where no checkpoint has all of its blocks, its weights are worth more than none.
    (folder.checkpoint(1) / f"{replay_blocks.BLOCK_PREFIX}0").unlink()
    bare = last_good_checkpoint(folder)
    assert bare is not None
    assert (bare.step, bare.parts, bare.skipped) == (3, {}, ())
    said = made("rows", folder).restore(bare.arrays, bare.facts["replay"], bare.parts)
    assert said == "the replay buffer is missing or incomplete and is filled again"


def test_where_no_block_can_be_written_the_checkpoint_is_left_to_tell(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    life, kept = Life("rows", 1), made("rows", folder)
    kept.start(life.seen())
    monkeypatch.setattr(
        replay_blocks.ReplayBlocks, "_write_block_file", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left"))
    )
    life.lead(kept, 12)
    arrays, facts = kept.checkpoint_state(1)
    assert facts["block_rows"] is None
    assert arrays["replay.rows"].shape[1] == kept._used_rows


def test_where_there_are_no_hard_links_files_are_copied(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    life, kept = Life("rows", 1), made("rows", folder)
    kept.start(life.seen())
    life.lead(kept, 12)
    assert_alike(restored("rows", folder, saved(kept, folder, 1)), kept)
