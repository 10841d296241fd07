"""The network that looks at Atari pictures, without torch: the names and shapes of its weights, and their beginning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cleanrl_worker.network import orthogonal

Array = npt.NDArray[Any]
Shapes = dict[str, tuple[int, ...]]
KERNELS = ((8, 4), (4, 2), (3, 1))
"""Side and stride of each convolution."""
CONVOLUTIONS = ("network.0", "network.2", "network.4")
WIDE = "network.7"
"""The layer behind them. The numbers between are those of layers without weights in CleanRL's lists."""


class Sizes(NamedTuple):
    channels: tuple[int, int, int] = (32, 64, 64)
    """Of each convolution."""
    hidden: int = 512
    """Units of the layer behind them."""


def layer(name: str, *weight: int) -> Shapes:
    """A layer's weight [outputs, …] and bias."""
    return {f"{name}.weight": weight, f"{name}.bias": weight[:1]}


def trunk(seen: int, side: int, sizes: Sizes) -> Shapes:
    """Three convolutions over so many pictures of that side, and a wide layer."""
    shapes: Shapes = {}
    for name, (kernel, stride), channels in zip(CONVOLUTIONS, KERNELS, sizes.channels, strict=True):
        shapes |= layer(name, channels, seen, kernel, kernel)
        seen, side = channels, (side - kernel) // stride + 1
    return shapes | layer(WIDE, sizes.hidden, seen * side * side)


def count(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def begun_orthogonal(shapes: Shapes, rng: np.random.Generator, gains: Mapping[str, float]) -> dict[str, Array]:
    """Orthogonal weights and zero biases. A layer's gain stands under its name, else it is that of rectified units."""
    found: dict[str, Array] = {}
    for name, shape in shapes.items():
        gain = gains.get(name.partition(".")[0], math.sqrt(2))
        is_bias = len(shape) == 1
        flat = (shape[0], math.prod(shape[1:]))
        found[name] = np.zeros(shape, np.float32) if is_bias else orthogonal(rng, flat, gain).reshape(shape)
    return found


def begun_uniform(shapes: Shapes, rng: np.random.Generator) -> dict[str, Array]:
    """As torch begins: weights and biases uniform, up to one over the root of a unit's inputs."""
    found = {}
    for name, shape in shapes.items():
        inputs = math.prod(shapes[f"{name.rpartition('.')[0]}.weight"][1:])
        found[name] = rng.uniform(-1, 1, shape).astype(np.float32) / np.float32(math.sqrt(inputs))
    return found


def assigned(shapes: Shapes, state: Mapping[str, Array]) -> dict[str, Array]:
    """Copies of weights, in the order of the shapes. A missing name is a KeyError, a wrong shape a ValueError."""
    for name, shape in shapes.items():
        if state[name].shape != shape:
            raise ValueError(f"{name} is {state[name].shape}; expected {shape}")
    return {name: np.array(state[name], np.float32) for name in shapes}


def sizes_of(state: Mapping[str, Array]) -> Sizes:
    """The sizes that such weights have."""
    first, second, third = (len(state[f"{name}.bias"]) for name in CONVOLUTIONS)
    return Sizes((first, second, third), len(state[f"{WIDE}.bias"]))
