"""Environments that a script creates itself, without `gymnasium.make`, are recorded like any other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import shared_daemon
from tests.helpers.daemons import ended
from tests.helpers.probe_scripts import (
    caller_environment,
    episodes,
    events,
    points,
    start_script,
    wait_for_frame,
    write_script,
)

from mosaic.contracts.folder import RunFolder
from mosaic.contracts.views import RunView
from mosaic.trainer.client.trainer_client import TrainerClient

plugins, workspace, live, trainer = shared_daemon.FIXTURES
WALK = """
    import hashlib, os, random, sys
    import gymnasium as gym, numpy as np
    class Walk(gym.Env):
        metadata = {"render_modes": ["rgb_array"]}
        observation_space, action_space = gym.spaces.Box(-9, 9, (1,)), gym.spaces.Discrete(2)
        def __init__(self, size=3):
            self.size = size
            self.reset()
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.at = 0
            return np.float32([self.at]), {}
        def step(self, action):
            self.at += (1 if action else -1) * int(self.np_random.integers(1, 3))
            return np.float32([self.at]), float(action), abs(self.at) >= self.size, False, {}
        def render(self):
            return np.full((40, 60, 3), 7, np.uint8)
    def learn(env, episodes, seed=7):
        '''A table of values, learned from what is seen: everything that is seen changes it.'''
        values, draw, steps, returns = {}, random.Random(1), 0, []
        for episode in range(episodes):
            observation, _ = env.reset(seed=seed + episode)
            total, is_over = 0.0, False
            while not is_over:
                action = draw.randrange(2) if draw.random() < 0.3 else int(values.get(float(observation[0]), 0.0) < 0.5)
                observation, reward, terminated, truncated, _ = env.step(action)
                key = float(observation[0])
                values[key] = values.get(key, 0.0) + 0.1 * (reward - values.get(key, 0.0))
                total, steps, is_over = total + reward, steps + 1, terminated or truncated
            returns.append(total)
        print(steps, len(returns), sum(returns), hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest())
"""


def run_script(trainer: TrainerClient, folder: Path, code: str, **options: object) -> tuple[RunView, RunFolder]:
    view = ended(trainer, start_script(trainer, folder, code, **options))  # type: ignore[arg-type]
    assert view.outcome == "succeeded", view.reason
    return view, RunFolder(view.run_dir)


def printed(run: RunFolder) -> str:
    return run.stdout_log("script").read_text()


def run_bare(folder: Path, code: str) -> str:
    """Return what the script prints without MOSAIC."""
    script = write_script(folder, code, "bare.py")
    argv, environment = [sys.executable, str(script)], caller_environment(OMP_NUM_THREADS="1")
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def test_an_environment_without_make_has_episodes_id_seed_and_learns_the_same(
    trainer: TrainerClient, tmp_path: Path
) -> None:
    code = WALK + "    learn(Walk(size=4), 40)\n"
    view, run = run_script(trainer, tmp_path / "w", code)
    assert printed(run) == run_bare(tmp_path / "w", code)
    steps, count, total, _ = printed(run).split()
    assert (view.env_id, view.seed) == ("Walk", 7)
    assert (view.global_step, view.episodes) == (int(steps), int(count))
    assert sum(row[4] for row in episodes(run)) == float(total)
    assert not events(run, "warning")


def test_an_environment_without_make_has_frames(trainer: TrainerClient, tmp_path: Path) -> None:
    code = (
        WALK
        + """
    env = Walk()
    while not os.path.exists("seen"):
        env.reset()
        env.step(1)
    """
    )
    run_id = start_script(trainer, tmp_path / "w", code)
    frame = wait_for_frame(trainer.get_run(run_id).run_dir)
    (tmp_path / "w" / "seen").touch()
    assert frame.image.shape[:2] == (40, 60)
    assert ended(trainer, run_id).outcome == "succeeded"


def test_wrapped_copied_and_nested_environments_are_counted_once(trainer: TrainerClient, tmp_path: Path) -> None:
    code = (
        WALK
        + """
    import copy
    class Twice(gym.Env):
        '''An environment that steps others.'''
        observation_space, action_space = Walk.observation_space, Walk.action_space
        def __init__(self):
            self.parts = [Walk(9), gym.make("CartPole-v1")]
            self.parts[1].reset()
        def reset(self, *, seed=None, options=None):
            self.left = 5
            return [part.reset(seed=seed) for part in self.parts][0]
        def step(self, action):
            self.left -= 1
            self.parts[1].step(1)
            observation, *_ = self.parts[0].step(action)
            return observation, 3.0, self.left == 0, False, {}
    class Halved(gym.RewardWrapper):
        def reward(self, reward): return reward / 2
    twice = Twice()
    for _ in range(3):
        twice.reset()
        for _ in range(5):
            twice.step(0)
    limited = gym.wrappers.TimeLimit(Halved(Walk(99)), 4)
    for env in (limited, copy.deepcopy(limited)):
        env.reset()
        for _ in range(4):
            env.step(1)
    """
    )
    view, run = run_script(trainer, tmp_path / "w", code)
    rows = [row[4:] for row in episodes(run)]
    assert rows == [[15.0, 5]] * 3 + [[2.0, 4]] * 2
    assert view.global_step == 23
    assert not events(run, "warning")


def test_classes_of_the_script_can_be_sent_to_other_processes(trainer: TrainerClient, tmp_path: Path) -> None:
    code = (
        WALK
        + """
    if __name__ == "__main__":
        learn(Walk(), 3)
        envs = gym.vector.AsyncVectorEnv([Walk, Walk], context="spawn")
        envs.reset(seed=1)
        for _ in range(50):
            envs.step([1, 1])
        envs.close()
        import cloudpickle
        print(b"mosaic" in cloudpickle.dumps(Walk))
    """
    )
    view, run = run_script(trainer, tmp_path / "w", code)
    first, second = printed(run).splitlines()
    assert second == "False"
    assert view.global_step == int(first.split()[0]) + 100
    assert {row[1] for row in episodes(run)} == {0, 1, 2}


def test_vector_environments_have_an_id_a_seed_and_the_same_count(trainer: TrainerClient, tmp_path: Path) -> None:
    code = """
        import os, sys
        import gymnasium as gym, numpy as np
        from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
        if __name__ == "__main__":
            mode = sys.argv[1]
            envs = CartPoleVectorEnv(3) if mode == "class" else gym.make_vec("CartPole-v1", 3, vectorization_mode=mode)
            envs.reset(seed=5)
            for _ in range(100):
                envs.step(envs.action_space.sample())
            while mode == "class" and not os.path.exists("seen"):
                envs.step(envs.action_space.sample())
            envs.close()
    """
    modes = {"sync": "CartPole-v1", "async": "CartPole-v1", "vector_entry_point": "CartPole-v1"}
    ids = {mode: start_script(trainer, tmp_path / mode, code, mode) for mode in modes}
    shown = start_script(trainer, tmp_path / "class", code, "class")
    frame = wait_for_frame(trainer.get_run(shown).run_dir)
    assert frame.image.shape[:2] == (400, 600)
    (tmp_path / "class" / "seen").touch()
    for mode, env_id in modes.items():
        view = ended(trainer, ids[mode])
        assert (view.outcome, view.global_step, view.seed, view.env_id) == ("succeeded", 300, 5, env_id), mode
        assert view.episodes > 3
    view = ended(trainer, shown)
    assert (view.env_id, view.seed) == ("CartPoleVectorEnv", 5)


PARALLEL = """
    import random
    from pettingzoo import ParallelEnv
    from pettingzoo.utils.conversions import parallel_to_aec
    class Tag(ParallelEnv):
        metadata = {"name": "tag_v0", "render_modes": []}
        possible_agents = ["cat", "mouse"]
        def reset(self, seed=None, options=None):
            self.draw, self.agents, self.time = random.Random(seed), list(self.possible_agents), 0
            return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}
        def step(self, actions):
            self.time += 1
            caught = self.draw.random() < 0.2
            rewards = {"cat": float(caught), "mouse": -0.5 * caught + 0.25 * actions["mouse"]}
            ended = dict.fromkeys(self.agents, caught)
            late = dict.fromkeys(self.agents, self.time == 10)
            observations = dict.fromkeys(self.agents, self.time)
            if caught or self.time == 10:
                self.agents = []
            return observations, rewards, ended, late, {agent: {} for agent in self.possible_agents}
"""


def test_parallel_environments_of_pettingzoo_are_recorded(trainer: TrainerClient, tmp_path: Path) -> None:
    pytest.importorskip("pettingzoo")
    code = (
        PARALLEL
        + """
    from pettingzoo.utils import BaseParallelWrapper
    env, draw, steps, sums = BaseParallelWrapper(Tag()), random.Random(3), 0, {"cat": [], "mouse": []}
    for episode in range(20):
        env.reset(seed=episode + 4)
        totals = {"cat": 0.0, "mouse": 0.0}
        while env.agents:
            _, rewards, *_ = env.step({agent: draw.randrange(2) for agent in env.agents})
            steps += 1
            for agent, reward in rewards.items():
                totals[agent] += reward
        for agent, total in totals.items():
            sums[agent].append(total)
    print(steps)
    print(*sums["cat"])
    print(*sums["mouse"])
    """
    )
    view, run = run_script(trainer, tmp_path / "w", code)
    assert printed(run) == run_bare(tmp_path / "w", code)
    steps, cat, mouse = ([float(number) for number in line.split()] for line in printed(run).splitlines())
    assert (view.global_step, view.episodes, view.env_id, view.seed) == (int(steps[0]), 20, "tag_v0", 4)
    assert [row[4] for row in episodes(run)] == [one + other for one, other in zip(cat, mouse, strict=True)]
    curves = points(run)
    assert [point[2] for point in curves["agents/cat/episodic_return"]] == cat
    assert [point[2] for point in curves["agents/mouse/episodic_return"]] == mouse
    assert not events(run, "warning")


def test_environments_of_pettingzoo_with_turns_are_recorded(trainer: TrainerClient, tmp_path: Path) -> None:
    pytest.importorskip("pettingzoo")
    code = (
        PARALLEL
        + """
    from pettingzoo.utils import OrderEnforcingWrapper
    env, draw, turns, total = OrderEnforcingWrapper(parallel_to_aec(Tag())), random.Random(3), 0, 0.0
    for episode in range(20):
        env.reset(seed=episode)
        for agent in env.agent_iter():
            _, reward, terminated, truncated, _ = env.last()
            total += reward
            env.step(None if terminated or truncated else draw.randrange(2))
            turns += not (terminated or truncated)
    print(turns, total)
    """
    )
    view, run = run_script(trainer, tmp_path / "w", code)
    assert printed(run) == run_bare(tmp_path / "w", code)
    turns, total = printed(run).split()
    assert (view.global_step, view.episodes, view.env_id, view.seed) == (int(turns), 20, "tag_v0", 0)
    assert sum(row[4] for row in episodes(run)) == pytest.approx(float(total))
    assert not events(run, "warning")
