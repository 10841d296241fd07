"""Makes an episode a function of its environment's random state before the reset, and of its actions.

So training resumes exactly, an evaluation's episode depends on its seed alone, and a recorded episode can be replayed.
Nearly all environments have one random generator and carry nothing else from one episode to the next; what the others
need is here.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

Env = gymnasium.Env[Any, Any]
EMULATOR_KEY = "emulator"


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


def random_state_to_json(state: Any) -> Any:
    """Return a random generator's state with arrays as lists, for JSON. Numpy accepts it in this form."""
    if isinstance(state, dict):
        return {key: random_state_to_json(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, (np.ndarray, np.generic)) else state
