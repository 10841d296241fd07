"""The network that looks at Atari pictures, without torch: the names and shapes of its weights, and their beginning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cleanrl_worker.ppo_network import orthogonal_matrix

Array = npt.NDArray[Any]
Shapes = dict[str, tuple[int, ...]]
KERNEL_SIZES_AND_STRIDES = ((8, 4), (4, 2), (3, 1))
"""Side and stride of each convolution."""
CONV_LAYERS = ("network.0", "network.2", "network.4")
HIDDEN_LAYER = "network.7"
"""The layer behind them. The numbers between are those of layers without weights in CleanRL's lists."""


class ConvNetworkSizes(NamedTuple):
    channels: tuple[int, int, int] = (32, 64, 64)
    """Of each convolution."""
    hidden: int = 512
    """Units of the layer behind them."""


def layer_shapes(name: str, *weight_shape: int) -> Shapes:
    """A layer's weight [outputs, …] and bias."""
    return {f"{name}.weight": weight_shape, f"{name}.bias": weight_shape[:1]}


def trunk_shapes(input_channels: int, image_side: int, sizes: ConvNetworkSizes) -> Shapes:
    """Three convolutions over so many pictures of that side, and a wide layer."""
    shapes: Shapes = {}
    for name, (kernel, stride), channels in zip(CONV_LAYERS, KERNEL_SIZES_AND_STRIDES, sizes.channels, strict=True):
        shapes |= layer_shapes(name, channels, input_channels, kernel, kernel)
        input_channels, image_side = channels, (image_side - kernel) // stride + 1
    return shapes | layer_shapes(HIDDEN_LAYER, sizes.hidden, input_channels * image_side * image_side)


def parameter_count(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def orthogonal_weights(shapes: Shapes, rng: np.random.Generator, gains: Mapping[str, float]) -> dict[str, Array]:
    """Orthogonal weights and zero biases. A layer's gain stands under its name, else it is that of rectified units."""
    found: dict[str, Array] = {}
    for name, shape in shapes.items():
        gain = gains.get(name.partition(".")[0], math.sqrt(2))
        is_bias = len(shape) == 1
        flat = (shape[0], math.prod(shape[1:]))
        found[name] = np.zeros(shape, np.float32) if is_bias else orthogonal_matrix(rng, flat, gain).reshape(shape)
    return found


def uniform_weights(shapes: Shapes, rng: np.random.Generator) -> dict[str, Array]:
    """As torch begins: weights and biases uniform, up to one over the root of a unit's inputs."""
    found = {}
    for name, shape in shapes.items():
        inputs = math.prod(shapes[f"{name.rpartition('.')[0]}.weight"][1:])
        found[name] = rng.uniform(-1, 1, shape).astype(np.float32) / np.float32(math.sqrt(inputs))
    return found


def copy_checked(shapes: Shapes, state: Mapping[str, Array]) -> dict[str, Array]:
    """Copies of weights, in the order of the shapes. A missing name is a KeyError, a wrong shape a ValueError."""
    for name, shape in shapes.items():
        if state[name].shape != shape:
            raise ValueError(f"{name} is {state[name].shape}; expected {shape}")
    return {name: np.array(state[name], np.float32) for name in shapes}


def infer_sizes(state: Mapping[str, Array]) -> ConvNetworkSizes:
    """The sizes that such weights have."""
    first, second, third = (len(state[f"{name}.bias"]) for name in CONV_LAYERS)
    return ConvNetworkSizes((first, second, third), len(state[f"{HIDDEN_LAYER}.bias"]))
