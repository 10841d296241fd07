"""Atari games with the preprocessing of the literature. Needs the Atari extra."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mosaic.contracts.errors import BadInput

pytest.importorskip("ale_py")

from mosaic.worker.envs.atari import AtariEnv

BREAKOUT = "BreakoutNoFrameskip-v4"


def play(game: AtariEnv, steps: int, seed: int = 0) -> list[tuple[float, bool, bool, float, int]]:
    rng = np.random.default_rng(seed)
    results = []
    for _ in range(steps):
        _, reward, is_terminal, is_truncated, _ = game.step(int(rng.integers(4)))
        results.append((reward, is_terminal, is_truncated, game.score, game.frame_count))
        if is_terminal or is_truncated:
            game.reset()
    return results


def test_an_observation_is_a_stack_of_four_grayscale_frames() -> None:
    game = AtariEnv(BREAKOUT, terminal_on_life_loss=True, clip_rewards=True)
    first, _ = game.reset(seed=1)
    assert game.observation_space.contains(first)
    second = game.step(2)[0]
    assert (second[:3] == first[1:]).all()
    assert (second[3] != first[3]).any()
    game.close()


def test_a_lost_life_ends_the_episode_but_not_the_game() -> None:
    game = AtariEnv(BREAKOUT, terminal_on_life_loss=True, clip_rewards=True)
    game.reset(seed=1)
    ends = []
    for reward, is_terminal, _, score, frames in play(game, 1200):
        assert reward in (-1.0, 0.0, 1.0)
        if is_terminal:
            ends.append((score, frames))
    game.close()
    assert len(ends) > 5
    # Five lives: the score grows over each of them and starts again with the next game.
    lengths = [frames for _, frames in ends]
    assert any(later < earlier for earlier, later in itertools.pairwise(lengths))
    assert any(later > earlier for earlier, later in itertools.pairwise(lengths))


def test_without_terminal_on_life_loss_an_episode_is_a_whole_game() -> None:
    game = AtariEnv(BREAKOUT, terminal_on_life_loss=False, clip_rewards=False)
    game.reset(seed=1)
    total = 0.0
    rng = np.random.default_rng(0)
    while True:
        _, reward, is_terminal, is_truncated, _ = game.step(int(rng.integers(4)))
        total += reward
        if is_terminal or is_truncated:
            break
    assert game.is_game_over
    assert game.score == total
    game.close()


def test_the_same_seed_plays_the_same_game() -> None:
    games = [AtariEnv(BREAKOUT, terminal_on_life_loss=True, clip_rewards=True) for _ in range(2)]
    for game in games:
        game.reset(seed=7)
    assert play(games[0], 300) == play(games[1], 300)
    for game in games:
        game.close()


def test_a_game_is_restored_from_its_snapshot_exactly() -> None:
    game, other = (AtariEnv(BREAKOUT, terminal_on_life_loss=True, clip_rewards=True) for _ in range(2))
    game.reset(seed=3)
    play(game, 150)
    arrays, facts = game.snapshot()
    generator = game.np_random.bit_generator.state
    expected = play(game, 300, seed=9)
    other.reset(seed=99)
    other.restore(arrays, facts)
    other.np_random.bit_generator.state = generator
    assert play(other, 300, seed=9) == expected
    for each in (game, other):
        each.close()


def test_an_id_that_is_not_an_atari_game_is_rejected() -> None:
    with pytest.raises(BadInput, match="not an Atari game"):
        AtariEnv("CartPole-v1", terminal_on_life_loss=True, clip_rewards=True)
