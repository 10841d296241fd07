"""What the numpy networks share: parameters as views of one flat vector, their initialization, and Adam over them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

Part = TypeVar("Part")

ADAM_BETA_1, ADAM_BETA_2 = 0.9, 0.999
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class FlatViews:
    """Views of one flat vector by name: the parameters, their gradient, or Adam's moments."""

    def __init__(self, flat: Array) -> None:
        self.flat = flat
        self._offset = 0

    def _next_view(self, *shape: int) -> Array:
        start, self._offset = self._offset, self._offset + math.prod(shape)
        return self.flat[start : self._offset].reshape(shape)


Views = TypeVar("Views", bound=FlatViews)


class FlatNetwork(Generic[Views]):
    """A network whose parameters are one flat vector; saved under CleanRL's names in torch's layout."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.parameters = self.zero_vector()
        self.flat = self.parameters.flat

    def zero_vector(self) -> Views:
        """Return a vector of the same shape, all zeros."""
        raise NotImplementedError

    def _named_views(self, views: Views) -> dict[str, Array]:
        """Return views in torch's layout (a layer's weight is [out, in]) under CleanRL's names."""
        raise NotImplementedError

    def copy_from(self, other: FlatNetwork[Views]) -> None:
        """Copy the parameters of a network of the same shape."""
        np.copyto(self.flat, other.flat)

    def named_arrays(self, views: Views) -> dict[str, Array]:
        """Return copies of the parts in torch's layout under CleanRL's names."""
        return {name: np.array(part, order="C") for name, part in self._named_views(views).items()}

    def assign(self, views: Views, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Reverse `named_arrays`. A missing name raises KeyError, a wrong shape ValueError."""
        parts = self._named_views(views)
        check_shapes({name: part.shape for name, part in parts.items()}, arrays)
        for name, part in parts.items():
            part[...] = arrays[name]


class NamedViews(FlatViews):
    """Views in torch's layout, by name."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], flat: Array) -> None:
        super().__init__(flat)
        self.parts = {name: self._next_view(*shape) for name, shape in shapes.items()}


class NamedNetwork(FlatNetwork[NamedViews]):
    """A network that only torch computes: names and shapes of its parameters."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = shapes
        super().__init__(sum(map(math.prod, shapes.values())))

    def zero_vector(self) -> NamedViews:
        return NamedViews(self.shapes, np.zeros(self.size, np.float32))

    def _named_views(self, views: NamedViews) -> dict[str, Array]:
        return views.parts


def check_shapes(shapes: Mapping[str, tuple[int, ...]], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Check that there is an array of each shape. A missing name raises KeyError, a wrong shape ValueError."""
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{name} is {arrays[name].shape}; expected {shape}")


def select_by_prefix(prefix: str, parts: Mapping[str, Part]) -> dict[str, Part]:
    """Return the parts whose names start with the prefix, without it."""
    return {name.removeprefix(prefix): part for name, part in parts.items() if name.startswith(prefix)}


def orthogonal_matrix(rng: np.random.Generator, shape: tuple[int, ...], gain: float) -> Array:
    """Return a random matrix with orthonormal rows or columns, whichever are fewer, times `gain`."""
    rows, columns = shape
    draws = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(draws)
    q *= np.sign(np.diag(r))  # makes the distribution over orthogonal matrices uniform
    return (gain * (q if rows >= columns else q.T)).astype(np.float32)


class NumpyAdam:
    """Adam (arXiv:1412.6980) over a flat parameter vector."""

    def __init__(self, network: FlatNetwork[Any], epsilon: float = 1e-8, max_norm: float | None = None) -> None:
        self.first_moment = network.zero_vector()
        self.second_moment = network.zero_vector()
        self.count = 0
        self._flat = network.flat
        self._epsilon = epsilon
        self._max_norm = max_norm
        """Gradients are clipped to this norm, if given."""
        self._scratch = np.empty(network.size, np.float32)

    def __call__(self, gradient: FlatViews, learning_rate: float) -> bool:
        """Take one step; return False if the gradient is not finite."""
        flat, first, second, scratch = gradient.flat, self.first_moment.flat, self.second_moment.flat, self._scratch
        norm = math.sqrt(np.dot(flat, flat))
        if not math.isfinite(norm):
            return False
        # m ← β₁ m + (1 - β₁) c g     v ← β₂ v + (1 - β₂) (c g)²
        # Clipping by norm, c = min(1, max_norm / (‖g‖ + 1e-6)), is part of the factors: that saves a pass.
        clip = 1.0 if self._max_norm is None else min(1.0, self._max_norm / (norm + 1e-6))
        self.count += 1
        np.multiply(first, ADAM_BETA_1, out=first)
        np.multiply(flat, (1 - ADAM_BETA_1) * clip, out=scratch)
        np.add(first, scratch, out=first)
        np.multiply(second, ADAM_BETA_2, out=second)
        np.multiply(flat, flat, out=scratch)
        np.multiply(scratch, (1 - ADAM_BETA_2) * clip * clip, out=scratch)
        np.add(second, scratch, out=second)
        self._apply_step(learning_rate / (1 - ADAM_BETA_1**self.count), math.sqrt(1 - ADAM_BETA_2**self.count))
        return True

    def _apply_step(self, learning_rate: float, correction: float) -> None:
        # θ ← θ - lr · m̂ / (√v̂ + eps)  with  m̂ = m / (1 - β₁ᵗ),  v̂ = v / (1 - β₂ᵗ).
        # Multiplied by κ = √(1 - β₂ᵗ) (`correction`; `learning_rate` is lr / (1 - β₁ᵗ)):  lr' κ m / (√v + eps κ)
        self._scaled_step(self._epsilon * correction, learning_rate * correction)

    def _scaled_step(self, epsilon: float, factor: float) -> None:
        """Set θ ← θ - factor · m / (√v + epsilon)."""
        scratch = self._scratch
        np.sqrt(self.second_moment.flat, out=scratch)
        np.add(scratch, epsilon, out=scratch)
        np.divide(self.first_moment.flat, scratch, out=scratch)
        np.multiply(scratch, factor, out=scratch)
        np.subtract(self._flat, scratch, out=self._flat)


class NumpyRAdam(NumpyAdam):
    """RAdam (arXiv:1908.03265): Adam whose step is rectified while the second moment has seen few gradients."""

    _MAX_SMA_LENGTH = 2 / (1 - ADAM_BETA_2) - 1
    """ρ_∞ = 2 / (1 - β₂) - 1, the limit of the length of the approximated simple moving average."""

    def _apply_step(self, learning_rate: float, correction: float) -> None:
        # ρ_t = ρ_∞ - 2 t β₂ᵗ / (1 - β₂ᵗ);  where ρ_t > 5 the step is multiplied by
        # √((ρ_t - 4)(ρ_t - 2) ρ_∞ / ((ρ_∞ - 4)(ρ_∞ - 2) ρ_t)), else it is lr · m̂.
        longest = self._MAX_SMA_LENGTH
        length = longest - 2 * self.count * ADAM_BETA_2**self.count / (1 - ADAM_BETA_2**self.count)
        if length > 5:
            rectification = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            # Torch adds eps to √v before the bias correction: lr · m̂ · κ / (√v + eps)
            self._scaled_step(self._epsilon, learning_rate * math.sqrt(rectification) * correction)
        else:
            np.multiply(self.first_moment.flat, learning_rate, out=self._scratch)
            np.subtract(self._flat, self._scratch, out=self._flat)


class NumpyLearner:
    """A learner that updates its network in place with one Adam."""

    def __init__(self, rows: int, adam: NumpyAdam) -> None:
        self.rows = rows
        self.first_moment = adam.first_moment
        self.second_moment = adam.second_moment
        self._adam = adam

    @property
    def count(self) -> int:
        return self._adam.count

    @count.setter
    def count(self, count: int) -> None:
        self._adam.count = count

    def first_non_finite(self) -> None:
        """Return None: an update itself reports a gradient that is not finite."""

    def sync_networks(self) -> None:
        """Do nothing: the network is updated in place."""
