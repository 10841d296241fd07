"""Policies in the zip files of Stable-Baselines3, read without unpickling and without that library.

The zip holds `data`, JSON in which values that are not JSON are pickled and described as text next to it, and
`policy.pth` with the weights. The weights are read opcode by opcode and the network follows from their names; of the
pickled values only the text is used. A policy that is not understood is refused with the reason.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.worker.envs.spaces import flat_size, make_flattener
from mosaic.worker.torch_files import read_weights

Array = npt.NDArray[Any]
SB3, SB3_SUFFIX = "Stable-Baselines3", ".zip"
MAX_DATA_BYTES = 64 << 20
MAX_WEIGHT_BYTES = 256 << 20
MAX_STATISTICS_BYTES = 64 << 20

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "Tanh": np.tanh,
    "ReLU": lambda values: np.maximum(values, 0),
    "ELU": lambda values: np.where(values > 0, values, np.expm1(np.minimum(values, 0))),
    "LeakyReLU": lambda values: np.where(values > 0, values, 0.01 * values),
    "GELU": lambda values: values * _normal_cdf(values),
    "SiLU": lambda values: values / (1 + np.exp(-values)),
}


class PolicyKind(NamedTuple):
    """How the policies of one module of Stable-Baselines3 compute an action."""

    layers: str
    """Prefix of the hidden layers."""
    head: str
    """Name of the last layer; empty: it is the last of the layers."""
    activation: str
    features: str
    """Prefix of the network that reads images."""
    is_squashed: bool = False
    """Whether a continuous action is the tangent hyperbolic of the output, scaled to the action space."""


_MODULES = {
    "common": PolicyKind("mlp_extractor.policy_net", "action_net", "Tanh", "features_extractor"),
    "dqn": PolicyKind("q_net.q_net", "", "ReLU", "q_net.features_extractor"),
    "sac": PolicyKind("actor.latent_pi", "actor.mu", "ReLU", "actor.features_extractor", True),
    "td3": PolicyKind("actor.mu", "", "ReLU", "actor.features_extractor", True),
}
"""By the module of Stable-Baselines3 that has the policies. Those of PPO and A2C are the common ones."""
_CONVOLUTIONS = ((0, 4), (2, 2), (4, 1))
"""Of the network for images: the number of each convolution in its sequence, and its stride."""


@dataclass(frozen=True)
class ObservationStatistics:
    """What VecNormalize had learned about observations."""

    moments: Mapping[str, tuple[Array, Array]]
    """Mean and variance, by the name of a part; of observations without parts, of the name `""`."""
    epsilon: float
    clip: float

    def normalize(self, part: str, values: Any) -> Any:
        if part not in self.moments:
            return values
        mean, variance = self.moments[part]
        scaled = (np.asarray(values) - mean) / np.sqrt(variance + self.epsilon)
        return np.clip(scaled, -self.clip, self.clip).astype(np.float32)


class _Part(NamedTuple):
    """How a part of an observation is read, or all of it."""

    name: str
    read: Callable[[Any], Array]
    """Returns a vector."""
    width: int


class Sb3Policy:
    """Acts deterministically."""

    def __init__(
        self, path: Path, observation_space: Any, action_space: Any, statistics: ObservationStatistics | None = None
    ) -> None:
        self.path = path
        self._space = action_space
        self._statistics = statistics
        data, self._weights = _read_zip(path)
        module = _policy_module(data, path)
        found = re.fullmatch(r"stable_baselines3\.(\w+)\.policies", module)
        if found is None or found.group(1) not in _MODULES:
            raise BadInput(f"{path}: policies of {module!r} cannot be read; known are those of {', '.join(_MODULES)}.")
        self._kind = _MODULES[found.group(1)]
        self._activation = _activation(data, self._kind.activation, path)
        self._layers = self._find_layers()
        self._refuse_unknown_parts(data, observation_space)
        try:
            self._parts = self._find_parts(observation_space)
            self._check_shapes(observation_space)
            self.act(np.zeros((1, sum(part.width for part in self._parts)), np.float32), True, None)
        except (ValueError, IndexError, KeyError) as error:
            raise BadInput(f"{path}: the weights do not fit together: {error}.") from None

    def _find_layers(self) -> list[tuple[Array, Array]]:
        pattern = re.compile(rf"{re.escape(self._kind.layers)}\.(\d+)\.weight")
        numbers = sorted(int(found.group(1)) for name in self._weights if (found := pattern.fullmatch(name)))
        names = [f"{self._kind.layers}.{number}" for number in numbers]
        if self._kind.head:
            names.append(self._kind.head)
        try:
            layers = [(self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]) for name in names]
        except KeyError as error:
            raise BadInput(f"{self.path}: the weights have no {error.args[0]!r}; the policy cannot be built.") from None
        if not layers:
            raise BadInput(f"{self.path}: the policy has no layers that are known here.")
        return layers

    def _refuse_unknown_parts(self, data: Mapping[str, Any], observation_space: Any) -> None:
        """Refuse what would act differently from the library, though its weights have the right shapes."""
        settings = data.get("policy_kwargs")
        changed = settings if isinstance(settings, dict) else {}
        if not all(np.isfinite(value).all() for value in self._weights.values()):
            raise BadInput(f"{self.path}: it has weights that are not finite numbers.")
        if str(changed.get("squash_output", False)) != "False" and not self._kind.is_squashed:
            raise BadInput(f"{self.path}: `squash_output` is not supported.")
        if str(changed.get("normalize_images", True)) != "True":
            raise BadInput(f"{self.path}: `normalize_images=False` is not supported.")
        described = data.get("observation_space")
        kind = str(described.get(":type:")).rpartition(".")[2].rstrip("'>") if isinstance(described, dict) else ""
        if "Dict" in (kind, own := type(observation_space).__name__) and kind != own:
            raise BadInput(f"{self.path}: it was trained on observations of the kind {kind}; those here are {own}.")
        names = [f"extractors.{name}." for name in observation_space.spaces] if own == "Dict" else [""]
        known = tuple(f"{name}{layer}." for name in names for layer in ("cnn", "linear"))
        for name in self._weights:
            owner, _, part = name.rpartition("features_extractor.")
            is_used = owner == "pi_" or f"{owner}features_extractor" == self._kind.features
            if part != name and is_used and not part.startswith(known):
                raise BadInput(f"{self.path}: its features extractor is not known ({name}).")
        if getattr(self._space, "shape", None) is None or not (self._is_discrete or hasattr(self._space, "low")):
            raise BadInput(f"{self.path}: actions of {self._space} are not supported.")

    @property
    def _is_discrete(self) -> bool:
        return hasattr(self._space, "n") and self._space.shape == ()

    def _find_parts(self, space: Any) -> list[_Part]:
        if isinstance(space, Dict):
            parts = space.spaces.items()
            return [self._find_part(name, part, f"{self._kind.features}.extractors.{name}.") for name, part in parts]
        return [self._find_part("", space, f"{self._kind.features}.")]

    def _find_part(self, name: str, space: Any, prefix: str) -> _Part:
        shape: Any = getattr(space, "shape", None)
        known = self._statistics.moments.get(name) if self._statistics is not None else None
        if known is not None and known[0].shape != shape:
            raise BadInput(
                f"The statistics of VecNormalize are for observations of the shape {known[0].shape}; those here have "
                f"the shape {shape}."
            )
        if not isinstance(space, Box | Discrete | MultiBinary | MultiDiscrete):
            raise BadInput(f"{self.path}: it needs observations that are arrays; those here are {space}.")
        if f"{prefix}cnn.0.weight" in self._weights:
            channels = int(self._weights[f"{prefix}cnn.0.weight"].shape[1])
            if len(shape) != 3 or channels not in (shape[0], shape[2]):
                raise BadInput(f"{self.path}: it reads images with {channels} channels; observations here are {shape}.")
            read = partial(self._read_image, prefix=prefix)
            return _Part(name, read, len(read(np.zeros(shape, space.dtype))))
        if len(shape) > 2:
            raise BadInput(f"{self.path}: images are supported for policies that read them by convolutions only.")
        return _Part(name, make_flattener(space) or np.asarray, flat_size(space))

    def _check_shapes(self, observation_space: Any) -> None:
        expected, width = int(self._layers[0][0].shape[1]), sum(part.width for part in self._parts)
        if width != expected:
            raise BadInput(
                f"{self.path}: it was trained on observations of {expected} values; those here have {width}. If its "
                "environment was wrapped, that is not part of the file."
            )
        outputs = int(self._layers[-1][0].shape[0])
        needed = int(self._space.n) if self._is_discrete else int(np.prod(self._space.shape))
        if outputs != needed:
            raise BadInput(f"{self.path}: it chooses among {outputs} actions; here are {needed}.")

    def choose(self, observation: Any) -> Any:
        """Return the action for one observation."""
        (action,) = self.act(self.to_array(observation)[None], True, None)
        return int(action) if self._is_discrete else action

    def to_array(self, observation: Any) -> Array:
        """Return the features of an observation: what the hidden layers read."""
        vectors = []
        for part in self._parts:
            values = observation[part.name] if part.name else observation
            if self._statistics is not None:
                values = self._statistics.normalize(part.name, values)
            vectors.append(np.asarray(part.read(values), np.float32))
        return np.concatenate(vectors)

    def act(self, observations: Array, deterministic: bool, rng: object) -> Array:
        """Return an action for each row of features."""
        values = observations
        for weight, bias in self._layers[:-1]:
            values = self._activation(values @ weight.T + bias)
        weight, bias = self._layers[-1]
        output = values @ weight.T + bias
        if self._is_discrete:
            return np.asarray(output.argmax(1))
        low, high = self._space.low.ravel(), self._space.high.ravel()
        actions = (
            low + 0.5 * (np.tanh(output) + 1) * (high - low) if self._kind.is_squashed else np.clip(output, low, high)
        )
        return np.asarray(actions.reshape(-1, *self._space.shape).astype(self._space.dtype))

    def _read_image(self, image: Array, prefix: str) -> Array:
        """The convolutional network of Mnih et al. (2015), with weights [out, in, height, width]."""
        channels = self._weights[f"{prefix}cnn.0.weight"].shape[1]
        values = image if image.shape[0] == channels else image.transpose(2, 0, 1)
        values = values.astype(np.float32) / 255.0
        for number, stride in _CONVOLUTIONS:
            weight, bias = (self._weights[f"{prefix}cnn.{number}.{part}"] for part in ("weight", "bias"))
            windows = np.lib.stride_tricks.sliding_window_view(values, weight.shape[2:], (1, 2))[:, ::stride, ::stride]
            # out[o, y, x] = sum over c, i, j of weight[o, c, i, j] * windows[c, y, x, i, j]
            values = np.maximum(np.einsum("ocij,cyxij->oyx", weight, windows) + bias[:, None, None], 0)
        weight, bias = (self._weights[f"{prefix}linear.0.{part}"] for part in ("weight", "bias"))
        return np.asarray(np.maximum(weight @ values.ravel() + bias, 0))


def _read_zip(path: Path) -> tuple[Mapping[str, Any], dict[str, Array]]:
    try:
        with zipfile.ZipFile(path) as archive:
            data = json.loads(_read_member(archive, "data", MAX_DATA_BYTES, path))
            weights = read_weights(path, io.BytesIO(_read_member(archive, "policy.pth", MAX_WEIGHT_BYTES, path)))
    except MosaicError:
        raise
    except Exception as error:  # zipfile raises many kinds for a damaged file
        raise BadInput(f"{path} is not a file of Stable-Baselines3, or damaged: {error}.") from None
    if not isinstance(data, dict) or not isinstance(weights, dict):
        raise BadInput(f"{path} is not a file of Stable-Baselines3: its parts are not what they should be.")
    return data, {str(name): value for name, value in weights.items() if isinstance(value, np.ndarray)}


def _read_member(archive: zipfile.ZipFile, name: str, limit: int, path: Path) -> bytes:
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise BadInput(f"{path} is not a file of Stable-Baselines3: it has no {name!r}.") from None
    if info.file_size > limit:
        raise BadInput(f"{path}: {name!r} is larger than {limit:,} bytes.")
    return archive.read(info)


def _policy_module(data: Mapping[str, Any], path: Path) -> str:
    """Return the module of the policy's class, from the text next to its pickle."""
    described = data.get("policy_class")
    module = described.get("__module__") if isinstance(described, dict) else None
    if not isinstance(module, str):
        raise BadInput(f"{path} does not say which class of policy it holds.")
    return module


def _activation(data: Mapping[str, Any], default: str, path: Path) -> Callable[[Array], Array]:
    settings = data.get("policy_kwargs")
    text = str(settings.get("activation_fn", "")) if isinstance(settings, dict) else ""
    found = re.search(r"activation\.(\w+)", text)
    name = found.group(1) if found else default
    if name not in _ACTIVATIONS:
        raise BadInput(f"{path}: the activation {name!r} is not known; known are {', '.join(_ACTIVATIONS)}.")
    return _ACTIVATIONS[name]


def _normal_cdf(values: Array) -> Array:
    from math import erf, sqrt

    return np.asarray(np.vectorize(lambda value: 0.5 * (1 + erf(value / sqrt(2))))(values))


# --- VecNormalize


class _Inert:
    """Replaces any object of a library: holds its state and does nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})


class _StatisticsReader(pickle.Unpickler):
    """Builds arrays and containers; objects of the libraries stay inert, and everything else is refused."""

    _BUILT = {
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy.core.numeric", "_frombuffer"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("collections", "OrderedDict"),
        ("collections", "deque"),
    }
    _INERT = ("stable_baselines3.", "gymnasium.", "numpy.random.")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._BUILT:
            return super().find_class(module, name)
        if f"{module}.".startswith(self._INERT):
            return _Inert
        raise pickle.UnpicklingError(f"it would create {module}.{name}")


def read_statistics(path: Path) -> ObservationStatistics:
    """Read what VecNormalize saved; a file with anything unexpected is refused."""
    try:
        if path.stat().st_size > MAX_STATISTICS_BYTES:
            raise BadInput(f"{path} is larger than {MAX_STATISTICS_BYTES:,} bytes.")
        with open(path, "rb") as file:
            saved: Any = _StatisticsReader(file).load()
        found = saved.obs_rms if isinstance(saved.obs_rms, dict) else {"": saved.obs_rms}
        moments = {
            str(name): (np.asarray(one.mean, np.float64), np.asarray(one.var, np.float64))
            for name, one in found.items()
        }
        statistics = ObservationStatistics(moments, float(saved.epsilon), float(saved.clip_obs))
    except MosaicError:
        raise
    except Exception as error:  # a pickle may raise anything
        raise BadInput(f"{path} is not a file of VecNormalize that can be read: {error}.") from None
    if any(mean.shape != variance.shape for mean, variance in moments.values()):
        raise BadInput(f"{path} is damaged: mean and variance have different shapes.")
    return statistics
