"""Several Atari games at once. Needs the Atari extra."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("ale_py")

from cleanrl_worker.environments.atari import AtariEnvs, check_atari_env, make_evaluation_env
from cleanrl_worker.environments.vector import EpisodeEnd
from mosaic.contracts.errors import BadInput
from mosaic.worker.envs import make

BREAKOUT = "BreakoutNoFrameskip-v4"
StepRecord = tuple[list[float], list[tuple[Any, ...]], bytes]


def play(games: AtariEnvs, steps: int, rng: np.random.Generator) -> tuple[list[StepRecord], list[EpisodeEnd]]:
    observations = np.zeros((len(games), *games.shape), np.uint8)
    rewards = np.zeros(len(games))
    steps_taken: list[StepRecord] = []
    ended: list[EpisodeEnd] = []
    for _ in range(steps):
        episode_ends = games.advance(rng.integers(4, size=len(games)), observations, rewards)
        ended += episode_ends
        steps_taken.append((rewards.tolist(), [(*end[:1], *end[2:]) for end in episode_ends], observations.tobytes()))
    return steps_taken, ended


def test_only_the_end_of_a_game_is_an_episode_and_its_score_counts_all_lives() -> None:
    games = AtariEnvs(BREAKOUT, 1, seed=1)
    games.start()
    steps_taken, ended = play(games, 900, np.random.default_rng(0))
    games.close()
    finished = [end for end in ended if end.is_full_episode]
    lives = [end for end in ended if not end.is_full_episode]
    assert len(finished) >= 2
    assert len(lives) >= 4 * len(finished)
    assert all(end.is_terminal for end in ended)
    # A brick of Breakout's lowest rows is one point, clipped or not.
    scores, earned = [], 0.0
    for rewards, episode_ends, _ in steps_taken:
        earned += rewards[0]
        if episode_ends and episode_ends[0][-1]:
            scores.append(earned)
            earned = 0.0
    assert [end.episodic_return for end in finished] == scores
    assert max(scores) > 0
    assert finished[0].length > 4 * 100
    assert finished[0].observation.shape == (4, 84, 84)


def test_games_resume_exactly_from_a_checkpoint() -> None:
    games = AtariEnvs(BREAKOUT, 2, seed=1)
    games.start()
    rng = np.random.default_rng(0)
    play(games, 333, rng)
    arrays, facts = games.checkpoint_state()
    previous = rng.bit_generator.state
    uninterrupted, _ = play(games, 400, rng)

    restored = AtariEnvs(BREAKOUT, 2, seed=5)
    assert restored.restore(arrays, facts) == []
    rng.bit_generator.state = previous
    assert play(restored, 400, rng)[0] == uninterrupted
    assert any(episode_ends and episode_ends[0][-1] for _, episode_ends, _ in uninterrupted), (
        "a game should have ended meanwhile"
    )
    assert restored.checkpoint_state()[1] == games.checkpoint_state()[1]
    for each in (games, restored):
        each.close()


def test_a_snapshot_that_cannot_be_read_is_reported_and_the_game_starts_again() -> None:
    games = AtariEnvs(BREAKOUT, 1, seed=1)
    games.start()
    arrays, facts = games.checkpoint_state()
    arrays["env.0.emulator"] = arrays["env.0.emulator"][:10]
    assert "environment 0: the emulator cannot read its snapshot" in games.restore(arrays, facts)[0]
    play(games, 5, np.random.default_rng(0))
    games.close()


def test_the_newest_image_can_be_used_instead_of_the_stack() -> None:
    four, first = AtariEnvs(BREAKOUT, 1, seed=1), AtariEnvs(BREAKOUT, 1, seed=1, stack=1)
    observations = {games.shape: np.zeros((1, *games.shape), np.uint8) for games in (four, first)}
    for games in (four, first):
        games.start()
        games.step([2], observations[games.shape])
        games.close()
    assert (observations[first.shape][:, 0] == observations[four.shape][:, -1]).all()


def test_progress_counts_game_steps() -> None:
    games = AtariEnvs(BREAKOUT, 1, seed=1)
    games.start()
    _, ended = play(games, 300, np.random.default_rng(0))
    assert len(ended) > 1
    game = games._unwrapped_envs[0]
    assert games._episode_progress(0) == (game.frame_count, game.score)
    assert games._episode_numbers[0] == 1 + sum(end.is_full_episode for end in ended)
    games.close()


def test_what_is_not_a_game_is_refused_with_what_fits() -> None:
    cartpole = gymnasium.make("CartPole-v1")
    with pytest.raises(BadInput, match=r"ppo_atari needs an Atari game; CartPole-v1 is not one. These fit: ppo, dqn"):
        check_atari_env("ppo_atari", cartpole)
    game = make(BREAKOUT)
    assert check_atari_env("ppo_atari", game) == 4
    game.close()


def test_an_evaluations_game_is_a_whole_one() -> None:
    game = make_evaluation_env(BREAKOUT, render_mode="rgb_array")
    observation, _ = game.reset(seed=1)
    assert observation.shape == (4, 84, 84)
    assert game.render().shape == (210, 160, 3)
    rng = np.random.default_rng(0)
    total, is_over = 0.0, False
    while not is_over:
        _, reward, is_terminal, is_truncated, _ = game.step(int(rng.integers(4)))
        total += reward
        is_over = is_terminal or is_truncated
    assert game.is_game_over
    assert total == game.score
    game.close()


def test_viewers_see_the_screen_with_unclipped_score_and_length() -> None:
    shown: list[tuple[int, int, float, float]] = []

    class Tap:
        lane = SimpleNamespace(is_watched=True)

        def __init__(self, env: Any) -> None:
            self._env = env

        def is_due(self) -> bool:
            return True

        def publish_frame(self, episode: int, length: int, reward: float, earned: float) -> None:
            assert self._env.render().shape == (210, 160, 3)
            shown.append((episode, length, reward, earned))

        def close(self) -> None:
            shown.append((0, 0, 0.0, 0.0))

    class FakeLiveFrames:
        camera = None
        recorder = None

        def tap_all(self, envs: Any) -> list[Tap]:
            return [Tap(env) for env in envs]

    watcher: Any = FakeLiveFrames()
    games = AtariEnvs(BREAKOUT, 1, seed=1, frames=watcher)
    games.start()
    _, ended = play(games, 120, np.random.default_rng(0))
    games.close()
    assert len(shown) > 2
    assert len(ended) > 2
    assert shown[-1] == (0, 0, 0.0, 0.0)
    assert max(episode for episode, *_ in shown) <= 1 + sum(end.is_full_episode for end in ended)
    assert all(length >= 4 for _, length, _, _ in shown[:-1])
