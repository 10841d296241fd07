from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit, TransformReward
from tests.helpers.algorithm_cases import Corridor, registered

from cleanrl_worker import vector_envs
from cleanrl_worker.vector_envs import EpisodeEnd, VectorEnvs


def maker(env_id: str, **settings: Any) -> Callable[[], gymnasium.Env[Any, Any]]:
    return lambda: gymnasium.make(env_id, disable_env_checker=True, **settings)


def play(environments: VectorEnvs, actions: np.ndarray[Any, Any], into: np.ndarray[Any, Any]) -> list[EpisodeEnd]:
    """One rollout of these actions [steps, environments, …]."""
    endings: list[EpisodeEnd] = []
    for t, row in enumerate(actions):
        endings += environments.step(row, into[t])
    return endings


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCar-v0", "FrozenLake-v1"])
def test_it_plays_as_gymnasiums_vector_environment_does(env_id: str) -> None:
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
        endings = ours.step(choice.tolist(), row)
        seen, reward, terminal, truncated, info = theirs.step(choice)
        rewards.append(reward)
        np.testing.assert_array_equal(row, flat(seen))
        assert [ending.env for ending in endings] == np.flatnonzero(terminal | truncated).tolist()
        for ending in endings:
            episode = info["final_info"]["episode"]
            assert ending.episodic_return == pytest.approx(episode["r"][ending.env], abs=1e-4)
            assert ending.length == episode["l"][ending.env]
            assert ending.is_terminal == terminal[ending.env]
            np.testing.assert_array_equal(ending.observation, flat(info["final_obs"][ending.env]))
            ended += 1
    assert ended > 3
    np.testing.assert_allclose(ours.finish_rollout(actions), rewards)
    theirs.close()


def test_only_known_wrappers_outside_of_any_other_come_off() -> None:
    env = gymnasium.make("CartPole-v1")
    assert vector_envs.strip_wrappers(env) == (env.unwrapped, 500)
    bare = env.unwrapped
    assert vector_envs.strip_wrappers(TimeLimit(TimeLimit(bare, 9), 5)) == (bare, 5)
    other = TransformReward(TimeLimit(bare, 9), lambda reward: 2 * float(reward))
    assert vector_envs.strip_wrappers(other) == (other, float("inf"))
    assert vector_envs.strip_wrappers(TimeLimit(other, 7)) == (other, 7)
    env.close()


@pytest.mark.parametrize(
    ("kind", "shown"),
    [("box", [0.5, 1.0]), ("picture", [0.5] * 6), ("dict", [1.0, 0.0, 0.5]), ("number", [1.0, 0, 0, 0, 0])],
)
def test_observations_of_every_kind_become_rows(kind: str, shown: list[float]) -> None:
    env = Corridor(kind)
    environments = VectorEnvs(lambda: env, 1, seed=1)
    environments.start()
    env._place = 0.5
    environments._latest_observations = [env._observe()]
    row = np.zeros((1, environments.observation_size), np.float32)
    environments.observe(row)
    assert row[0].tolist() == shown


@pytest.mark.parametrize("rollouts", [1, 2, 6, 9])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_environments_come_back_by_playing_their_actions_again(env_id: str, rollouts: int) -> None:
    one, other = VectorEnvs(maker(env_id), 2, seed=3), VectorEnvs(maker(env_id), 2, seed=3)
    one.start()
    into = np.zeros((30, 2, one.observation_size))
    one.action_space.seed(1)
    for _ in range(rollouts):
        actions = np.array([[one.action_space.sample() for _ in range(2)] for _ in range(30)])
        play(one, actions, into)
        one.finish_rollout(actions)
    arrays, facts = one.checkpoint_state()

    assert other.restore(arrays, facts) == []
    again_arrays, again_facts = other.checkpoint_state()
    assert again_facts == facts
    assert all((again_arrays[key] == arrays[key]).all() for key in arrays)
    further = np.zeros_like(into)
    actions = np.array([[one.action_space.sample() for _ in range(2)] for _ in range(30)])
    ends, other_ends = play(one, actions, into), play(other, actions, further)
    assert (into == further).all()
    assert [(end.env, end.length, end.episodic_return) for end in ends] == [
        (end.env, end.length, end.episodic_return) for end in other_ends
    ]
    assert (one.finish_rollout(actions) == other.finish_rollout(actions)).all()


def test_recording_uses_no_randomness_and_changes_nothing() -> None:
    environments = VectorEnvs(maker("CartPole-v1"), 2, seed=3)
    environments.start()
    first, second = environments.checkpoint_state(), environments.checkpoint_state()
    assert first[1] == second[1]


def test_an_environment_that_is_not_deterministic_is_reset_and_named() -> None:
    with registered(noise="foreign") as env_id:
        one, other = VectorEnvs(maker(env_id), 1, seed=3), VectorEnvs(maker(env_id), 1, seed=3)
        one.start()
        actions = np.zeros((3, 1), int)
        play(one, actions, np.zeros((3, 1, 2)))
        one.finish_rollout(actions)
        (problem,) = other.restore(*one.checkpoint_state())
        assert problem.startswith("environment 0: ")
        assert other.checkpoint_state()[1][0]["length"] == 0


def test_an_episode_beyond_the_recorded_length_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_envs, "MAX_RECORDED_STEPS", 5)
    with registered(limit=None) as env_id:
        one, other = VectorEnvs(maker(env_id), 1, seed=3), VectorEnvs(maker(env_id), 1, seed=3)
        one.start()
        actions = np.zeros((3, 1), int)
        for _ in range(3):
            play(one, actions, np.zeros((3, 1, 2)))
            one.finish_rollout(actions)
        (problem,) = other.restore(*one.checkpoint_state())
        assert "9 steps" in problem


def test_an_environment_without_a_generator_of_its_own_is_reset_and_named() -> None:
    class Foreign(Corridor):
        np_random = None  # type: ignore[assignment]

        def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
            return self._observe(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return self._observe(), 0.0, False, False, {}

    with registered(limit=2, kind=Foreign) as env_id:
        one, other = VectorEnvs(maker(env_id), 1, seed=3), VectorEnvs(maker(env_id), 1, seed=3)
        one.start()
        actions = np.zeros((3, 1), int)
        play(one, actions, np.zeros((3, 1, 2)))
        one.finish_rollout(actions)
        (problem,) = other.restore(*one.checkpoint_state())
        assert "random generator" in problem


def test_the_states_of_all_generators_go_through_json() -> None:
    for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64):
        one, other = kind(1), kind(2)
        other.state = vector_envs.random_state_to_json(one.state)
        assert (np.random.Generator(one).random(9) == np.random.Generator(other).random(9)).all()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_advancing_gives_the_steps_rewards_and_keeps_the_same_record(
    env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_envs, "ACTION_CHUNK_STEPS", 16)
    rolled, advanced, back = (VectorEnvs(maker(env_id), 2, seed=3) for _ in range(3))
    rolled.start()
    advanced.start()
    rolled.action_space.seed(1)
    into, rewards = np.zeros((2, 2, rolled.observation_size)), np.zeros(2)
    actions = np.array([[rolled.action_space.sample() for _ in range(2)] for _ in range(70)])
    seen = []
    for row in actions:
        ends = rolled.step(row, into[0])
        other_ends = advanced.advance(row, into[1], rewards)
        seen.append(rewards.copy())
        assert (into[0] == into[1]).all()
        assert [(end.env, end.length) for end in ends] == [(end.env, end.length) for end in other_ends]
        returns = [end.episodic_return for end in other_ends]
        assert [end.episodic_return for end in ends] == pytest.approx(returns)
    assert (rolled.finish_rollout(actions) == seen).all()
    arrays, facts = advanced.checkpoint_state()
    assert facts == [{**fact, "return": pytest.approx(fact["return"])} for fact in rolled.checkpoint_state()[1]]
    assert back.restore(arrays, facts) == []
    again, again_facts = back.checkpoint_state()
    assert again_facts == facts
    assert all((again[key] == arrays[key]).all() for key in arrays)
    back.advance(actions[0], into[0], rewards)
    advanced.advance(actions[0], into[1], rewards)
    assert (into[0] == into[1]).all()
