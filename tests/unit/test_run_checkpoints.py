"""Checkpoints are intact or rejected."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.run_folders import ARRAYS, FACTS, forge_state, make_run_folder
from tests.helpers.run_folders import WEIGHTS as SAVED_WEIGHTS

from mosaic.base.checkpoint_files import MANIFEST, STATE, WEIGHTS, list_steps
from mosaic.contracts.errors import CheckpointDamaged
from mosaic.contracts.folder import RunFolder
from mosaic.worker.checkpoints import (
    last_good_checkpoint,
    load_checkpoint,
    move_aside,
    prune,
    recover_interrupted_writes,
    update_link,
    write,
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return make_run_folder(tmp_path)


def write_checkpoint(folder: RunFolder, step: int, **facts: Any) -> Path:
    return write(folder, step, SAVED_WEIGHTS, ARRAYS, {**FACTS, **facts}, {"score": None})


def test_a_saved_checkpoint_is_loaded_unchanged(folder: RunFolder) -> None:
    checkpoint = load_checkpoint(write_checkpoint(folder, 1000))
    assert (checkpoint.step, checkpoint.facts) == (1000, FACTS)
    for saved, loaded in ((SAVED_WEIGHTS, checkpoint.weights), (ARRAYS, checkpoint.arrays)):
        assert saved.keys() == loaded.keys()
        for name in saved:
            np.testing.assert_array_equal(saved[name], loaded[name], strict=True)
    assert {"python", "numpy", "mosaic"} <= checkpoint.manifest["versions"].keys()


def test_a_transposed_array_keeps_its_shape(folder: RunFolder) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    checkpoint = load_checkpoint(write(folder, 1, {"w": array}, {"a": array}, {}, {"score": None}))
    np.testing.assert_array_equal(checkpoint.weights["w"], array)
    np.testing.assert_array_equal(checkpoint.arrays["a"], array)


def test_compressed_arrays_are_refused(folder: RunFolder) -> None:
    """F57: they can expand to a thousand times the size of the file; a checkpoint's are stored."""
    path = write_checkpoint(folder, 1000)
    content = io.BytesIO()
    np.savez_compressed(content, a=np.zeros(1 << 20))
    forge_state(path, content.getvalue())
    with pytest.raises(CheckpointDamaged, match="compressed"):
        load_checkpoint(path)


def test_a_link_resolves_to_its_checkpoint(folder: RunFolder) -> None:
    write_checkpoint(folder, 1000)
    update_link(folder.last_checkpoint, 1000)
    assert load_checkpoint(folder.last_checkpoint).step == 1000
    assert os.readlink(folder.last_checkpoint) == "1000"


@pytest.mark.parametrize("name", [WEIGHTS, STATE, MANIFEST])
@pytest.mark.parametrize("cut", ["nothing left", "one byte left", "half left", "one byte missing", "gone"])
def test_a_truncated_file_is_damage_and_the_error_names_the_previous_checkpoint(
    folder: RunFolder, name: str, cut: str
) -> None:
    """F11: cut to nothing, one byte, half, and all but one byte."""
    good = write_checkpoint(folder, 1000)
    file = write_checkpoint(folder, 2000) / name
    size = file.stat().st_size
    if cut == "gone":
        file.unlink()
    else:
        os.truncate(file, {"nothing left": 0, "one byte left": 1, "half left": size // 2}.get(cut, size - 1))
    with pytest.raises(CheckpointDamaged) as caught:
        load_checkpoint(file.parent)
    assert str(file.parent) in str(caught.value)
    assert str(good) in str(caught.value)
    checkpoint = last_good_checkpoint(folder)
    assert checkpoint is not None
    assert checkpoint.path == good


@pytest.mark.parametrize("name", [WEIGHTS, STATE, MANIFEST])
def test_a_flipped_bit_anywhere_is_damage(folder: RunFolder, name: str) -> None:
    """F11: a hash covers every byte."""
    file = write_checkpoint(folder, 2000) / name
    content = file.read_bytes()
    for position in range(0, len(content), 7):
        file.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        with pytest.raises(CheckpointDamaged, match="There is no other intact checkpoint"):
            load_checkpoint(file.parent)
    file.write_bytes(content)
    assert load_checkpoint(file.parent).step == 2000


def test_changed_whitespace_in_the_manifest_is_damage(folder: RunFolder) -> None:
    file = write_checkpoint(folder, 2000) / MANIFEST
    file.write_text(file.read_text().replace(" ", "\t", 1))
    with pytest.raises(CheckpointDamaged):
        load_checkpoint(file.parent)


def test_without_checkpoints_there_is_no_last_good_one(folder: RunFolder) -> None:
    assert last_good_checkpoint(folder) is None
    with pytest.raises(CheckpointDamaged, match="No such file"):
        load_checkpoint(folder.checkpoint(5))


class Canary:
    calls: list[str] = []

    def __reduce__(self) -> Any:
        return (Canary.calls.append, ("a pickle was loaded",))


@pytest.mark.parametrize("form", ["an array of objects", "a bare pickle"])
def test_a_pickle_is_rejected_and_not_loaded(folder: RunFolder, form: str) -> None:
    """F25: whatever the manifest's hashes say."""
    path = write_checkpoint(folder, 1000)
    if form == "a bare pickle":
        forge_state(path, pickle.dumps(Canary()))
    else:
        member, archive = io.BytesIO(), io.BytesIO()
        np.save(member, np.array([Canary()], dtype=object), allow_pickle=True)
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("a.npy", member.getvalue())
        forge_state(path, archive.getvalue())
    with pytest.raises(CheckpointDamaged):
        load_checkpoint(path)
    assert Canary.calls == []


def test_an_array_of_objects_is_not_saved(folder: RunFolder) -> None:
    with pytest.raises(ValueError, match="pickle"):
        write(folder, 1, {}, {"a": np.array([None], dtype=object)}, {}, {})
    assert list(folder.checkpoints.iterdir()) == []


def test_saving_a_step_again_replaces_it(folder: RunFolder) -> None:
    write_checkpoint(folder, 1000, turn=1)
    assert load_checkpoint(write_checkpoint(folder, 1000, turn=2)).facts["turn"] == 2
    assert [path.name for path in folder.checkpoints.iterdir()] == ["1000"]


def test_pruning_keeps_the_newest_and_the_best(folder: RunFolder) -> None:
    for step in (900, 1000, 2000, 10000):
        write_checkpoint(folder, step)
    prune(folder, keep=2, best=900)
    assert list_steps(folder) == [900, 2000, 10000]


def test_leftovers_of_a_killed_process_are_removed_and_a_replaced_checkpoint_is_restored(folder: RunFolder) -> None:
    write_checkpoint(folder, 1000)
    os.rename(folder.checkpoint(1000), folder.checkpoints / ".1000.old.tmp")
    for name in (".1000.tmp", ".500.gone.tmp"):
        (folder.checkpoints / name).mkdir()
        (folder.checkpoints / name / STATE).write_bytes(b"half")
    (folder.checkpoints / ".last.tmp").symlink_to("2000")
    recover_interrupted_writes(folder)
    assert [path.name for path in folder.checkpoints.iterdir()] == ["1000"]
    assert load_checkpoint(folder.checkpoint(1000)).step == 1000


def test_a_link_that_a_copy_turned_into_a_folder_becomes_a_link_again(folder: RunFolder) -> None:
    write_checkpoint(folder, 1000)
    folder.last_checkpoint.mkdir()
    (folder.last_checkpoint / STATE).touch()
    update_link(folder.last_checkpoint, 1000)
    assert load_checkpoint(folder.last_checkpoint).step == 1000


def test_checkpoints_moved_aside_get_unique_names(folder: RunFolder) -> None:
    for _ in range(2):
        for step in (1000, 2000, 3000):
            write_checkpoint(folder, step)
        (folder.checkpoint(3000) / STATE).write_bytes(b"")
        moved = list(move_aside(folder, above=1000))
        assert [bool(checkpoint.damage) for checkpoint in moved] == [False, True]
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == [
        "1000", "2000.superseded", "2000.superseded-2", "3000.damaged", "3000.damaged-2",
    ]  # fmt: skip
