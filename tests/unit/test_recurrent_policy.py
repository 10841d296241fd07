"""Recurrent policies are reset when an episode starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanrl_worker.learners.conv_network import ConvNetworkSizes
from mosaic.worker.checkpoints import Checkpoint
from mosaic.worker.envs import make
from mosaic.worker.evaluation import evaluate


class RecordingPolicy:
    """Pushes left and records its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def reset_state(self, row: int) -> None:
        self.calls.append(("reset", row))

    def act(self, observations: np.ndarray, deterministic: bool, rng: np.random.Generator) -> np.ndarray:
        self.calls.append("act")
        return np.zeros(len(observations), int)

    def sample(self, observations: np.ndarray, rngs: Sequence[np.random.Generator]) -> np.ndarray:
        return self.act(observations, False, rngs[0])


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_arena_resets_the_state_before_the_first_action_of_each_episode(deterministic: bool) -> None:
    policy = RecordingPolicy()
    evaluate(policy, lambda: make("CartPole-v1"), [3, 5, 11], deterministic)  # the first and the last share a row
    starts = [call for call in policy.calls if call != "act"]
    assert starts == [("reset", 3), ("reset", 5), ("reset", 3)]
    assert policy.calls[:3] == [("reset", 3), ("reset", 5), "act"]
    assert policy.calls.index(("reset", 3), 3) > 3


def test_only_a_new_episode_resets_the_state() -> None:
    from cleanrl_worker.algorithms import ppo_atari_lstm

    agent = ppo_atari_lstm.Agent(6, ConvNetworkSizes((4, 4, 4), (8,)), 8)
    agent.initialize(np.random.default_rng(1))
    facts = {"algorithm": "ppo_atari_lstm", "first_action": 0, "config": {"hidden_sizes": [8]}}
    policy: Any = ppo_atari_lstm.load_policy(Checkpoint(Path("none"), 0, agent.state_dict(), {}, facts, {}))
    rng = np.random.default_rng(2)
    moving = rng.integers(0, 255, (2, 4, 84, 84), dtype=np.uint8)
    still = np.repeat(moving[:, :1], 4, 1)

    def state_after(images: Any) -> Any:
        policy.act(images, True, rng)
        return policy._state.clone()

    first = state_after(moving)
    restored = state_after(moving)
    assert not (first == restored).all()
    assert not (state_after(still) == state_after(still)).all(), "the state changes even for a constant image"
    policy.reset_state(0)
    restarted = state_after(moving)
    assert (restarted[:, 0] == first[:, 0]).all()
    assert not (restarted[:, 1] == first[:, 1]).all()
