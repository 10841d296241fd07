"""Weights in torch's files are read without torch, and nothing else is."""

from __future__ import annotations

import copy
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mosaic.contracts.errors import BadInput, CheckpointDamaged
from mosaic.worker import torch_files as torchfile
from mosaic.worker.sb3_policy import Sb3Policy
from mosaic.worker.torch_files import read_weights, save_state_dict


def make_module() -> torch.nn.Module:
    torch.manual_seed(2)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    module.spread = torch.nn.Parameter(torch.ones(1, 3))
    return module


def as_numpy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_numpy(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(as_numpy, value))
    return value.detach().numpy() if isinstance(value, torch.Tensor) else value


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        one, other = tuple(one.values()), tuple(other.values())
    if isinstance(one, tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


SETTINGS = {"seed": 1, "gamma": 0.99, "notes": None, "cuda": True, "env_id": "x", "less": -5, "more": 1 << 40}


@pytest.mark.parametrize("container", ["state dict", "tuple", "dict", "views"])
def test_every_container_of_cleanrl_is_read_from_torch_and_from_our_own_writer(tmp_path: Path, container: str) -> None:
    state = make_module().state_dict()
    saved: Any = {
        "state dict": state,
        "tuple": (state, make_module().state_dict()),
        "dict": {"model_weights": state, "args": SETTINGS},
        "views": {
            "part": torch.arange(12.0).reshape(3, 4).T[1:],
            "parameter": torch.nn.Parameter(torch.ones(2)),
            "flags": torch.tensor([True, False]),
            "nothing": torch.zeros(0, 2),
        },
    }[container]
    path = tmp_path / "ppo.cleanrl_model"
    torch.save(saved, path)
    expected = as_numpy(dict(saved) if isinstance(saved, dict) else saved)
    assert_same(read_weights(path), expected)
    save_state_dict(path, expected)
    assert_same(read_weights(path), expected)
    assert_same(as_numpy(torch.load(path, weights_only=True)), expected)


class CreatesFolder:
    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._canary),)


def test_a_file_that_would_run_code_is_rejected_and_runs_none(tmp_path: Path) -> None:
    """F25: a model file written by torch."""
    path = tmp_path / "x.cleanrl_model"
    for saved in ({"a": CreatesFolder(tmp_path / "canary")}, make_module()):
        torch.save(saved, path)
        with pytest.raises(BadInput, match="contains more than weights"):
            read_weights(path)
    assert not (tmp_path / "canary").exists()


def test_a_damaged_or_foreign_file_raises_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "x.cleanrl_model"
    torch.save(make_module().state_dict(), path)
    content = path.read_bytes()
    for data in (
        b"",
        b"not a zip",
        content[:-1],
        content[: len(content) // 2],
        content.replace(struct.pack("<f", 1.0), b"\1\2\3\4"),
    ):
        path.write_bytes(data)
        with pytest.raises(CheckpointDamaged, match="Use a checkpoint of its run"):
            read_weights(path)
    torch.save(make_module().state_dict(), path, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointDamaged, match="not a file written by torch"):
        read_weights(path)


def test_a_tensor_larger_than_its_storage_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    _write_forged_tensor(path, (2,), (2,))
    assert read_weights(path).tolist() == [0, 0]
    for shape, stride in (((5,), (1,)), ((1 << 40,), (0,)), ((2,), (4,))):
        _write_forged_tensor(path, shape, stride)
        with pytest.raises(CheckpointDamaged):
            read_weights(path)


def _write_forged_tensor(path: Path, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """Write four numbers with an index that claims another shape and stride."""

    def pair(length: int, step: int) -> bytes:
        return b"".join(torchfile._tuple([torchfile._number(value)]) for value in (length, step))

    array = np.zeros(4, np.float32)
    honest = torchfile._tensor("0", array)
    claimed = honest.replace(pair(4, 1), pair(*shape, *stride))
    assert claimed != honest
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x02" + claimed + b".")
        archive.writestr("x/byteorder", "little")
        archive.writestr("x/data/0", array.tobytes())


def _write_tensors(path: Path, arrays: dict[str, np.ndarray[Any, Any]], names: list[str], keys: list[str]) -> None:
    """Write a state dict whose tensors have the storages with these keys."""
    tensors = [torchfile._tensor(key, arrays[key]) for key in keys]
    pairs = b"".join(torchfile._text(name) + tensor for name, tensor in zip(names, tensors, strict=True))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x02}(" + pairs + b"u.")
        for key, array in arrays.items():
            archive.writestr(f"x/data/{key}", array.tobytes())


def test_tensors_that_share_a_storage_are_views_of_it(tmp_path: Path) -> None:
    """F57: as those of a network that is used under several names."""
    path, array = tmp_path / "x.pt", np.arange(1000, dtype=np.float32)
    _write_tensors(path, {"0": array}, ["a", "b", "c"], ["0"] * 3)
    weights = read_weights(path)
    assert all(np.array_equal(weights[name], array) for name in "abc")
    assert np.shares_memory(weights["a"], weights["c"])


@pytest.mark.parametrize("name", ["x.cleanrl_model", "policy of Stable-Baselines3"])
def test_weights_that_unfold_are_refused(tmp_path: Path, name: str) -> None:
    """F57: 300 tensors of one storage of 2 MB; the policy of Stable-Baselines3 with it has 4 kB."""
    path, names = tmp_path / "x.cleanrl_model", [f"{number}.weight" for number in range(300)]
    _write_tensors(path, {"0": np.zeros(1 << 19, np.float32)}, names, ["0"] * 300)
    if name == path.name:
        with pytest.raises(CheckpointDamaged, match="more than 16 times the bytes of the file"):
            read_weights(path)
        return
    packed = tmp_path / "policy.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(path, "policy.pth")
        archive.writestr("data", "{}")
    assert packed.stat().st_size < 10_000
    with pytest.raises(CheckpointDamaged, match="more than 16 times the bytes of the file"):
        Sb3Policy(packed, None, None)


def test_an_index_of_many_marks_is_read_in_one_pass(tmp_path: Path) -> None:
    """F57: each of the tuples ends at the mark nearest to it."""
    path, count = tmp_path / "x.pt", 200_000
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x02" + b"(" * count + b"t" * count + b".")
    depth, value = 0, read_weights(path)
    while value:
        depth, value = depth + 1, value[0]
    assert depth == count - 1


def test_members_that_overlap_are_refused(tmp_path: Path) -> None:
    """F57: a file may not list the same bytes as several members."""
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data/0", bytes(1 << 16))
        for key in range(1, 20):
            info = copy.copy(archive.infolist()[0])
            info.filename = f"x/data/{key}"
            archive.filelist.append(info)
    with pytest.raises(CheckpointDamaged, match="compressed"):
        read_weights(path)
