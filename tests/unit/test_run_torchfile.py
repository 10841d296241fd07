"""torch loads files written without it."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from mosaic.worker.torch_files import State, save_state_dict


def test_torch_loads_the_same_as_from_its_own_file(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 2))
    state = module.state_dict()
    torch.save(state, tmp_path / "theirs.cleanrl_model")
    save_state_dict(tmp_path / "ours.cleanrl_model", {name: value.numpy() for name, value in state.items()})
    theirs = torch.load(tmp_path / "theirs.cleanrl_model", weights_only=True)
    ours = torch.load(tmp_path / "ours.cleanrl_model", weights_only=True)
    assert type(ours) is type(theirs) is OrderedDict
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype
        assert ours[name].stride() == value.stride()
        assert not ours[name].requires_grad
        assert torch.equal(ours[name], value)
    module.load_state_dict(ours)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours.cleanrl_model", "theirs.cleanrl_model"]


def test_a_tuple_of_state_dicts_is_loaded_as_a_tuple(tmp_path: Path) -> None:
    states: tuple[State, ...] = ({"a": np.arange(3.0)}, {"a": np.zeros(2, np.float32), "b": np.ones((2, 2))})
    save_state_dict(tmp_path / "m.pt", states)
    loaded = torch.load(tmp_path / "m.pt", weights_only=True)
    assert type(loaded) is tuple
    assert [list(part) for part in loaded] == [["a"], ["a", "b"]]
    assert loaded[0]["a"].tolist() == [0, 1, 2]
    assert loaded[1]["b"].tolist() == [[1, 1], [1, 1]]


def test_plain_values_may_be_saved_with_the_weights(tmp_path: Path) -> None:
    settings = {
        "env_id": "CartPole-v1",
        "seed": 2**40,
        "v_min": -100.5,
        "steps": -3,
        "track": False,
        "cuda": True,
        "kl": None,
    }
    content = {"model_weights": {"atoms": np.arange(3.0)}, "args": settings}
    save_state_dict(tmp_path / "m.pt", content)
    loaded = torch.load(tmp_path / "m.pt", weights_only=True)
    assert type(loaded) is dict
    assert type(loaded["model_weights"]) is OrderedDict
    assert loaded["model_weights"]["atoms"].tolist() == [0, 1, 2]
    assert loaded["args"] == settings
    with pytest.raises(TypeError, match="cannot contain a set"):
        save_state_dict(tmp_path / "m.pt", {"args": {1}})


@pytest.mark.parametrize("mmap", [False, True])
def test_every_dtype_and_shape_of_array_is_loaded(tmp_path: Path, mmap: bool) -> None:
    kinds = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", ">f4")
    arrays = {f"k.{kind}": np.arange(12).reshape(3, 4).astype(kind) for kind in kinds}
    arrays |= {"a number": np.array(2.5), "nothing": np.zeros((0, 3)), "transposed": np.arange(6.0).reshape(2, 3).T}
    path = tmp_path / "some.thing.pt"
    save_state_dict(path, arrays)
    loaded = torch.load(path, weights_only=True, mmap=mmap)
    assert list(loaded) == list(arrays)
    for name, array in arrays.items():
        assert loaded[name].shape == array.shape
        np.testing.assert_array_equal(loaded[name].numpy(), array)


def test_an_unsupported_dtype_raises_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    save_state_dict(path, {"a": np.ones(2)})
    with pytest.raises(TypeError, match="complex128"):
        save_state_dict(path, {"a": np.ones(2, complex)})
    assert torch.load(path, weights_only=True)["a"].tolist() == [1.0, 1.0]
    assert [file.name for file in tmp_path.iterdir()] == ["m.pt"]
