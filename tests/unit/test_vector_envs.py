from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit, TransformReward
from tests.helpers.algorithm_cases import Corridor, register_env

from cleanrl_worker.environments import action_record
from cleanrl_worker.environments.time_limits import strip_wrappers
from cleanrl_worker.environments.vector import EpisodeEnd, VectorEnvs
from mosaic.worker.envs.reproducible import random_state_to_json


def maker(env_id: str, **settings: Any) -> Callable[[], gymnasium.Env[Any, Any]]:
    return lambda: gymnasium.make(env_id, disable_env_checker=True, **settings)


def play(environments: VectorEnvs, actions: np.ndarray[Any, Any], into: np.ndarray[Any, Any]) -> list[EpisodeEnd]:
    """Run a rollout with these actions [steps, environments, …]."""
    episode_ends: list[EpisodeEnd] = []
    for t, row in enumerate(actions):
        episode_ends += environments.step(row, into[t])
    return episode_ends


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCar-v0", "FrozenLake-v1"])
def test_steps_equal_those_of_gymnasiums_vector_environment(env_id: str) -> None:
    theirs = SyncVectorEnv(
        [lambda: RecordEpisodeStatistics(gymnasium.make(env_id)) for _ in range(3)],
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    ours = VectorEnvs(maker(env_id), 3, seed=5)
    size = ours.observation_size
    row = np.zeros((3, size))
    first, _ = theirs.reset(seed=5)
    ours.start()
    ours.observe(row)
    flat = (lambda seen: np.eye(size)[seen]) if env_id == "FrozenLake-v1" else np.asarray
    np.testing.assert_allclose(row, flat(first))

    actions = np.random.default_rng(0).integers(ours.action_space.n, size=(450, 3))  # type: ignore[attr-defined]
    rewards, ended = [], 0
    for choice in actions:
        episode_ends = ours.step(choice.tolist(), row)
        seen, reward, terminal, truncated, info = theirs.step(choice)
        rewards.append(reward)
        np.testing.assert_array_equal(row, flat(seen))
        assert [episode_end.env for episode_end in episode_ends] == np.flatnonzero(terminal | truncated).tolist()
        for episode_end in episode_ends:
            episode = info["final_info"]["episode"]
            assert episode_end.episodic_return == pytest.approx(episode["r"][episode_end.env], abs=1e-4)
            assert episode_end.length == episode["l"][episode_end.env]
            assert episode_end.is_terminal == terminal[episode_end.env]
            np.testing.assert_array_equal(episode_end.observation, flat(info["final_obs"][episode_end.env]))
            ended += 1
    assert ended > 3
    np.testing.assert_allclose(ours.finish_rollout(actions), rewards)
    theirs.close()


def test_only_known_outer_wrappers_are_removed() -> None:
    env = gymnasium.make("CartPole-v1")
    assert strip_wrappers(env) == (env.unwrapped, 500)
    bare = env.unwrapped
    assert strip_wrappers(TimeLimit(TimeLimit(bare, 9), 5)) == (bare, 5)
    second = TransformReward(TimeLimit(bare, 9), lambda reward: 2 * float(reward))
    assert strip_wrappers(second) == (second, float("inf"))
    assert strip_wrappers(TimeLimit(second, 7)) == (second, 7)
    env.close()


@pytest.mark.parametrize(
    ("kind", "shown"),
    [("box", [0.5, 1.0]), ("image", [0.5] * 6), ("dict", [1.0, 0.0, 0.5]), ("number", [1.0, 0, 0, 0, 0])],
)
def test_observations_of_every_kind_become_rows(kind: str, shown: list[float]) -> None:
    env = Corridor(kind)
    environments = VectorEnvs(lambda: env, 1, seed=1)
    environments.start()
    env._position = 0.5
    environments._latest_observations = [env._observe()]
    row = np.zeros((1, environments.observation_size), np.float32)
    environments.observe(row)
    assert row[0].tolist() == shown


@pytest.mark.parametrize("rollouts", [1, 2, 6, 9])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_environments_are_restored_by_replaying_their_actions(env_id: str, rollouts: int) -> None:
    first, second = VectorEnvs(maker(env_id), 2, seed=3), VectorEnvs(maker(env_id), 2, seed=3)
    first.start()
    into = np.zeros((30, 2, first.observation_size))
    first.action_space.seed(1)
    for _ in range(rollouts):
        actions = np.array([[first.action_space.sample() for _ in range(2)] for _ in range(30)])
        play(first, actions, into)
        first.finish_rollout(actions)
    arrays, facts = first.checkpoint_state()

    assert second.restore(arrays, facts) == []
    again_arrays, again_facts = second.checkpoint_state()
    assert again_facts == facts
    assert all((again_arrays[key] == arrays[key]).all() for key in arrays)
    further = np.zeros_like(into)
    actions = np.array([[first.action_space.sample() for _ in range(2)] for _ in range(30)])
    ends, other_ends = play(first, actions, into), play(second, actions, further)
    assert (into == further).all()
    assert [(end.env, end.length, end.episodic_return) for end in ends] == [
        (end.env, end.length, end.episodic_return) for end in other_ends
    ]
    assert (first.finish_rollout(actions) == second.finish_rollout(actions)).all()


def test_recording_uses_no_randomness_and_changes_nothing() -> None:
    environments = VectorEnvs(maker("CartPole-v1"), 2, seed=3)
    environments.start()
    first, second = environments.checkpoint_state(), environments.checkpoint_state()
    assert first[1] == second[1]


def test_an_environment_that_is_not_deterministic_is_reset_and_named() -> None:
    with register_env(noise="foreign") as env_id:
        first, second = VectorEnvs(maker(env_id), 1, seed=3), VectorEnvs(maker(env_id), 1, seed=3)
        first.start()
        actions = np.zeros((3, 1), int)
        play(first, actions, np.zeros((3, 1, 2)))
        first.finish_rollout(actions)
        (problem,) = second.restore(*first.checkpoint_state())
        assert problem.startswith("environment 0: ")
        assert second.checkpoint_state()[1][0]["length"] == 0


def test_an_episode_beyond_the_recorded_length_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_record, "MAX_RECORDED_STEPS", 5)
    with register_env(limit=None) as env_id:
        first, second = VectorEnvs(maker(env_id), 1, seed=3), VectorEnvs(maker(env_id), 1, seed=3)
        first.start()
        actions = np.zeros((3, 1), int)
        for _ in range(3):
            play(first, actions, np.zeros((3, 1, 2)))
            first.finish_rollout(actions)
        (problem,) = second.restore(*first.checkpoint_state())
        assert "9 steps" in problem


def test_an_environment_without_a_generator_of_its_own_is_reset_and_named() -> None:
    class Foreign(Corridor):
        np_random = None  # type: ignore[assignment]

        def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
            return self._observe(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return self._observe(), 0.0, False, False, {}

    with register_env(limit=2, kind=Foreign) as env_id:
        first, second = VectorEnvs(maker(env_id), 1, seed=3), VectorEnvs(maker(env_id), 1, seed=3)
        first.start()
        actions = np.zeros((3, 1), int)
        play(first, actions, np.zeros((3, 1, 2)))
        first.finish_rollout(actions)
        (problem,) = second.restore(*first.checkpoint_state())
        assert "random generator" in problem


def test_the_states_of_all_generators_go_through_json() -> None:
    for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64):
        first, second = kind(1), kind(2)
        second.state = random_state_to_json(first.state)
        assert (np.random.Generator(first).random(9) == np.random.Generator(second).random(9)).all()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_advancing_gives_the_steps_rewards_and_keeps_the_same_record(
    env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action_record, "CHUNK_STEPS", 16)
    rolled, advanced, back = (VectorEnvs(maker(env_id), 2, seed=3) for _ in range(3))
    rolled.start()
    advanced.start()
    rolled.action_space.seed(1)
    into, rewards = np.zeros((2, 2, rolled.observation_size)), np.zeros(2)
    actions = np.array([[rolled.action_space.sample() for _ in range(2)] for _ in range(70)])
    observations = []
    for row in actions:
        ends = rolled.step(row, into[0])
        other_ends = advanced.advance(row, into[1], rewards)
        observations.append(rewards.copy())
        assert (into[0] == into[1]).all()
        assert [(end.env, end.length) for end in ends] == [(end.env, end.length) for end in other_ends]
        returns = [end.episodic_return for end in other_ends]
        assert [end.episodic_return for end in ends] == pytest.approx(returns)
    assert (rolled.finish_rollout(actions) == observations).all()
    arrays, facts = advanced.checkpoint_state()
    assert facts == [{**fact, "return": pytest.approx(fact["return"])} for fact in rolled.checkpoint_state()[1]]
    assert back.restore(arrays, facts) == []
    restored, again_facts = back.checkpoint_state()
    assert again_facts == facts
    assert all((restored[key] == arrays[key]).all() for key in arrays)
    back.advance(actions[0], into[0], rewards)
    advanced.advance(actions[0], into[1], rewards)
    assert (into[0] == into[1]).all()
