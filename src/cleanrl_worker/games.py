"""Several Atari games played one after the other, for learning.

A lost life ends what the agent learns from, but nobody would call it an episode: that is the game, with its own score
and its length in frames. Games come back from snapshots of the emulator, not by playing their actions again.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.algorithms import base
from cleanrl_worker.vector import Ending, Environments, plain, random_state, restore_random_state
from mosaic.contracts.errors import BadInput
from mosaic.envs.atari import SIDE, STACK, AtariGame
from mosaic.envs.factory import family_of
from mosaic.run.frames import Frames

Array = npt.NDArray[Any]
FAMILY = "atari"


def make_game(env_id: str, render_mode: str | None = None) -> AtariGame:
    """A game as people count it: all lives, all points. Evaluations play these."""
    return AtariGame(env_id, ends_with_life=False, clips_rewards=False, render_mode=render_mode)


def make_lesson(env_id: str, render_mode: str | None = None) -> AtariGame:
    """A game as agents learn from it: an episode is a life, and of a reward only the sign counts."""
    return AtariGame(env_id, ends_with_life=True, clips_rewards=True, render_mode=render_mode)


def check_game(algorithm: str, env: gymnasium.Env[Any, Any]) -> int:
    """Refuses what is no Atari game, and a machine that cannot play one; the number of actions."""
    if family_of(env) != FAMILY:
        raise BadInput(f"{algorithm} needs an Atari game; {base.name_of(env)} is none. {base.advice_for(env)}")
    assert env.spec is not None
    make_game(env.spec.id).close()
    actions: Any = env.action_space
    return int(actions.n)


class Games(Environments):
    """`count` games. Observations are the newest `stack` pictures, oldest first: bytes [stack, 84, 84]."""

    def __init__(self, env_id: str, count: int, seed: int, frames: Frames | None = None, stack: int = STACK) -> None:
        super().__init__(functools.partial(make_lesson, env_id, "rgb_array"), count, seed, frames)
        self.shape = (stack, SIDE, SIDE)
        self._flatten = None if stack == STACK else lambda pictures: pictures[-stack:]

    def _end(self, index: int, observation: Any, is_terminal: bool) -> Ending:
        game: AtariGame = self._cores[index]
        last = np.array(self._flattened(observation))
        ending = Ending(index, last, is_terminal, game.score, game.frames, game.is_over)
        self._reset(index)
        return ending

    def _reset(self, index: int, seed: int | None = None) -> None:
        is_next_life = seed is None and not self._cores[index].is_over
        super()._reset(index, seed)
        self._episodes[index] -= is_next_life

    def _progress(self, index: int) -> tuple[int, float]:
        return self._cores[index].frames, self._cores[index].score

    # --- resuming

    def record(self) -> tuple[dict[str, Array], list[dict[str, Any]]]:
        self._put_to_record()
        arrays: dict[str, Array] = {}
        facts = []
        for index, game in enumerate(self._cores):
            parts, fact = game.snapshot()
            arrays |= {f"env.{index}.{name}": np.array(part) for name, part in parts.items()}
            facts.append({**fact, "now": plain(random_state(game)), "episode": self._episodes[index]})
        return arrays, facts

    def restore(self, arrays: Mapping[str, Array], facts: Sequence[Mapping[str, Any]]) -> list[str]:
        problems = []
        for index, fact in enumerate(facts):
            game: AtariGame = self._cores[index]
            self._reset(index, self.seed + index)
            try:
                game.restore(base.named_under(f"env.{index}.", arrays), dict(fact))
            except (RuntimeError, SystemError) as error:  # as the emulator refuses what another version of it wrote
                problems.append(f"environment {index}: the emulator cannot read its snapshot ({error})")
                self._reset(index, self.seed + index)
                continue
            restore_random_state(game, fact["now"])
            self._latest[index] = arrays[f"env.{index}.pictures"]
            self._episodes[index] = fact["episode"]
        return problems
