"""envpool's games, with a fake envpool that ends, resets and counts in the same way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.helpers import fake_envpool
from tests.helpers.fake_envpool import LIVES, MAX_STEPS, POINTS, FakeGame, FakePool

from cleanrl_worker.environments.envpool_games import (
    EnvpoolEnvs,
    EnvpoolGame,
    EnvpoolTask,
    check_envpool_env,
    find_task,
    make_envpool_env,
)
from cleanrl_worker.environments.vector import EpisodeEnd
from mosaic.contracts.errors import BadInput, MissingExtra, UnknownName

TASK = EnvpoolTask("Breakout-v5", 0.0)


@pytest.fixture(autouse=True)
def pools() -> Iterator[list[FakePool]]:
    with fake_envpool.fake_envpool() as result:
        yield result


def play(games: EnvpoolEnvs, steps: int, action: int = 1) -> tuple[list[tuple[int, EpisodeEnd]], Any, Any]:
    observations = np.zeros((steps, len(games), *games.shape), np.uint8)
    ended = []
    for step in range(steps):
        ended += [(step, episode_end) for episode_end in games.step(np.full(len(games), action), observations[step])]
    return ended, observations, games.finish_rollout(np.full((steps, len(games)), action))


def test_gymnasium_ids_are_translated_with_their_sticky_actions() -> None:
    assert find_task("Breakout-v5", 0.1) == EnvpoolTask("Breakout-v5", 0.1)
    assert find_task("ALE/Breakout-v5", 0.0) == EnvpoolTask("Breakout-v5", 0.25)
    assert find_task("PongNoFrameskip-v4", 0.25) == EnvpoolTask("Pong-v5", 0.0)
    with pytest.raises(UnknownName, match=r"No game 'Breakot-v5' in envpool. Did you mean 'Breakout-v5'\?"):
        find_task("Breakot-v5", 0.0)
    for second in ("Ant-v5", "Breakout-v4", "CartPole-v1", "Tennis-v5"):
        with pytest.raises(UnknownName):
            find_task(second, 0.0)


def test_without_envpool_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:  # undone before the fake is removed, or the fake would come back
        without.setitem(sys.modules, "envpool", None)
        with pytest.raises(MissingExtra, match=r"envpool, which is missing: pip install 'mosaic-rl\[envpool\]'"):
            make_envpool_env("Breakout-v5")
        # An environment that cannot fit is refused even without envpool.
        with pytest.raises(BadInput, match="ppo_rnd_envpool needs an Atari game; CartPole-v1 is not one"):
            check_envpool_env("ppo_rnd_envpool", make_envpool_env("CartPole-v1"))


def test_another_kind_of_environment_is_refused_with_what_fits_it() -> None:
    with pytest.raises(
        BadInput, match=r"pqn_atari_envpool needs an Atari game; CartPole-v1 is not one. These fit: ppo"
    ):
        check_envpool_env("pqn_atari_envpool", make_envpool_env("CartPole-v1"))
    with pytest.raises(UnknownName, match="No game 'Nothing-v5' in envpool"):
        make_envpool_env("Nothing-v5")
    assert check_envpool_env("pqn_atari_envpool", make_envpool_env("Breakout-v5")) == 4


def test_a_lost_life_is_not_an_episode_and_the_score_counts_all_lives_unclipped(pools: list[FakePool]) -> None:
    games = EnvpoolEnvs(TASK, 2, 1, 1)
    games.start()
    ended, observations, rewards = play(games, 60)
    assert set(rewards.ravel()) == {1.0}
    for env in range(2):
        steps = [step for step, episode_end in ended if episode_end.env == env]
        episode_ends = [episode_end for _, episode_end in ended if episode_end.env == env]
        assert [episode_end.is_full_episode for episode_end in episode_ends[:4]] == [False, True, False, True]
        assert all(episode_end.is_terminal for episode_end in episode_ends)
        assert (episode_ends[1].length, episode_ends[1].episodic_return) == (steps[1] + 1, (steps[1] + 1) * POINTS)
        length = steps[3] - steps[1]
        assert (episode_ends[3].length, episode_ends[3].episodic_return) == (length, length * POINTS)
        # The next observation is the start of the next life; only the episode end has the final observation.
        assert not (observations[steps[0], env] == episode_ends[0].observation).all()
        assert (observations[steps[0], env, :3] == episode_ends[0].observation[1:]).all(), (
            "the next life continues with the same frames"
        )
        assert (observations[steps[1], env] == observations[steps[1], env, :1]).all(), (
            "a new game starts with one repeated frame"
        )
    # Every action was executed: the step that resets a game is done for that game alone.
    assert [len(game.actions) for game in pools[-1].games] == [60, 60]
    assert {action for game in pools[-1].games for action in game.actions} == {1}
    games.close()


def test_a_game_that_is_truncated_is_not_terminal_and_its_last_images_are_known(
    pools: list[FakePool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_envpool, "MIN_LIFE_STEPS", 10**6)
    games = EnvpoolEnvs(TASK, 1, 1, 1)
    games.start()
    ended, observations, _ = play(games, MAX_STEPS + 5)
    ((step, episode_end),) = ended
    assert step == MAX_STEPS - 1
    assert (episode_end.is_terminal, episode_end.is_full_episode, episode_end.length) == (False, True, MAX_STEPS)
    assert (episode_end.observation[:3] == observations[step - 1, 0, 1:]).all()
    assert pools[-1].games[0].steps == 5


def test_a_game_that_is_lost_in_its_last_step_is_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_envpool, "MIN_LIFE_STEPS", MAX_STEPS)
    monkeypatch.setattr(fake_envpool, "LIVES", 1)
    monkeypatch.setattr(FakeGame, "begin", _always_the_same_length(FakeGame.begin))
    games = EnvpoolEnvs(TASK, 1, 1, 1)
    games.start()
    ((_, episode_end),), _, _ = play(games, MAX_STEPS)
    assert (episode_end.is_terminal, episode_end.is_full_episode) == (True, True)


def _always_the_same_length(begin: Any) -> Any:
    def begin_game(game: FakeGame, is_forced: bool) -> None:
        begin(game, is_forced)
        game._life = MAX_STEPS

    return begin_game


def test_a_game_that_ends_in_its_idle_frames_is_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = FakeGame.begin

    def begin_and_lose(game: FakeGame, is_forced: bool) -> None:
        begin(game, is_forced=True)  # whatever remained of it, a new game has started

    monkeypatch.setattr(FakeGame, "begin", begin_and_lose)
    games = EnvpoolEnvs(TASK, 1, 1, 1)
    games.start()
    ended, _, _ = play(games, 20)
    assert all(episode_end.is_full_episode and episode_end.is_terminal for _, episode_end in ended)
    assert sum(episode_end.length for _, episode_end in ended) == ended[-1][0] + 1


def test_games_start_again_after_a_resume_by_seeds_that_follow_from_the_step(pools: list[FakePool]) -> None:
    games = EnvpoolEnvs(TASK, 2, 1, 1)
    games.start()
    play(games, 40)
    arrays, facts = games.checkpoint_state()

    def resume_games(facts: Any, seed: int = 1) -> Any:
        restored = EnvpoolEnvs(TASK, 2, seed, 1)
        assert restored.restore(arrays, facts) == [
            "envpool cannot restore games, so all 2 of them started again with new seeds"
        ]
        first = np.zeros((2, *restored.shape), np.uint8)
        restored.observe(first)
        return first.tobytes(), play(restored, 20)[1].tobytes(), restored.checkpoint_state()[1]

    first, observations, after = resume_games(facts)
    assert (first, observations, after) == resume_games(facts)
    assert first != resume_games(facts, seed=2)[0]
    assert first != resume_games([{**fact, "clock": 41} for fact in facts])[0]
    assert after[0]["clock"] == 60
    assert after[0]["episode"] > facts[0]["episode"] > 1
    assert isinstance(pools[-1], FakePool)


def test_an_evaluations_game_is_a_whole_one_and_follows_from_its_seed() -> None:
    def play_game(seed: int) -> tuple[float, int, bytes]:
        game = EnvpoolGame("Breakout-v5", render_mode="rgb_array")
        assert game.render().shape == (210, 160, 3)
        images, _ = game.reset(seed=seed)
        observations, total, length = images.tobytes(), 0.0, 0
        is_over = False
        while not is_over:
            images, reward, is_terminal, is_truncated, _ = game.step(1)
            observations, total, length = observations + images.tobytes(), total + reward, length + 1
            is_over = is_terminal or is_truncated
        game.render()
        game.close()
        return total, length, observations

    total, length, observations = play_game(5)
    assert total == length * POINTS
    assert length >= LIVES * fake_envpool.MIN_LIFE_STEPS
    assert (total, length, observations) == play_game(5)
    assert observations != play_game(6)[2]
    assert play_game(2**40)[1] > 0, "seeds of evaluations may be larger than envpool takes"


def test_viewers_see_each_game_with_its_own_score(pools: list[FakePool]) -> None:
    shown: list[tuple[int, int, int, float]] = []

    class Tap:
        lane = SimpleNamespace(is_watched=True)

        def __init__(self, env: Any, index: int) -> None:
            self._env, self._index = env, index

        def is_due(self) -> bool:
            return True

        def publish_frame(self, episode: int, length: int, reward: float, earned: float) -> None:
            assert (self._env.render()[:, :, 0] == pools[-1].games[self._index].frames[-1]).all()
            shown.append((self._index, episode, length, earned))

        def close(self) -> None:
            shown.append((self._index, 0, 0, 0.0))

    watcher: Any = SimpleNamespace(
        camera=None, recorder=None, tap_all=lambda envs: [Tap(env, at) for at, env in enumerate(envs)]
    )
    games = EnvpoolEnvs(TASK, 2, 1, 1, watcher)
    games.start()
    play(games, 50)
    games.close()
    assert {index for index, *_ in shown} == {0, 1}
    assert max(episode for _, episode, _, _ in shown) > 1
    assert all(earned == length * POINTS for _, _, length, earned in shown)


def test_whole_games_of_the_first_environment_are_recorded_as_videos(pools: list[FakePool]) -> None:
    calls: list[tuple[str, int]] = []

    class Camera:
        def start_episode(self, number: int, env: Any) -> bool:
            calls.append(("begin", number))
            return number == 1

        def capture_frame(self, number: int) -> None:
            calls.append(("shoot", pools[-1].games[0].steps))

        def finish_episode(self, number: int, episodic_return: float, length: int) -> None:
            calls.append(("finish", length))
            assert episodic_return == length * POINTS

    games = EnvpoolEnvs(TASK, 2, 1, 1, frames=_frames_with_camera(Camera()))
    games.start()
    play(games, 60)
    assert calls[:2] == [("begin", 0), ("begin", 1)]
    (length,) = [value for kind, value in calls if kind == "finish"]
    shots = [value for kind, value in calls if kind == "shoot"]
    assert shots[0] == 1
    assert shots[-1] == length, "the video has the end, but not the start of the next game"


def _frames_with_camera(camera: Any) -> Any:
    return SimpleNamespace(camera=camera, recorder=None, tap_all=lambda envs: [])


def test_the_spaces_are_those_of_the_images() -> None:
    game = EnvpoolGame("Breakout-v5")
    assert isinstance(game.observation_space, gymnasium.spaces.Box)
    assert game.observation_space.shape == (4, 84, 84)
    assert game.spec is not None
    assert (game.spec.id, game.spec.max_episode_steps) == ("Breakout-v5", 27_000)
