"""Recorded episodes are simulated again, bit for bit: each alone, in a new environment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mosaic.contracts.errors import MissingExtra
from mosaic.contracts.replays import ReplayDifference, ReplayReport
from mosaic.features.replay.api import replay_episodes
from mosaic.worker.envs.reproducible import hash_observation, random_state
from mosaic.worker.play_envs import PlayEnv, make_play_env
from mosaic.worker.recorders import EpisodeRecorder
from mosaic.worker.recording import Ending, RecordedEpisode, Recording, RecordingHeader, RecordingWriter
from mosaic.worker.simulation import Simulation

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
                hashes = [(0, env.hash_observation())]
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
                    hashes.append((env.steps, env.hash_observation()))
                number, start = writer.next_number, seed + part if is_seeded else None
                steps = np.array(actions), np.array(rewards, np.float64)
                writer.append(
                    [RecordedEpisode(number, start, state, *steps, ending, hashes=tuple(hashes))]  # type: ignore[arg-type]
                )
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


DRIFTING = """
import gymnasium
import numpy as np
class Drift(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict({"at": gymnasium.spaces.Box(-9, 9, (2,), np.float64)})
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, calm_steps=0):
        self.calm_steps = calm_steps
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.at = 0, self.np_random.random(2)
        return {"at": self.at}, {}
    def step(self, action):
        self.steps += 1
        self.at = self.at + (0 if self.steps < self.calm_steps else np.random.default_rng().random(2))
        return {"at": self.at}, 0.0, False, self.steps == 40, {}
gymnasium.register("Drift-v0", Drift)
"""


@pytest.mark.parametrize(
    ("calm_steps", "differs_at", "equal_at"), [(1, 16, 0), (20, 32, 16), (40, 40, 32), (41, None, 0)]
)
def test_transitions_without_a_seed_differ_although_all_rewards_are_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calm_steps: int, differs_at: int | None, equal_at: int
) -> None:
    (tmp_path / "drifting.py").write_text(DRIFTING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("MOSAIC_ENV_MODULES", "drifting")
    header = RecordingHeader(env_id="drifting:Drift-v0", env_kwargs={"calm_steps": calm_steps})
    env = make_play_env(header)
    recorder = EpisodeRecorder(tmp_path / "r", header, lambda *_: None, env)
    env.reset(3)
    recorder.start(3, {"*": "random"})
    ending: Ending = "running"
    while ending == "running":
        ending = env.step({"*": 1}).ending
        recorder.add(1, 0.0)
    recorder.finish(ending)
    recorder.close()
    (report,) = replay_episodes(tmp_path / "r")
    assert report.compared == ("rewards", "ending", "observations")
    assert report.is_identical is (differs_at is None)
    if differs_at is not None:
        assert report.difference is not None
        assert (report.difference.step, report.difference.equal_at_step) == (differs_at, equal_at)
        assert f"The observation at step {differs_at} is not that of the recorded episode" in report.describe()


def test_a_recording_without_hashes_says_what_was_compared(tmp_path: Path) -> None:
    header = RecordingHeader(env_id="FrozenLake-v1", env_kwargs={"is_slippery": False})
    with RecordingWriter(tmp_path / "r", header) as writer:
        writer.append([RecordedEpisode(0, 1, None, np.array([1, 1]), np.zeros(2))])
    (report,) = replay_episodes(tmp_path / "r")
    assert (report.is_identical, report.compared) == (True, ("rewards", "ending"))
    assert report.describe() == "identical rewards and ending; no more was recorded"


def test_a_frame_is_compared_where_that_is_asked_for(tmp_path: Path) -> None:
    """The picture of a lake shows its map, the observation does not."""
    reports: list[ReplayReport] = []
    for desc in (["SFF", "FHF", "FFG"], ["SFF", "FFF", "FHG"]):
        header = RecordingHeader(env_id="FrozenLake-v1", env_kwargs={"desc": desc}, has_frame_hashes=True)
        env = make_play_env(header)
        recorder = EpisodeRecorder(tmp_path / "r", header, lambda *_: None, env)
        env.reset(1)
        recorder.start(1, {"*": "random"})
        recorder.add(0, env.step({"*": 0}).rewards["*"])
        recorder.finish("running")
        recorder.close()
        reports += replay_episodes(tmp_path / "r")
        content = (tmp_path / "r").read_bytes()
        (tmp_path / "r").write_bytes(content.replace(b'"FHF","FFG"', b'"FFF","FHG"'))
        reports += replay_episodes(tmp_path / "r")
        (tmp_path / "r").unlink()
    assert [report.is_identical for report in reports] == [True, False, True, True]
    assert reports[0].compared == ("rewards", "ending", "observations", "frames")
    assert (
        reports[1].describe() == "The observation or frame at step 0 is another one than that of the recorded episode."
    )


def test_a_hash_tells_types_shapes_and_structures_apart() -> None:
    values: list[Any] = [
        np.zeros(2), np.zeros(2, np.float32), np.zeros((2, 1)), np.array([0.0, -0.0]), np.zeros(3), (0.0, 0.0), 0, 0.0,
        np.int64(0), {"a": np.zeros(2)}, {"b": np.zeros(2)}, ({"a": 0}, 1), ({"a": 0, "b": 1},), "a", None, (None,),
        np.array(["a", 1], object), np.array(["a", 2], object), ((), ((),)), (((),),),
    ]  # fmt: skip
    assert len({hash_observation(value) for value in values}) == len(values)
    strided = np.arange(8.0)[::2]
    assert hash_observation(strided) == hash_observation(strided.copy())
    assert hash_observation({"a": 1, "b": 2}) == hash_observation({"b": 2, "a": 1})


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "FrozenLake8x8-v1"])
def test_a_map_that_is_drawn_is_the_same_in_all_environments(env_id: str) -> None:
    """Those of a training, of its resumes, evaluations and replays, whatever was drawn before."""
    maps = []
    for number in range(3):
        np.random.seed(number)
        before = np.random.random(3)
        np.random.seed(number)
        env = make_play_env(
            RecordingHeader(env_id=env_id, env_kwargs={"map_name": None}), "rgb_array" if number else None
        )
        assert (before == np.random.random(3)).all()
        maps.append(b"".join(env.core.desc.ravel()))
        env.close()
    assert len(set(maps)) == 1


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
