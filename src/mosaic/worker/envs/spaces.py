"""Flattens observations to vectors, for training and for acting.

Discrete values become one-hot vectors; arrays are flattened; the parts of tuples and dictionaries are concatenated.
What is not numeric (text, graphs, sequences) is left out, and `unsupported_parts` names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from mosaic.contracts.errors import BadInput

Array = npt.NDArray[Any]
Space = gymnasium.Space[Any]
MAX_ONE_HOT_ROWS = 1024
"""Discrete spaces up to this size have a precomputed table of one-hot vectors."""


def flat_size(space: Space) -> int:
    """Return the size of the flattened observation; 0 if no part of it is numeric."""
    if isinstance(space, (Box, MultiBinary)):
        return math.prod(space.shape)
    if isinstance(space, Discrete):
        return int(space.n)
    if isinstance(space, MultiDiscrete):
        return int(space.nvec.sum())
    return sum(flat_size(part) for _, part in _subspaces(space))


class Choices(NamedTuple):
    """Several independent discrete choices; both arrays have the shape of an action."""

    counts: Array
    """The number of values of each."""
    first: Array
    """The lowest value of each, with the type of an action."""


def find_choices(space: Space) -> Choices | None:
    """Return the choices of a MultiDiscrete or MultiBinary space; None for another one."""
    if isinstance(space, MultiDiscrete):
        return Choices(space.nvec, np.asarray(space.start, space.dtype))
    if isinstance(space, MultiBinary):
        return Choices(np.full(space.shape, 2), np.zeros(space.shape, space.dtype))
    return None


def unsupported_parts(space: Space, name: str = "") -> list[str]:
    """Return the paths of the parts that are left out: `mission`, `1.words`; an empty path for a whole space."""
    if isinstance(space, (Dict, Tuple)):
        return [
            path for key, part in _subspaces(space) for path in unsupported_parts(part, f"{name}.{key}".lstrip("."))
        ]
    return [] if isinstance(space, (Box, MultiBinary, Discrete, MultiDiscrete)) else [name]


def describe_space(space: Space) -> str:
    """Format a space like Gymnasium, without bounds, which may be thousands of numbers."""
    if isinstance(space, Box):
        return f"Box{space.shape} {space.dtype}"
    if isinstance(space, Dict):
        return f"Dict({', '.join(f'{key}: {describe_space(part)}' for key, part in space.spaces.items())})"
    if isinstance(space, Tuple):
        return f"Tuple({', '.join(map(describe_space, space.spaces))})"
    is_plain = isinstance(space, (Discrete, MultiBinary, MultiDiscrete))
    return " ".join(str(space).split()) if is_plain else type(space).__name__


def make_flattener(space: Space) -> Callable[[Any], Array] | None:
    """Return a function that flattens an observation; None if it is a vector already."""
    if isinstance(space, Box) and len(space.shape) == 1:
        return None
    if isinstance(space, (Box, MultiBinary)):
        return np.ravel
    if isinstance(space, Discrete):
        return _one_hot(int(space.n), int(space.start))
    if isinstance(space, MultiDiscrete):
        return _multi_one_hot(space)
    if flat_size(space) == 0:
        raise BadInput(f"Observations of type {type(space).__name__} cannot be flattened to a vector.")
    return _concatenating_flattener(space)


def _subspaces(space: Space) -> list[tuple[Any, Space]]:
    if isinstance(space, Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, Tuple) else []


def _one_hot(count: int, first: int) -> Callable[[Any], Array]:
    if count <= MAX_ONE_HOT_ROWS:
        rows = np.eye(count, dtype=np.float32)
        return lambda observation: rows[observation - first]

    def flatten(observation: Any) -> Array:
        vector = np.zeros(count, np.float32)
        vector[observation - first] = 1
        return vector

    return flatten


def _multi_one_hot(space: MultiDiscrete) -> Callable[[Any], Array]:
    counts = space.nvec.ravel().astype(np.int64)
    size = int(counts.sum())
    shift = np.cumsum(counts) - counts - np.ravel(space.start)

    def flatten(observation: Any) -> Array:
        vector = np.zeros(size, np.float32)
        vector[np.ravel(observation) + shift] = 1
        return vector

    return flatten


def _concatenating_flattener(space: Space) -> Callable[[Any], Array]:
    size, start = flat_size(space), 0
    parts: list[tuple[Any, slice, Callable[[Any], Any]]] = []
    for key, part in _subspaces(space):
        width = flat_size(part)
        if width:
            parts.append((key, slice(start, start + width), make_flattener(part) or np.asarray))
            start += width
    dtype = np.float64 if _has_float64(space) else np.float32

    def flatten(observation: Any) -> Array:
        vector = np.empty(size, dtype)
        for key, span, flatten_part in parts:
            vector[span] = flatten_part(observation[key])
        return vector

    return flatten


def _has_float64(space: Space) -> bool:
    """Return whether a part is float64: a normalizer may need the precision."""
    return space.dtype == np.float64 or any(_has_float64(part) for _, part in _subspaces(space))
