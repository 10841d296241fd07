"""The probe in every interpreter on this machine, and in other virtual environments."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.helpers.daemons import ended
from tests.helpers.probe_scripts import (
    CARTPOLE,
    caller_environment,
    episodes,
    events,
    interpreters,
    points,
    start_script,
    write_script,
)

from mosaic.contracts.folder import RunFolder
from mosaic.contracts.payload import ProbeParts
from mosaic.probe.script_env import script_environment
from mosaic.trainer.client.trainer_client import TrainerClient

OLD = os.environ.get("MOSAIC_TEST_VENV_029", "")
BASELINES = os.environ.get("MOSAIC_TEST_VENV_SB3", "")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "scripts"

# An environment and a writer without numpy or any other installed package.
PLAIN = """
    import sys
    sys.path.insert(0, "packages")
    import gymnasium as gym
    from tensorboardX.event_file_writer import EventFileWriter, scalar_event
    writer = EventFileWriter("runs/x")
    env = gym.envs.registration.make("Count-v0")
    for episode in range(5):
        env.reset(seed=episode)
        done = False
        while not done:
            _, _, done, _, _ = env.step(0)
        writer.add_event(scalar_event("losses/x", episode / 2, env.steps))
    print("global_step=%d, episodic_return=7" % env.steps)
    env.close()
    class Own(gym.core.Env):
        '''Created without `make`.'''
        def __init__(self, reward): self.reward = reward
        def reset(self, seed=None): return 0, {}
        def step(self, action): return 0, self.reward, True, False, {}
    class Plain(gym.core.Env):
        '''Takes no arguments.'''
    own = Own(reward=5.0)
    for _ in range(2):
        own.reset(seed=1)
        own.step(0)
    import os, threading, warnings
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")  # of threads: "error" does not raise that
        for _ in range(20):
            writer.add_event(scalar_event("losses/y", 1.0, env.steps))
            child = os.fork() or os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    assert not warned, warned
    assert threading.active_count() == 1
    try:
        Plain(1)
        print("Plain took an argument")
    except TypeError:
        pass
"""
REGISTRATION = """
    class Count:
        steps = 0
        spec = None
        def reset(self, seed=None): self.left = 3; return 0, {}
        def step(self, action):
            self.steps += 1; self.left -= 1
            return 0, 2.0, self.left == 0, False, {}
        def close(self): pass
    def make(name): return Count()
"""
CORE = """
    from typing import Generic, TypeVar
    class Env(Generic[TypeVar("T")]):
        unwrapped = property(lambda self: self)
    class Wrapper(Env):
        pass
"""
WRITER = """
    from types import SimpleNamespace
    class Value(SimpleNamespace):
        def WhichOneof(self, group): return "simple_value"
    def scalar_event(tag, value, step):
        return SimpleNamespace(step=step, summary=SimpleNamespace(value=[Value(tag=tag, simple_value=value)]))
    class EventFileWriter:
        def __init__(self, logdir, max_queue_size=10, flush_secs=120, filename_suffix=""): self.logdir = logdir
        def add_event(self, event): pass
"""


def write_fake_packages(folder: Path) -> None:
    write_script(
        folder / "gymnasium", "from gymnasium import core\nfrom gymnasium.envs import registration\n", "__init__.py"
    )
    write_script(folder / "gymnasium", CORE, "core.py")
    write_script(folder / "gymnasium" / "envs", "", "__init__.py")
    write_script(folder / "gymnasium" / "envs", REGISTRATION, "registration.py")
    write_script(folder / "tensorboardX", "", "__init__.py")
    write_script(folder / "tensorboardX", WRITER, "event_file_writer.py")


@pytest.mark.parametrize("python", interpreters())
def test_the_probe_works_in_every_python(python: str, tmp_path: Path) -> None:
    folder = tmp_path / "the user's folder"
    write_fake_packages(folder / "packages")
    script = write_script(folder, PLAIN)
    run = RunFolder(tmp_path / "a run")
    run.path.mkdir()
    parts = ProbeParts().model_dump()
    environment = script_environment(
        caller_environment(), run, tmp_path / "probe", parts, str(folder), total_timesteps=17
    )
    result = subprocess.run(
        [python, "-W", "error", str(script)], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "global_step=15, episodic_return=7\n"
    assert [row[4:] for row in episodes(run)] == [[6.0, 3]] * 5 + [[5.0, 1]] * 2
    assert [point[2] for point in points(run)["losses/x"]] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert events(run, "progress")[-1]["global_step"] == 17
    # Without numpy there are no frames, and nothing else may be missing.
    assert {event["text"].split()[3] for event in events(run, "warning")} <= {"frames"}


@pytest.mark.skipif(not OLD, reason="MOSAIC_TEST_VENV_029 is not set to an environment with gymnasium 0.29")
def test_a_script_of_another_virtual_environment_with_an_older_gymnasium(
    trainer: TrainerClient, tmp_path: Path
) -> None:
    run_id = start_script(trainer, tmp_path / "w", CARTPOLE.format(episodes=12), python=f"{OLD}/bin/python")
    view = ended(trainer, run_id)
    assert (view.outcome, view.episodes, view.env_id) == ("succeeded", 12, "CartPole-v1")
    assert not events(RunFolder(view.run_dir), "warning")


@pytest.mark.skipif(not BASELINES, reason="MOSAIC_TEST_VENV_SB3 is not set to an environment with stable-baselines3")
def test_stable_baselines_reports_episodes_its_table_and_saved_files(trainer: TrainerClient, tmp_path: Path) -> None:
    code = (EXAMPLES / "sb3_cartpole.py").read_text()
    run_id = start_script(trainer, tmp_path / "w", code, "4096", python=f"{BASELINES}/bin/python")
    view = ended(trainer, run_id, seconds=110)
    assert view.outcome == "succeeded", view.reason
    run = RunFolder(view.run_dir)
    assert (view.global_step, view.total_timesteps, view.env_id) == (4096, 4096, "CartPole-v1")
    assert sum(row[5] for row in episodes(run)) <= 4096
    assert view.episodes > 50
    assert [point[0] for point in points(run)["rollout/ep_rew_mean"]] == [2048, 4096]
    (saved,) = events(run, "artifact")
    assert saved["path"].endswith("ppo_cartpole.zip")
    assert view.hardware is not None
    assert view.hardware.rss_mb > 0
