"""Makes an episode a function of its environment's random state before the reset, and of its actions.

So training resumes exactly, an evaluation's episode depends on its seed alone, and a recorded episode can be replayed.
Nearly all environments have one random generator and carry nothing else from one episode to the next; what the others
need is here.
"""

from __future__ import annotations

import base64
import random
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import seeding

Env = gymnasium.Env[Any, Any]
EMULATOR_KEY = "emulator"
HASH_INTERVAL = 16
"""Steps between two observations whose hashes are recorded; those of an episode's start and end are, too."""


class NewWorldAtReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    """For BipedalWalker, which empties its Box2D world for the next episode instead of creating another one."""

    def reset(self, **options: Any) -> Any:
        import Box2D  # type: ignore[import-untyped]

        core: Any = self.unwrapped
        core._destroy()
        core.world = Box2D.b2World()
        return self.env.reset(**options)


def make_reproducible(env: Env) -> Env:
    """Wrap an environment whose episodes depend on earlier ones."""
    return NewWorldAtReset(env) if type(env.unwrapped).__name__ == "BipedalWalker" else env


def random_state(core: Any) -> dict[str, Any] | None:
    """Return the random state of an unwrapped environment as JSON values; None if it has no generator of its own.

    Sticky actions of Atari games are drawn by the emulator, so its state is a part of theirs.
    """
    generator = getattr(core, "np_random", None)
    if not isinstance(generator, np.random.Generator):
        return None
    state: dict[str, Any] = random_state_to_json(generator.bit_generator.state)
    emulator = getattr(core, "ale", None)
    if emulator is not None and emulator.getFloat("repeat_action_probability") > 0:
        state[EMULATOR_KEY] = base64.b64encode(emulator.cloneState(include_rng=True).serialize()).decode()
    return state


def restore_random_state(core: Any, state: Mapping[str, Any] | None) -> None:
    """Restore what `random_state` returned; the environment must have been reset once, and is reset afterwards."""
    generator = getattr(core, "np_random", None)
    if not isinstance(generator, np.random.Generator) or state is None:
        return
    generator.bit_generator.state = {key: value for key, value in state.items() if key != EMULATOR_KEY}
    if EMULATOR_KEY in state:
        import ale_py

        core.ale.restoreState(ale_py.ALEState(base64.b64decode(state[EMULATOR_KEY])))


@contextmanager
def seeded_construction(env_id: str) -> Iterator[None]:
    """Make what a constructor draws at random, such as a map, the same each time.

    So all environments of a training have the same map, and its resumes, evaluations and replays, too.
    """
    seed = zlib.crc32(env_id.encode())
    states, make_generator = (random.getstate(), np.random.get_state()), seeding.np_random

    def make_seeded(given: int | None = None) -> Any:
        return make_generator(seed if given is None else given)

    random.seed(seed)
    np.random.seed(seed)
    seeding.np_random = make_seeded  # type: ignore[assignment]
    try:
        yield
    finally:
        seeding.np_random = make_generator
        random.setstate(states[0])
        np.random.set_state(states[1])


def hash_observation(observation: Any, start: int = 0) -> int:
    """Return a hash of 32 bits of the exact bytes of an observation, its types and shapes; `start` is one before it."""
    if type(observation) is np.ndarray and not observation.dtype.hasobject:  # nearly all
        start = zlib.crc32(repr((observation.dtype.str, observation.shape)).encode(), start)
        return zlib.crc32(observation.tobytes(), start)
    if isinstance(observation, Mapping):
        for key in sorted(observation, key=str):
            start = hash_observation(observation[key], zlib.crc32(str(key).encode(), start))
        return zlib.crc32(b"}", start)
    if isinstance(observation, (tuple, list)):
        for part in observation:
            start = hash_observation(part, start)
        return zlib.crc32(b")", start)
    if isinstance(observation, (str, bytes, int, float, complex)) or observation is None:
        return zlib.crc32(repr(observation).encode(), start)
    array = np.asarray(observation)
    if array.dtype.hasobject:  # its bytes are addresses
        return hash_observation(type(observation).__name__ if array.shape == () else array.tolist(), start)
    return hash_observation(array, start)


def random_state_to_json(state: Any) -> Any:
    """Return a random generator's state with arrays as lists, for JSON. Numpy accepts it in this form."""
    if isinstance(state, dict):
        return {key: random_state_to_json(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, (np.ndarray, np.generic)) else state
