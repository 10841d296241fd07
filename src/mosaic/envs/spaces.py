"""Observations as vectors of numbers, for whoever learns from them or acts by them.

Choices become ones and zeros, one number for each possibility; arrays are laid out flat; of pairs and dictionaries the
parts follow each other. What is no number of numbers (texts, graphs, sequences) is left out, and `left_out` names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from mosaic.contracts.errors import BadInput

Array = npt.NDArray[Any]
Space = gymnasium.Space[Any]
MAX_ONE_HOT_ROWS = 1024
"""Choices whose vectors are made beforehand."""


def flat_size(space: Space) -> int:
    """Of the vector that an observation becomes; 0 where nothing of it is a number."""
    if isinstance(space, (Box, MultiBinary)):
        return math.prod(space.shape)
    if isinstance(space, Discrete):
        return int(space.n)
    if isinstance(space, MultiDiscrete):
        return int(space.nvec.sum())
    return sum(flat_size(part) for _, part in _subspaces(space))


def unsupported_parts(space: Space, name: str = "") -> list[str]:
    """The parts that are in no vector, by their place: `mission`, `1.words`; one nameless entry for a whole space."""
    if isinstance(space, (Dict, Tuple)):
        return [
            found for key, part in _subspaces(space) for found in unsupported_parts(part, f"{name}.{key}".lstrip("."))
        ]
    return [] if isinstance(space, (Box, MultiBinary, Discrete, MultiDiscrete)) else [name]


def describe_space(space: Space) -> str:
    """As Gymnasium writes it, without bounds, which may be thousands of numbers, and without what only it knows."""
    if isinstance(space, Box):
        return f"Box{space.shape} {space.dtype}"
    if isinstance(space, Dict):
        return f"Dict({', '.join(f'{key}: {describe_space(part)}' for key, part in space.spaces.items())})"
    if isinstance(space, Tuple):
        return f"Tuple({', '.join(map(describe_space, space.spaces))})"
    is_plain = isinstance(space, (Discrete, MultiBinary, MultiDiscrete))
    return " ".join(str(space).split()) if is_plain else type(space).__name__


def make_flattener(space: Space) -> Callable[[Any], Array] | None:
    """What makes a vector of an observation; None where it is one already."""
    if isinstance(space, Box) and len(space.shape) == 1:
        return None
    if isinstance(space, (Box, MultiBinary)):
        return np.ravel
    if isinstance(space, Discrete):
        return _one_hot(int(space.n), int(space.start))
    if isinstance(space, MultiDiscrete):
        return _multi_one_hot(space)
    if flat_size(space) == 0:
        raise BadInput(f"Observations of the kind {type(space).__name__} cannot be made into one vector.")
    return _concatenating_flattener(space)


def _subspaces(space: Space) -> list[tuple[Any, Space]]:
    if isinstance(space, Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, Tuple) else []


def _one_hot(count: int, first: int) -> Callable[[Any], Array]:
    if count <= MAX_ONE_HOT_ROWS:
        choices = np.eye(count, dtype=np.float32)
        return lambda observation: choices[observation - first]

    def made(observation: Any) -> Array:
        vector = np.zeros(count, np.float32)
        vector[observation - first] = 1
        return vector

    return made


def _multi_one_hot(space: MultiDiscrete) -> Callable[[Any], Array]:
    counts = space.nvec.ravel().astype(np.int64)
    size = int(counts.sum())
    shift = np.cumsum(counts) - counts - np.ravel(space.start)

    def made(observation: Any) -> Array:
        vector = np.zeros(size, np.float32)
        vector[np.ravel(observation) + shift] = 1
        return vector

    return made


def _concatenating_flattener(space: Space) -> Callable[[Any], Array]:
    size, begins = flat_size(space), 0
    fillers: list[tuple[Any, slice, Callable[[Any], Any]]] = []
    for key, part in _subspaces(space):
        width = flat_size(part)
        if width:
            fillers.append((key, slice(begins, begins + width), make_flattener(part) or np.asarray))
            begins += width
    kind = np.float64 if _has_float64(space) else np.float32

    def made(observation: Any) -> Array:
        vector = np.empty(size, kind)
        for key, place, fill in fillers:
            vector[place] = fill(observation[key])
        return vector

    return made


def _has_float64(space: Space) -> bool:
    """Whether a part has more digits than a network takes: a normaliser may want them."""
    return space.dtype == np.float64 or any(_has_float64(part) for _, part in _subspaces(space))
