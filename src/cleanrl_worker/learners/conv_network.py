"""The convolutional networks for frames, without torch: names, shapes and initialization of its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.flat_network import check_shapes, orthogonal_matrix
from mosaic.worker.envs.atari import FRAME_SIZE_PX, FRAME_STACK

Array = npt.NDArray[Any]
Shapes = dict[str, tuple[int, ...]]
CONV_NETWORK = Architecture((512,), "relu")
"""The default of what follows the convolutions."""
KERNEL_SIZES_AND_STRIDES = ((8, 4), (4, 2), (3, 1))
"""Kernel size and stride of each convolution."""
CHANNELS = (32, 64, 64)
BODY = "network.body."
"""Before the names of the parameters of the user's own network."""
CONV_LAYERS = ("network.0", "network.2", "network.4")
FIRST_DENSE_LAYER = 7
"""The number of the first fully connected layer. The missing numbers are CleanRL's layers without weights."""

IMPALA_LAYERS = ("network.0", "network.1", "network.2")
"""The sequences of IMPALA's network: a convolution, max pooling and two residual blocks."""
IMPALA_RESIDUALS = tuple(f"res_block{block}.conv{layer}" for block in (0, 1) for layer in (0, 1))
FIRST_IMPALA_DENSE_LAYER = 5


class ConvNetworkSizes(NamedTuple):
    channels: tuple[int, int, int] = CHANNELS
    """Output channels of each convolution."""
    hidden: tuple[int, ...] = (512,)
    """Units of each fully connected layer after them, or outputs of the user's own network."""
    body: str | None = None
    """A network of the user's own as `module:Class`, instead of all of these."""

    def with_architecture(self, architecture: Architecture, frames: int = FRAME_STACK) -> ConvNetworkSizes:
        """Return these sizes with what the settings give; `frames` is the number of frames of an observation."""
        if architecture.body is None:
            return self._replace(hidden=architecture.hidden)
        from cleanrl_worker.learners.torch_dense import probe_body

        _, outputs = probe_body(architecture.body, (frames, FRAME_SIZE_PX, FRAME_SIZE_PX))
        return self._replace(hidden=(outputs,), body=architecture.body)


def dense_layer(index: int, first: int = FIRST_DENSE_LAYER) -> str:
    """Return the name of a fully connected layer after the convolutions; if it is the last, that of the output."""
    return f"network.{first + 2 * index}"


def layer_shapes(name: str, *weight_shape: int) -> Shapes:
    """Return the shapes of a layer's weight [outputs, …] and bias."""
    return {f"{name}.weight": weight_shape, f"{name}.bias": weight_shape[:1]}


def trunk_shapes(input_channels: int, image_side: int, sizes: ConvNetworkSizes) -> Shapes:
    """Return the shapes of three convolutions over square images and of the fully connected layers."""
    shapes: Shapes = {}
    if sizes.body is not None:
        from cleanrl_worker.learners.torch_dense import probe_body

        body, _ = probe_body(sizes.body, (input_channels, image_side, image_side))
        return {f"{BODY}{name}": tuple(part.shape) for name, part in body.named_parameters()}
    for name, (kernel, stride), channels in zip(CONV_LAYERS, KERNEL_SIZES_AND_STRIDES, sizes.channels, strict=True):
        shapes |= layer_shapes(name, channels, input_channels, kernel, kernel)
        input_channels, image_side = channels, (image_side - kernel) // stride + 1
    inputs = input_channels * image_side * image_side
    for index, units in enumerate(sizes.hidden):
        shapes |= layer_shapes(dense_layer(index), units, inputs)
        inputs = units
    return shapes


def impala_shapes(input_channels: int, image_side: int, sizes: ConvNetworkSizes) -> Shapes:
    """Return the shapes of IMPALA's residual convolutions over square images and of the fully connected layers."""
    shapes: Shapes = {}
    for name, channels in zip(IMPALA_LAYERS, sizes.channels, strict=True):
        shapes |= layer_shapes(f"{name}.conv", channels, input_channels, 3, 3)
        for layer in IMPALA_RESIDUALS:
            shapes |= layer_shapes(f"{name}.{layer}", channels, channels, 3, 3)
        input_channels, image_side = channels, (image_side + 1) // 2
    inputs = input_channels * image_side * image_side
    for index, units in enumerate(sizes.hidden):
        shapes |= layer_shapes(dense_layer(index, FIRST_IMPALA_DENSE_LAYER), units, inputs)
        inputs = units
    return shapes


def parameter_count(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def orthogonal_weights(shapes: Shapes, rng: np.random.Generator, gains: Mapping[str, float]) -> dict[str, Array]:
    """Create orthogonal weights and zero biases. `gains` are by layer name; the default is the gain for ReLU."""
    weights: dict[str, Array] = {}
    for name, shape in shapes.items():
        gain = gains.get(name.partition(".")[0], math.sqrt(2))
        is_bias = len(shape) == 1
        flat = (shape[0], math.prod(shape[1:]))
        weights[name] = np.zeros(shape, np.float32) if is_bias else orthogonal_matrix(rng, flat, gain).reshape(shape)
    return weights


def uniform_weights(shapes: Shapes, rng: np.random.Generator) -> dict[str, Array]:
    """Create weights and biases as torch does: uniform within ±1/sqrt(inputs of a unit)."""
    weights = {}
    for name, shape in shapes.items():
        inputs = math.prod(shapes[f"{name.rpartition('.')[0]}.weight"][1:])
        weights[name] = rng.uniform(-1, 1, shape).astype(np.float32) / np.float32(math.sqrt(inputs))
    return weights


def copy_checked(shapes: Shapes, state: Mapping[str, Array]) -> dict[str, Array]:
    """Copy weights in the order of the shapes. A missing name raises KeyError, a wrong shape ValueError."""
    check_shapes(shapes, state)
    return {name: np.array(state[name], np.float32) for name in shapes}


def infer_sizes(
    state: Mapping[str, Array],
    architecture: Architecture,
    layers: Sequence[str] = CONV_LAYERS,
    frames: int = FRAME_STACK,
) -> ConvNetworkSizes:
    """Return the network sizes of these weights; `layers` are the names of the convolutions."""
    if architecture.body is not None:
        return ConvNetworkSizes().with_architecture(architecture, frames)
    first, second, third = (len(state[f"{name}.bias"]) for name in layers)
    return ConvNetworkSizes((first, second, third), architecture.hidden)


def initialize_bodies(agent: Any, architecture: Architecture, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    """Initialize the user's own networks of an agent for frames of a shape as their constructors do."""
    if architecture.body is None:
        return
    import torch

    from cleanrl_worker.learners.torch_dense import make_body

    for prefix in sorted({name.partition(BODY)[0] for name in agent.parameters if BODY in name}):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**62)))
            body, _ = make_body(architecture.body, shape)
        for name, part in body.named_parameters():
            agent.parameters[f"{prefix}{BODY}{name}"] = part.detach().numpy()


class ConvAgent:
    """An agent whose weights are arrays by name, for networks in torch."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.parameters: dict[str, Array] = {}

    def initialize(self, rng: np.random.Generator) -> None:
        """Set the initial weights."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Array]:
        """Return the weights under CleanRL's keys, in torch's layout."""
        return dict(self.parameters)

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.parameters = copy_checked(self.shapes, state)
