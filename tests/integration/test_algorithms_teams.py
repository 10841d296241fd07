"""Several agents trained together: each is a row of the rollout, also those that leave before the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from tests.helpers.algorithm_cases import (
    Killed,
    assert_same_checkpoint,
    events,
    latest_checkpoint,
    open_run,
    train_run,
)

from cleanrl_worker.algorithms import ppo_pettingzoo
from cleanrl_worker.environments.agent_rows import AgentRows
from cleanrl_worker.evaluation.loading import load_acting_policy, load_for_evaluation
from cleanrl_worker.shell.checker import check_request
from cleanrl_worker.shell.worker_config import parse_request
from mosaic.contracts.errors import BadInput
from mosaic.contracts.folder import MODULES_VARIABLE
from mosaic.worker.envs.teams import AtariTeamFrames, TeamEnv, make_team_env
from mosaic.worker.evaluation import evaluate
from mosaic.worker.policies import Policy

pytest.importorskip("pettingzoo")
RELAY = "tests.helpers.parallel_env:relay"
SMALL = {
    "env_id": RELAY, "total_timesteps": 192, "num_envs": 4, "num_steps": 16, "num_minibatches": 2, "update_epochs": 2,
    "checkpoint_every": 64,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _allow_own_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODULES_VARIABLE, RELAY.partition(":")[0])


def config_of(**settings: Any) -> ppo_pettingzoo.Config:
    return ppo_pettingzoo.Config.model_validate({**SMALL, **settings})


def scouted(policies: str) -> ppo_pettingzoo.Config:
    return config_of(env_kwargs={"with_scout": True}, num_envs=6, policies=policies, total_timesteps=288)


# --- a team as one environment


def test_a_team_is_one_environment_whose_rows_are_its_agents() -> None:
    env = make_team_env(RELAY, with_scout=True)
    observation, _ = env.reset(seed=5)
    assert observation.shape == env.observation_space.shape == (3, 4)
    assert observation[:2, 3].tolist() == [0, 0]  # runners see one number less than the scout
    assert str(env.action_space).startswith("MultiDiscrete([3 3 4]")
    rewards, present = [], []
    is_over = False
    while not is_over:
        observation, reward, is_terminal, is_truncated, _ = env.step(np.array([2, 0, 2]))
        assert env.is_present.any() or observation.any()  # also the final observation is seen
        rewards.append(reward)
        present.append(env.is_present.tolist())
        is_over = is_terminal or is_truncated
    assert present == [[True] * 3] * 2 + [[False, True, True]] * 3 + [[False, False, True]] * 3 + [[False] * 3]
    np.testing.assert_allclose(rewards, [2.3] * 3 + [1.3] * 3 + [1.2] * 3)
    assert is_truncated


def test_every_episode_follows_from_the_first_seed() -> None:
    one, other = make_team_env(RELAY), make_team_env(RELAY)
    for seed in (7, None, None):
        (first, _), (second, _) = one.reset(seed=seed), other.reset(seed=seed)
        np.testing.assert_array_equal(first, second)
    assert not np.array_equal(one.reset()[0], one.reset()[0])


def test_agents_that_leave_end_their_episode_and_are_absent_until_the_next() -> None:
    rows = AgentRows(lambda: make_team_env(RELAY), 4, seed=1)
    rows.start()
    into = np.zeros((4, 3), np.float32)
    ends = {t: list(rows.step([2, 2, 0, 0], into)) for t in range(8)}
    assert [(t, end.env, end.is_terminal, end.length) for t in ends for end in ends[t]] == [
        (2, 0, True, 3), (2, 2, True, 3), (5, 1, False, 6), (5, 3, False, 6),
    ]  # fmt: skip
    assert ends[5][0].episodic_return == pytest.approx(6.6)
    rewards = rows.finish_rollout(np.tile([2, 2, 0, 0], (8, 1)))
    assert rewards.shape == (8, 4)
    assert rows.is_absent[:, 0].tolist() == [False] * 3 + [True] * 3 + [False] * 2
    assert not rows.is_absent[:, 1].any()
    rows.close()


# --- training


@pytest.mark.parametrize(("policies", "backend"), [("shared", "numpy"), ("separate", "numpy"), ("separate", "torch")])
def test_a_killed_training_resumes_exactly(policies: str, backend: str, tmp_path: Path) -> None:
    config = scouted(policies).model_copy(update={"backend": backend, "cuda": False})
    train_run(tmp_path / "whole", "ppo_pettingzoo", config)
    with pytest.raises(Killed):
        train_run(tmp_path / "broken", "ppo_pettingzoo", config, kill_at=230)
    middle = latest_checkpoint(tmp_path / "broken")
    assert 0 < middle.step < 230
    train_run(tmp_path / "broken", "ppo_pettingzoo", config, middle)
    assert_same_checkpoint(latest_checkpoint(tmp_path / "whole"), latest_checkpoint(tmp_path / "broken"))
    assert not events(tmp_path / "broken", "warning")


def test_agents_with_equal_spaces_share_a_policy_or_each_has_its_own() -> None:
    env = make_team_env(RELAY, with_scout=True)
    names = [[spec.name for spec in ppo_pettingzoo.assign_policies(env, kind)] for kind in ("shared", "separate")]
    assert names == [["runner_0", "scout"], ["runner_0", "runner_1", "scout"]]
    alone = ppo_pettingzoo.Agent(ppo_pettingzoo.assign_policies(make_team_env(RELAY), "shared"))
    assert "actor.0.weight" in alone.state_dict()
    several = ppo_pettingzoo.Agent(ppo_pettingzoo.assign_policies(env, "separate"))
    assert several.state_dict()["scout.actor.0.weight"].shape == (64, 4)


def test_the_team_is_reported_with_its_sum_and_each_agent_with_its_own_return(tmp_path: Path) -> None:
    returns: dict[str, list[float]] = {}
    run = train_run(
        tmp_path, "ppo_pettingzoo", config_of(), scalar=lambda tag, value, _: returns.setdefault(tag, []).append(value)
    )
    own = [returns[f"agents/runner_{index}/episodic_return"] for index in (0, 1)]
    sums = [first + second for first, second in zip(*own, strict=False)]
    np.testing.assert_allclose([episode[2] for episode in run.episodes][: len(sums)], sums)
    assert {(env, length) for env, _, _, length in run.episodes} == {(0, 6), (1, 6)}


class Batches(ppo_pettingzoo.Training):
    """Keeps what it learns from."""

    def estimate(self, rewards: Any) -> Any:
        self.rewards = rewards.copy()
        self.values = self.policies[0].state_values(self.observations.reshape(-1, 3)).reshape(17, 4)
        self.batch = super().estimate(rewards)[0]
        return [self.batch]

    def update(self, batches: Any) -> Any:
        self.orders: list[Any] = []
        learner: Any = self.policies[0].learner
        original = learner.run_epoch

        def run_epoch(batch: Any, order: Any) -> None:
            self.orders.append(order)
            original(batch, order)

        learner.run_epoch = run_epoch
        return super().update(batches)


def test_an_agent_learns_from_its_own_rewards_until_it_leaves(tmp_path: Path) -> None:
    """The advantages equal a sum over the agent's own episode, and rows without an agent are not learned from."""
    config = config_of(total_timesteps=64, gamma=0.9, gae_lambda=0.8)
    with open_run(tmp_path, config) as run:
        environments = AgentRows(lambda: make_team_env(RELAY), 4, config.seed)
        training = Batches(config, run, environments)
        training.train(None)
    advantages = training.batch.advantages.reshape(16, 4)
    values, rewards, gone = training.values, training.rewards, environments.is_absent
    for start in (0, 6):  # runner 0 is there for three of the six steps of a game
        for t in range(start, start + 3):
            expected = sum(
                (0.9 * 0.8) ** (k - t)
                * (rewards[k, 0] + (0.9 * values[k + 1, 0] if k < start + 2 else 0) - values[k, 0])
                for k in range(t, start + 3)
            )
            assert advantages[t, 0] == pytest.approx(expected, abs=1e-5)
    absent = set(np.flatnonzero(gone.reshape(-1)).tolist())
    assert len(absent) == 14
    for order in training.orders:
        assert len(order) == 64
        assert set(order.tolist()) == set(range(64)) - absent


def test_the_agents_learn(tmp_path: Path) -> None:
    """Action 2 is rewarded; a policy that has learned it gets more than a random one."""
    config = config_of(total_timesteps=6400, learning_rate=0.01, num_steps=32, checkpoint_every=6400)
    run = train_run(tmp_path, "ppo_pettingzoo", config)
    returns = [episode[2] for episode in run.episodes]
    assert np.mean(returns[:20]) < 5
    assert np.mean(returns[-20:]) > 8.5  # of 9.6


# --- acting


def test_a_trained_team_is_evaluated_and_acts_agent_by_agent(tmp_path: Path) -> None:
    """R3.6: PPO for PettingZoo."""
    config = scouted("separate")
    train_run(tmp_path, "ppo_pettingzoo", config)
    loaded = load_for_evaluation(parse_request({"extras": {"mode": "policy_eval", "policy_path": str(tmp_path)}}))
    first, second = (evaluate(loaded.policy, loaded.make_env, [3, 4]) for _ in range(2))
    assert first == second
    assert {episode.length for episode in first} == {9}

    team = Policy(load_acting_policy(tmp_path))
    env = team.make_env()
    observation, _ = env.reset(seed=3)
    actions = team.act(observation)
    for index, agent in enumerate(env.agents):
        own = team.for_agent(agent)
        assert own.act(observation[index, : env.sizes[index]]) == actions[index]
    with pytest.raises(BadInput, match="there is no 'goalkeeper'"):
        team.for_agent("goalkeeper")


# --- frames


class Screens:
    """A parallel game for two whose screens flicker, and whose second player loses first."""

    metadata = {"render_fps": 60}
    possible_agents = ["first_0", "second_0"]

    def observation_space(self, agent: str) -> Any:
        return Box(0, 255, (168, 84, 3), np.uint8)

    def action_space(self, agent: str) -> Any:
        return Discrete(3)

    def reset(self, seed: int | None = None) -> Any:
        self.agents, self.time = list(self.possible_agents), 0
        return dict.fromkeys(self.agents, self._screen()), {}

    def _screen(self) -> Any:
        screen = np.zeros((168, 84, 3), np.uint8)
        screen[..., 2] = 100 + self.time if self.time % 2 else 0
        return screen

    def step(self, actions: dict[str, int]) -> Any:
        self.time += 1
        acting, ended = self.agents, {agent: agent == "second_0" and self.time >= 6 for agent in self.agents}
        self.agents = [agent for agent in acting if not ended[agent]]
        truncated = dict.fromkeys(acting, self.time >= 11)
        return dict.fromkeys(acting, self._screen()), dict.fromkeys(acting, 3.0), ended, truncated, {}

    def close(self) -> None:
        pass


def test_players_see_the_last_frames_without_flicker_and_who_they_are() -> None:
    pytest.importorskip("cv2")
    game: Any = Screens()
    rows = AgentRows(lambda: TeamEnv(AtariTeamFrames(game), "a game"), 2, seed=1, clips_rewards=True)
    rows.start()
    into = np.zeros((2, 6, 84, 84), np.uint8)
    ends = [rows.step([0, 1], into) for _ in range(2)]
    assert rows.shape == (6, 84, 84)
    assert into[0, :4, 0, 0].tolist() == [0, 0, 103, 107]  # the brighter one of the last two of four screens
    assert into[0, 4:, 0, 0].tolist() == [255, 0]
    assert [(end.env, end.is_terminal, end.episodic_return, end.length) for end in ends[1]] == [(1, True, 18.0, 2)]
    (last,) = rows.step([0, 1], into)
    assert (last.env, last.is_terminal, last.episodic_return, last.observation.shape) == (0, False, 33.0, (6, 84, 84))
    rewards = rows.finish_rollout(np.zeros((3, 2), np.int64))
    assert rewards.tolist() == [[1, 1], [1, 1], [1, 0]]
    assert rows.is_absent.tolist() == [[False, False], [False, False], [False, True]]


def test_multiplayer_atari_games_train_and_resume_exactly(tmp_path: Path) -> None:
    """R3.6: PPO for several players of an Atari game."""
    pytest.importorskip("multi_agent_ale_py", reason="needs the extra ma_atari")
    from cleanrl_worker.algorithms import ppo_pettingzoo_ma_atari as algorithm

    config = algorithm.Config.model_validate(
        {**SMALL, "env_id": "boxing_v2", "env_kwargs": {"max_cycles": 100}, "cuda": False}
    )
    train_run(tmp_path / "whole", algorithm.NAME, config)
    with pytest.raises(Killed):
        train_run(tmp_path / "broken", algorithm.NAME, config, kill_at=150)
    train_run(tmp_path / "broken", algorithm.NAME, config, latest_checkpoint(tmp_path / "broken"))
    assert_same_checkpoint(latest_checkpoint(tmp_path / "whole"), latest_checkpoint(tmp_path / "broken"))
    assert not events(tmp_path / "broken", "warning")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"env_id": "CartPole-v1"}, "'CartPole-v1' is not a parallel environment of PettingZoo"),
        ({"env_id": "pettingzoo/simple_spred_v3"}, "Did you mean 'pettingzoo/simple_spread_v3'"),
        ({"num_envs": 5}, "relay has 2 of them: use a multiple of 2, such as 4"),
        (
            {"num_minibatches": 24, "num_envs": 6, "env_kwargs": {"with_scout": True}},
            "64 rows of the policy of runner_0",
        ),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], problem: str) -> None:
    extras = {**SMALL, **settings}
    config = {"algo": "ppo_pettingzoo", "env_id": extras.pop("env_id"), "extras": extras}
    with pytest.raises(BadInput, match=problem):
        check_request(parse_request(config))
