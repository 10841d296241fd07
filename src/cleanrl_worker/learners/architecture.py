"""The hidden part of a network, as the settings give it, and its activation functions in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Activation = Literal["tanh", "relu", "elu", "gelu", "silu", "leaky_relu"]
MAX_LAYERS, MAX_UNITS = 8, 8192
MIN_IMAGE_SIDE_PX = 36
"""The smallest image of which the convolutions leave one pixel; smaller ones, such as maps of grids, are vectors."""
LEAKY_SLOPE = 0.01
"""The default of torch's LeakyReLU."""


class Architecture(NamedTuple):
    """What is between the inputs of a network and its output layers."""

    hidden: tuple[int, ...]
    """Units of each hidden layer."""
    activation: Activation = "relu"
    body: str | None = None
    """A torch.nn.Module of the user's own as `module:Class`, instead of these layers."""
    image: tuple[int, ...] | None = None
    """The shape of observations that are images: convolutions, or the body, come before the layers."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that give it."""
        return {"hidden_sizes": self.hidden, "activation": self.activation, "network": self.body}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], default: Architecture) -> Architecture:
        """Return the architecture of a stored config; one from before these settings has the default."""
        given = {**default.settings, **settings}
        return cls(tuple(given["hidden_sizes"]), given["activation"], given["network"])

    @property
    def layer_count(self) -> int:
        """The number of hidden layers that are ours."""
        return 0 if self.body is not None else len(self.hidden)

    @property
    def is_module(self) -> bool:
        """Whether only torch computes it, in numpy neither forward nor backward."""
        return self.body is not None or self.image is not None

    @property
    def has_kernels(self) -> bool:
        """Whether the numpy kernels can differentiate it; if not, torch computes the updates."""
        return not self.is_module and self.activation in ("tanh", "relu")


def find_sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the axes of height and width of an image, whose channels, if any, are the shorter of first and last axis.

    There may be an axis of stacked frames before these.
    """
    last = len(shape) - 1
    return (last - 2, last - 1) if len(shape) > 2 and shape[-1] <= shape[-3] else (last - 1, last)


def activate(name: Activation, values: Array) -> None:
    """Apply an activation function in place."""
    _FUNCTIONS[name](values, values)


def activation_gradient(name: Activation, outputs: Array) -> npt.NDArray[Any]:
    """Return the derivative of tanh or ReLU, from its outputs."""
    return outputs > 0 if name == "relu" else 1 - outputs * outputs


def _elu(values: Array, out: Array) -> None:
    np.copyto(out, np.expm1(np.minimum(values, 0)), where=values < 0)


def _gelu(values: Array, out: Array) -> None:
    # x Φ(x), with Φ(x) = (1 + erf(x / √2)) / 2. The approximation of erf is exact to 1.5e-7, as a float32 is
    # (Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26).
    scaled = np.abs(values) * np.float32(math.sqrt(0.5))
    t = 1 / (1 + np.float32(0.3275911) * scaled)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    half_tail = 0.5 * series * np.exp(-scaled * scaled)
    np.multiply(values, np.where(values < 0, half_tail, 1 - half_tail), out=out)


def _silu(values: Array, out: Array) -> None:
    # x σ(x), with σ(x) = (1 + tanh(x / 2)) / 2, which does not overflow.
    np.multiply(values, 0.5 * (1 + np.tanh(0.5 * values)), out=out)


_FUNCTIONS: dict[str, Callable[[Array, Array], object]] = {
    "tanh": np.tanh,
    "relu": lambda values, out: np.maximum(values, 0, out=out),
    "elu": _elu,
    "gelu": _gelu,
    "silu": _silu,
    "leaky_relu": lambda values, out: np.multiply(values, np.where(values < 0, LEAKY_SLOPE, 1), out=out),
}
