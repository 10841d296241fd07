"""Flattening observations of every kind of space."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
    flatten,
)

from mosaic.contracts.errors import BadInput
from mosaic.worker.envs import spaces
from mosaic.worker.envs.spaces import describe_space, flat_size, make_flattener, unsupported_parts

PLAIN: list[gymnasium.Space[Any]] = [
    Box(-1, 1, (3,), np.float32),
    Box(-1, 1, (), np.float64),
    Box(0, 255, (2, 3, 2), np.uint8),
    Box(-9, 9, (2, 2), np.int64),
    Discrete(5),
    Discrete(5, start=-3),
    MultiBinary(4),
    MultiBinary((2, 3)),
    MultiDiscrete([2, 3, 4]),
    MultiDiscrete(np.array([[2, 3], [4, 2]]), start=np.array([[1, -1], [0, 5]])),
    Tuple((Discrete(32), Discrete(11, start=1), Discrete(2))),
    Dict({"place": Box(-1, 1, (2,), np.float64), "door": Discrete(2), "pair": Tuple((MultiBinary(2), Discrete(3)))}),
]


@pytest.mark.parametrize("space", PLAIN, ids=str)
def test_a_flattened_observation_equals_gymnasiums(space: gymnasium.Space[Any]) -> None:
    space.seed(3)
    flattener = make_flattener(space) or np.asarray
    for _ in range(20):
        observation = space.sample()
        vector = flattener(observation)
        assert vector.shape == (flat_size(space),)
        np.testing.assert_array_equal(vector, flatten(space, observation))
    assert unsupported_parts(space) == []


def test_large_discrete_spaces_have_no_precomputed_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spaces, "MAX_ONE_HOT_ROWS", 3)
    flattener = make_flattener(Discrete(5, start=2))
    assert flattener is not None
    assert flattener(np.int64(4)).tolist() == [0, 0, 1, 0, 0]


def test_parts_that_are_not_numeric_are_left_out_and_named() -> None:
    space = Dict(
        {
            "image": Box(0, 255, (2, 2), np.uint8),
            "mission": Text(20),
            "others": Tuple((Discrete(2), Sequence(Discrete(3)))),
        }
    )
    flattener = make_flattener(space)
    assert flattener is not None
    observation = {"image": np.full((2, 2), 7, np.uint8), "mission": "go to the door", "others": (1, (2, 2))}
    assert flattener(observation).tolist() == [7, 7, 7, 7, 0, 1]
    assert flat_size(space) == 6
    assert unsupported_parts(space) == ["mission", "others.1"]
    assert describe_space(space) == "Dict(image: Box(2, 2) uint8, mission: Text, others: Tuple(Discrete(2), Sequence))"


@pytest.mark.parametrize(
    "space",
    [
        Text(5),
        Sequence(Discrete(3)),
        Graph(Box(0, 1, (2,)), None),
        OneOf((Discrete(2), Discrete(3))),
        Dict({"a": Text(5)}),
    ],
    ids=lambda space: type(space).__name__,
)
def test_a_space_without_numbers_is_rejected(space: gymnasium.Space[Any]) -> None:
    assert flat_size(space) == 0
    with pytest.raises(BadInput, match=f"of type {type(space).__name__} cannot be flattened to a vector"):
        make_flattener(space)
