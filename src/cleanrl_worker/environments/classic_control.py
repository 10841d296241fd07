"""The compiled step of Gymnasium's classic control environments, equal to theirs to the last bit.

The library is optional: it is compiled from `classic_control.c` when MOSAIC is installed, if there is a C compiler.
Without it, and for every environment that is not exactly one of Gymnasium's with default arguments, the environments
step themselves. Resets are always theirs, because their random generators belong to them.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.envs.classic_control import AcrobotEnv, CartPoleEnv, MountainCarEnv, PendulumEnv

Array = npt.NDArray[Any]

LIBRARY = Path(__file__).with_name("libclassic_control.so")
CHECKED_STEPS = 100
"""Steps that are compared with an environment's own before the compiled step is used."""


class StepFunction(NamedTuple):
    """A function of the library and the sizes of its arrays."""

    name: str
    state_size: int
    action_dtype: type[Any]


STEP_FUNCTIONS = {
    CartPoleEnv: StepFunction("step_cartpole", 4, np.int64),
    MountainCarEnv: StepFunction("step_mountain_car", 2, np.int64),
    AcrobotEnv: StepFunction("step_acrobot", 4, np.int64),
    PendulumEnv: StepFunction("step_pendulum", 2, np.float32),
}


class CompiledStep:
    """Steps all environments by one call, on copies of their states.

    Call `load` after an environment was reset or stepped by itself, and `write_back` before it is used.
    """

    def __init__(self, library: ctypes.CDLL, envs: Sequence[Any]) -> None:
        name, state_size, action_dtype = STEP_FUNCTIONS[type(envs[0])]
        count = len(envs)
        self._envs = envs
        self._states = np.zeros((count, state_size))
        self._actions: Array = np.zeros((count, *envs[0].action_space.shape), action_dtype)
        self.observations: Array = np.zeros((count, *envs[0].observation_space.shape), np.float32)
        """The observations of the latest step; the next one overwrites them."""
        self.rewards = np.zeros(count)
        self.is_terminal = np.zeros(count, np.bool_)
        arrays = (self._states, self._actions, self.observations, self.rewards, self.is_terminal)
        self._function = library[name]
        self._function.restype = ctypes.c_int64
        self._arguments = (ctypes.c_int64(count), *(ctypes.c_void_p(array.ctypes.data) for array in arrays))
        self._step_count = 0
        self._synced_at = [0] * count
        """The value of `_step_count` when each environment's own state was last equal to the one here."""

    def step(self, actions: Iterable[Any]) -> int:
        """Step all environments; return how many episodes terminated.

        Returns -1, and changes nothing, for actions of another type, or that the environments refuse.
        """
        values = np.asarray(actions)
        if values.dtype != self._actions.dtype or values.shape != self._actions.shape:
            return -1
        self._actions[...] = values
        terminated: int = self._function(*self._arguments)
        self._step_count += terminated >= 0
        return terminated

    def latest_rewards(self) -> Iterable[float]:
        """Return the rewards of the latest step, of the type that the environments give: it affects how Python sums."""
        return self.rewards if type(self._envs[0]) is PendulumEnv else self.rewards.tolist()

    def load(self, index: int) -> None:
        """Take over the state of an environment."""
        self._states[index] = self._envs[index].state
        self._synced_at[index] = self._step_count

    def write_back(self) -> Iterator[int]:
        """Give the environments their states; yield the index of each whose own state was out of date."""
        for index, synced_at in enumerate(self._synced_at):
            if synced_at != self._step_count:
                self.write_back_one(index)
                yield index

    def write_back_one(self, index: int) -> None:
        env = self._envs[index]
        env.state = self._states[index].copy()
        if type(env) is PendulumEnv:
            env.last_u = np.clip(self._actions[index], -env.max_torque, env.max_torque)[0]  # rendered as an arrow
        self._synced_at[index] = self._step_count


def find_compiled_step(envs: Sequence[Any]) -> CompiledStep | None:
    """Return the compiled step of these environments; None if they must step themselves."""
    kind: Any = type(envs[0])
    library = load_library() if kind in STEP_FUNCTIONS else None
    if library is None:
        return None
    defaults = _settings(kind())
    if not all(type(env) is kind and _settings(env) == defaults and env.render_mode != "human" for env in envs):
        return None
    return CompiledStep(library, envs) if _equals_own_step(kind) else None


@functools.cache
def load_library() -> ctypes.CDLL | None:
    try:
        # PyDLL keeps the interpreter's lock: releasing it would take longer than the step.
        return ctypes.PyDLL(str(LIBRARY))
    except OSError:
        return None


def _settings(env: Any) -> dict[str, Any]:
    """Return arguments and attributes that may change how the environment steps, and methods that were replaced."""
    return {
        name: value
        for name, value in vars(env).items()
        if name not in ("render_mode", "_np_random_seed")
        and (isinstance(value, (bool, int, float, str)) or callable(value))
    }


@functools.cache
def _equals_own_step(kind: type[Any]) -> bool:
    """Return whether the compiled step reproduces the environment's own.

    It does not if this version of Gymnasium or numpy computes differently, for example sines without libm.
    """
    library = load_library()
    assert library is not None
    reference, copy = kind(), kind()
    compiled = CompiledStep(library, [copy])
    reference.action_space.seed(0)
    is_over = True
    for step in range(CHECKED_STEPS):
        if is_over:
            for env in (reference, copy):
                env.reset(seed=step)
            compiled.load(0)
        action = reference.action_space.sample()
        observation, reward, is_over, _, _ = reference.step(action)
        compiled.step(np.asarray(action)[None])
        results = (compiled.observations[0].tobytes(), float(compiled.rewards[0]), bool(compiled.is_terminal[0]))
        if results != (observation.tobytes(), float(reward), is_over):
            return False
    list(compiled.write_back())
    return np.array(copy.state).tobytes() == np.array(reference.state, np.float64).tobytes()
