"""Policies with a memory are told when an episode begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanrl_worker.conv_network import ConvNetworkSizes
from mosaic.arena import evaluate
from mosaic.envs import make
from mosaic.run import Checkpoint


class Diary:
    """Pushes left, and writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def reset_state(self, row: int) -> None:
        self.told.append(("begins", row))

    def act(self, observations: np.ndarray, deterministic: bool, rng: np.random.Generator) -> np.ndarray:
        self.told.append("acts")
        return np.zeros(len(observations), int)

    def sample(self, observations: np.ndarray, rngs: Sequence[np.random.Generator]) -> np.ndarray:
        return self.act(observations, False, rngs[0])


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_arena_tells_of_every_beginning_before_the_first_action(deterministic: bool) -> None:
    diary = Diary()
    evaluate(diary, lambda: make("CartPole-v1"), [3, 5, 11], deterministic)  # the first and the last share a row
    began = [told for told in diary.told if told != "acts"]
    assert began == [("begins", 3), ("begins", 5), ("begins", 3)]
    assert diary.told[:3] == [("begins", 3), ("begins", 5), "acts"]
    assert diary.told.index(("begins", 3), 3) > 3


def test_a_memory_is_emptied_by_a_beginning_and_by_nothing_else() -> None:
    from cleanrl_worker.algorithms import ppo_atari_lstm

    agent = ppo_atari_lstm.Agent(6, ConvNetworkSizes((4, 4, 4), 8), 8)
    agent.initialise(np.random.default_rng(1))
    facts = {"algorithm": "ppo_atari_lstm", "first_action": 0}
    policy: Any = ppo_atari_lstm.load_policy(Checkpoint(Path("none"), 0, agent.state_dict(), {}, facts, {}))
    rng = np.random.default_rng(2)
    moving = rng.integers(0, 255, (2, 4, 84, 84), dtype=np.uint8)
    still = np.repeat(moving[:, :1], 4, 1)

    def remembered_after(pictures: Any) -> Any:
        policy.act(pictures, True, rng)
        return policy._state.clone()

    first = remembered_after(moving)
    again = remembered_after(moving)
    assert not (first == again).all()
    assert not (remembered_after(still) == remembered_after(still)).all(), "a game may stand still"
    policy.reset_state(0)
    anew = remembered_after(moving)
    assert (anew[:, 0] == first[:, 0]).all()
    assert not (anew[:, 1] == first[:, 1]).all()
