"""Recorded episodes are simulated again, bit for bit: each alone, in a new environment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mosaic.api.replays import replay_episodes
from mosaic.arena.play_envs import PlayEnv, make_play_env
from mosaic.arena.recording import RecordedEpisode, Recording, RecordingHeader, RecordingWriter
from mosaic.arena.simulation import Simulation
from mosaic.contracts.errors import MissingExtra
from mosaic.contracts.replays import ReplayDifference
from mosaic.envs.reproducible import random_state

SEEDS = (1, 2, 3)
STEPS = 60
EPISODES_PER_SEED = 2
"""The first starts from a seed, the second from the random state."""
ENVIRONMENTS = (
    "FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4", "CliffWalking-v1", "Blackjack-v1",
    "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1", "Pendulum-v1",
    "LunarLander-v3", "BipedalWalker-v3", "BipedalWalkerHardcore-v3",
    "HalfCheetah-v5", "Hopper-v5", "Reacher-v5", "InvertedPendulum-v5",
    "ALE/Breakout-v5", "BreakoutNoFrameskip-v4",
    "MiniGrid-Empty-8x8-v0", "MiniGrid-DoorKey-6x6-v0", "MiniGrid-Dynamic-Obstacles-5x5-v0", "BabyAI-GoToObj-v0",
    "pettingzoo/tictactoe_v3", "pettingzoo/connect_four_v3",
)  # fmt: skip


def record(path: Path, header: RecordingHeader) -> None:
    """Play at random, one environment for all episodes."""
    env = make_play_env(header)
    is_pettingzoo = header.env_id.startswith("pettingzoo/")
    with RecordingWriter(path, header) as writer:
        for seed in SEEDS:
            rng = np.random.default_rng(seed)
            for part in range(EPISODES_PER_SEED):
                is_seeded = part == 0 or is_pettingzoo
                state = None if is_seeded else random_state(env.core)
                env.reset(seed + part if is_seeded else None, state)
                actions, rewards, ending = [], [], "running"
                while ending == "running" and env.steps < STEPS:
                    chosen = {}
                    for turn in env.turns:
                        space = env.action_space(turn.agent)
                        space.seed(int(rng.integers(2**31)))
                        legal = turn.legal_actions
                        chosen[turn.agent] = space.sample() if legal is None else int(rng.choice(legal))
                    actions.append(env.to_row(chosen))
                    result = env.step(chosen)
                    ending = result.ending
                    rewards.append(env.reward_row(result.rewards))
                number, start = writer.next_number, seed + part if is_seeded else None
                steps = np.array(actions), np.array(rewards, np.float64)
                writer.append([RecordedEpisode(number, start, state, *steps, ending)])  # type: ignore[arg-type]
    env.close()


def find_difference(env: PlayEnv, episode: RecordedEpisode) -> ReplayDifference | None:
    simulation = Simulation(env, episode)
    simulation.seek(len(episode))
    assert simulation.difference is not None or simulation.verified_steps == len(episode)
    return simulation.difference


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_an_episode_alone_is_the_recorded_one(tmp_path: Path, env_id: str) -> None:
    """R7.7, R9.6: with three seeds each; none needs recorded frames."""
    header = RecordingHeader(env_id=env_id)
    try:
        record(tmp_path / "r", header)
    except MissingExtra as error:
        pytest.skip(str(error))
    with Recording(tmp_path / "r") as recording:
        assert recording.episode_count == len(SEEDS) * EPISODES_PER_SEED
        for number in reversed(recording.numbers):
            env = make_play_env(header)
            difference = find_difference(env, recording.episode(number))
            env.close()
            assert difference is None, difference


def test_the_documentation_lists_the_environments() -> None:
    text = (Path(__file__).parents[2] / "docs" / "guides" / "replay.md").read_text()
    section = text.partition("## Recordings")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    listed = [env_id for row in rows for env_id in re.findall(r"`([^`]+)`", row[2])]
    assert sorted(listed) == sorted(ENVIRONMENTS)
    assert {row[3].strip() for row in rows} == {"none"}


def test_a_difference_is_found_at_its_step(tmp_path: Path) -> None:
    header = RecordingHeader(env_id="FrozenLake-v1", env_kwargs={"is_slippery": False})
    path = np.array([1, 1, 2, 2, 1, 2])
    rewards = np.array([0, 0, 0, 0, 0, 1], np.float64)
    env = make_play_env(header)
    assert find_difference(env, RecordedEpisode(0, 1, None, path, rewards, "terminated")) is None
    wrong = find_difference(env, RecordedEpisode(0, 1, None, path, np.array([0, 0, 0, 0.5, 0, 1]), "terminated"))
    assert wrong is not None
    assert (wrong.step, wrong.recorded_reward, wrong.simulated_reward) == (4, 0.5, 0.0)
    survived = find_difference(env, RecordedEpisode(0, 1, None, path, rewards, "truncated"))
    assert survived is not None
    assert (survived.step, survived.endings) == (6, ("truncated", "terminated"))
    longer = find_difference(env, RecordedEpisode(0, 1, None, np.append(path, 0), np.append(rewards, 0), "terminated"))
    assert longer is not None
    assert longer.describe() == "The simulation ended at step 6; the recorded episode is longer."
    env.close()


def test_a_simulation_goes_to_any_step(tmp_path: Path) -> None:
    header = RecordingHeader(env_id="CartPole-v1")
    record(tmp_path / "r", header)
    env = make_play_env(header)
    with Recording(tmp_path / "r") as recording:
        simulation = Simulation(env, recording.episode(0))
        seen = [env.turns[0].observation]
        while not simulation.is_at_end:
            simulation.step()
            seen.append(env.turns[0].observation)
        for index in (3, 7, 0, len(seen) - 1, 5):
            simulation.seek(index)
            assert (simulation.position, env.turns[0].observation.tolist()) == (index, seen[index].tolist())
    env.close()


def test_an_environment_that_prints_much_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "noisy.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv\n"
        "class Noisy(FrozenLakeEnv):\n"
        "    def step(self, action):\n"
        "        print('x' * 20_000)\n"
        "        return super().step(action)\n"
        "gymnasium.register('Noisy-v0', Noisy)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("MOSAIC_ENV_MODULES", "noisy")
    episode = RecordedEpisode(0, 1, None, np.zeros(20, np.int64), np.zeros(20), "truncated")
    with RecordingWriter(tmp_path / "r", RecordingHeader(env_id="noisy:Noisy-v0")) as writer:
        writer.append([episode])
    (report,) = replay_episodes(tmp_path / "r")
    assert report.steps == 20


@pytest.mark.parametrize("preprocessing", ["atari_training", "atari_evaluation"])
def test_a_preprocessed_game_starts_again_wherever_the_simulation_is(tmp_path: Path, preprocessing: Any) -> None:
    """A reset within a game would be its next life."""
    header = RecordingHeader(env_id="BreakoutNoFrameskip-v4", preprocessing=preprocessing)
    try:
        env = make_play_env(header)
    except MissingExtra as error:
        pytest.skip(str(error))
    rng = np.random.default_rng(10)
    env.reset(1)
    while env.step({"*": int(rng.integers(4))}).ending == "running":
        pass
    state = random_state(env.core)
    env.reset(None, state)
    actions = rng.integers(0, 4, 80)
    rewards = [env.step({"*": int(action)}).rewards["*"] for action in actions]
    screen = env.turns[0].observation
    env.close()
    assert any(rewards)
    episode = RecordedEpisode(0, None, state, actions, np.array(rewards, np.float64))
    env = make_play_env(header)
    simulation = Simulation(env, episode)
    for index in (80, 30, 80):
        simulation.seek(index)
        assert (simulation.position, simulation.difference) == (index, None)
    assert env.turns[0].observation.tobytes() == screen.tobytes()
    env.close()
