"""Wrappers that a config puts around an environment, by name or as `module:Class`, the first one innermost.

Episodes are reported by the environment's own rewards, as in CleanRL, whose episode statistics are inside of all other
wrappers; only the learner gets what the wrappers make of them. Statistics of normalizing wrappers belong to a policy:
all environments of a training share them, and evaluation uses them without changing them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import wrappers as gymnasium_wrappers
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from mosaic.contracts.arguments import parse_wrapper
from mosaic.contracts.errors import BadInput, FieldProblem, unknown_name_error
from mosaic.worker.envs.spaces import make_flattener
from mosaic.worker.envs.user_modules import import_object

Env = gymnasium.Env[Any, Any]
Array = npt.NDArray[Any]
SETTING = "wrappers"
MAX_STACK, MAX_SIDE_PX = 1000, 4096
_MAX_SHOWN = 500
_NORMALIZERS = (NormalizeObservation, NormalizeReward)
_STATISTICS = ("mean", "var", "count")


class RewardScale(gymnasium.RewardWrapper[Any, Any]):
    """Multiplies rewards by a factor."""

    def __init__(self, env: Env, scale: float) -> None:
        super().__init__(env)
        if not math.isfinite(scale):
            raise ValueError(f"expected a finite scale, not {scale}")
        self._scale = float(scale)

    def reward(self, reward: Any) -> float:
        return float(reward) * self._scale


class FrameStack(gymnasium_wrappers.FrameStackObservation[Any, Any, Any]):
    """Gymnasium's, with a limit: it allocates the whole stack at once."""

    def __init__(self, env: Env, stack_size: int = 4, **options: Any) -> None:
        if isinstance(stack_size, int) and stack_size > MAX_STACK:
            raise ValueError(f"at most {MAX_STACK:,} observations can be stacked, not {stack_size:,}")
        super().__init__(env, stack_size, **options)


class ResizeObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Resizes images of bytes [height, width] or [height, width, channels] by averaging; Gymnasium's needs OpenCV."""

    def __init__(self, env: Env, shape: tuple[int, int]) -> None:
        super().__init__(env)
        space, (height, width) = env.observation_space, shape
        if not all(isinstance(side, int) and 1 <= side <= MAX_SIDE_PX for side in shape):
            raise ValueError(f"expected a height and a width from 1 to {MAX_SIDE_PX:,} pixels, not {shape}")
        if not isinstance(space, gymnasium.spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
            raise ValueError(f"it needs images of bytes [height, width] or [height, width, channels], not {space}")
        self.observation_space = gymnasium.spaces.Box(0, 255, (height, width, *space.shape[2:]), np.uint8)
        self._size = width, height

    def observation(self, observation: Any) -> Array:
        from PIL import Image

        planes = np.moveaxis(np.atleast_3d(observation), 2, 0)
        resized = [np.asarray(Image.fromarray(plane).resize(self._size, Image.Resampling.BOX)) for plane in planes]
        return np.stack(resized, 2).reshape(self.observation_space.shape or ())


NAMED_WRAPPERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "clip-action": (gymnasium_wrappers.ClipAction, {}),
    "flatten": (gymnasium_wrappers.FlattenObservation, {}),
    "frame-stack": (FrameStack, {}),
    "grayscale": (gymnasium_wrappers.GrayscaleObservation, {}),
    "normalize-observation": (NormalizeObservation, {}),
    "normalize-reward": (NormalizeReward, {}),
    "rescale-action": (gymnasium_wrappers.RescaleAction, {"min_action": -1.0, "max_action": 1.0}),
    "resize-observation": (ResizeObservation, {"shape": (84, 84)}),
    "reward-scale": (RewardScale, {}),
    "time-limit": (gymnasium_wrappers.TimeLimit, {}),
}
"""By name: the class, and the arguments that Gymnasium has no default for."""


class _Base(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The environment itself, inside of all wrappers: keeps what they change."""

    reward_sum = 0.0
    observation: Any = None

    def reset(self, **options: Any) -> Any:
        self.observation, info = self.env.reset(**options)
        return self.observation, info

    def step(self, action: Any) -> Any:
        self.observation, reward, *rest = self.env.step(action)
        self.reward_sum += float(reward)
        return self.observation, reward, *rest


class WrappedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment with wrappers. It returns the environment's own rewards; `learner_rewards` are the wrappers'."""

    def __init__(self, env: Env, base: _Base, specs: Sequence[str]) -> None:
        super().__init__(env)
        self.specs = tuple(specs)
        """The wrappers as they were named."""
        self._base = base
        self.learner_rewards: list[float] = []
        self._normalizers = [wrapper for wrapper in _chain(env) if isinstance(wrapper, _NORMALIZERS)][::-1]

    def step(self, action: Any) -> Any:
        self._base.reward_sum = 0.0
        observation, reward, is_terminal, is_truncated, info = self.env.step(action)
        self.learner_rewards.append(float(reward))
        return observation, self._base.reward_sum, is_terminal, is_truncated, info

    def take_learner_rewards(self) -> list[float]:
        rewards, self.learner_rewards = self.learner_rewards, []
        return rewards

    # --- statistics

    @property
    def has_statistics(self) -> bool:
        return bool(self._normalizers)

    @property
    def normalizes_observations(self) -> bool:
        return any(isinstance(wrapper, NormalizeObservation) for wrapper in self._normalizers)

    def hashed_part(self, observation: Any) -> Any:
        """Return what of an observation a replay can compare: a normalized one depends on all that came before."""
        return self._base.observation if self.normalizes_observations else observation

    @property
    def own_observation(self) -> Array:
        """The latest observation of the environment itself, flattened."""
        flatten = make_flattener(self._base.observation_space) or np.array
        return np.array(flatten(self._base.observation))

    def share_statistics(self, other: WrappedEnv) -> None:
        for wrapper, theirs in zip(self._normalizers, other._normalizers, strict=True):
            name = _statistics_name(wrapper)
            setattr(wrapper, name, getattr(theirs, name))

    def set_frozen(self, is_frozen: bool) -> None:
        """Use the statistics without changing them, or change them again."""
        for wrapper in self._normalizers:
            wrapper.update_running_mean = not is_frozen

    def statistics(self) -> dict[str, Array]:
        """Return arrays for a checkpoint."""
        return {
            f"wrapper.{index}.{key}": np.array(getattr(getattr(wrapper, _statistics_name(wrapper)), key))
            for index, wrapper in enumerate(self._normalizers)
            for key in _STATISTICS
        }

    def restore_statistics(self, arrays: Mapping[str, Array]) -> None:
        """Restore them from a checkpoint; KeyError names an array that it lacks."""
        for index, wrapper in enumerate(self._normalizers):
            for key in _STATISTICS:
                value = arrays[f"wrapper.{index}.{key}"]
                # As the wrapper itself has it: a Python float, a numpy scalar or an array.
                restored = float(value) if key == "count" else value[()].copy()
                setattr(getattr(wrapper, _statistics_name(wrapper)), key, restored)

    @property
    def discounted_rewards(self) -> list[float]:
        """The discounted sum of each NormalizeReward, which continues over episodes."""
        return [float(wrapper.discounted_reward[0]) for wrapper in self._reward_normalizers()]

    @discounted_rewards.setter
    def discounted_rewards(self, values: Sequence[float]) -> None:
        for wrapper, value in zip(self._reward_normalizers(), values, strict=True):
            wrapper.discounted_reward = np.array([value])

    def _reward_normalizers(self) -> Iterator[Any]:
        return (wrapper for wrapper in self._normalizers if isinstance(wrapper, NormalizeReward))


def wrap(env: Env, specs: Sequence[str]) -> WrappedEnv:
    """Put these wrappers around an environment, in this order; raise BadInput for one that cannot be."""
    wrapped: Any = _Base(env)
    base = wrapped
    kind: Any
    defaults: dict[str, Any]
    for spec in specs:
        try:
            name, given = parse_wrapper(spec)
        except ValueError as error:
            raise _problem(f"{error}.") from None
        if ":" in name:
            kind, defaults = import_object(name, SETTING, gymnasium.Wrapper), {}
        elif name in NAMED_WRAPPERS:
            kind, defaults = NAMED_WRAPPERS[name]
        else:
            known = unknown_name_error("wrapper", name, NAMED_WRAPPERS)
            raise _problem(f"{known} One of your own is named as module:Class.")
        try:
            wrapped = kind(wrapped, **{**defaults, **given})
            wrapped.observation_space, wrapped.action_space  # noqa: B018 (missing ones raise)
        except Exception as error:  # the user's own code raises anything
            raise _problem(f"{spec} cannot be put around {_env_name(env)}: {_cause(error)}") from error
    return WrappedEnv(wrapped, base, specs)


def try_wrapped(env: WrappedEnv) -> None:
    """Reset and step it once; raise BadInput if that fails or gives what its spaces do not contain."""
    try:
        observation, _ = env.reset(seed=0)
        _require_observation(env, observation, "reset")
        observation, _, is_terminal, is_truncated, _ = env.step(env.action_space.sample())
        _require_observation(env, observation, "step")
        bool(is_terminal or is_truncated)
    except BadInput:
        raise
    except Exception as error:  # the user's own code raises anything
        raise _problem(f"{_env_name(env)} does not work with these wrappers: {_cause(error)}") from error


def _require_observation(env: WrappedEnv, observation: Any, method: str) -> None:
    space = env.observation_space
    is_box = isinstance(space, gymnasium.spaces.Box)  # whose bounds and type few environments keep
    if np.shape(observation) != space.shape if is_box else not space.contains(observation):
        kind = f"{type(observation).__name__} of shape {np.shape(observation)}" if is_box else repr(observation)[:80]
        raise _problem(
            f"{method} of {_env_name(env)} with these wrappers gives an observation ({kind}) that is not in its "
            f"observation space {space}."
        )


def _chain(env: Any) -> Iterator[Any]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def _statistics_name(wrapper: Any) -> str:
    return "obs_rms" if isinstance(wrapper, NormalizeObservation) else "return_rms"


def _env_name(env: Env) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_MAX_SHOWN].rstrip(".") + "."


def _problem(message: str) -> BadInput:
    return BadInput(f"{SETTING}: {message}", [FieldProblem(SETTING, message)])
