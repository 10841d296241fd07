"""F61: a viewer that is opened and closed at random changes nothing that a script sees."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.daemons import wait_for
from tests.helpers.fault_table import SEED_VARIABLE
from tests.helpers.probe_scripts import caller_environment, start_script, write_script

from mosaic.base.fastlane import LaneReader, lane_indices, lanes_folder
from mosaic.contracts.folder import RunFolder
from mosaic.trainer.client.trainer_client import TrainerClient

# MuJoCo's pixels differ between two processes also without viewers: they are compared in one (test_fastlane_tap.py).
FAMILIES = {
    "classic control": "CartPole-v1",
    "Box2D": "LunarLander-v3",
    "toy text": "FrozenLake-v1",
    "MiniGrid": "MiniGrid-DoorKey-5x5-v0",
    "Atari": "ALE/Pong-v5",
}
PIXELS = """
    import hashlib, os, sys, time
    import gymnasium as gym
    import ale_py, minigrid
    gym.register_envs(ale_py)
    gym.register_envs(minigrid)
    seen = hashlib.sha256()
    env = gym.wrappers.AddRenderObservation(gym.make(sys.argv[1], render_mode="rgb_array"))
    env.reset(seed=1)
    env.action_space.seed(1)
    for step in range(120):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        seen.update(observation.tobytes() + str(reward).encode())
        if terminated or truncated or step % 30 == 29:
            env.reset()
        if step % 30 == 29:  # that is where a viewer may come or go
            print(step, flush=True)
            while os.path.exists("wait") and open("wait").read() != str(step):
                time.sleep(0.005)
            time.sleep(0.15)  # longer than the interval at which viewers are looked for
    print(seen.hexdigest())
"""


@pytest.mark.parametrize("env_id", FAMILIES.values(), ids=FAMILIES)
def test_pixels_do_not_depend_on_viewers(trainer: TrainerClient, tmp_path: Path, env_id: str) -> None:
    """F61: the same steps bare, and with viewers that open and close while they are taken."""
    bare = tmp_path / "bare"
    path = write_script(bare, PIXELS)
    variables = caller_environment(SDL_VIDEODRIVER="dummy", MUJOCO_GL="egl")
    alone = subprocess.run(
        [sys.executable, str(path), env_id], cwd=bare, env=variables, capture_output=True, text=True, timeout=300
    )
    assert alone.returncode == 0, alone.stderr
    folder = tmp_path / "w"
    folder.mkdir()
    (folder / "wait").write_text("")
    run_id = start_script(trainer, folder, PIXELS, env_id, environment=variables)
    run = RunFolder(trainer.get_run(run_id).run_dir)
    log, lanes = run.stdout_log("script"), lanes_folder(run.path)
    choices = random.Random(os.environ.get(SEED_VARIABLE, "1"))
    frames = 0
    for step in (29, 59, 89, 119):
        wait_for(lambda: log.exists() and f"{step}\n" in log.read_text(), f"step {step}")  # noqa: B023
        readers = [LaneReader(lanes, index) for index in lane_indices(lanes) if step == 29 or choices.random() < 0.7]
        for reader in readers:
            reader.read_newest()
        (folder / "wait").write_text(str(step))
        for reader in readers:
            if step == 29:
                wait_for(reader.read_newest, "a frame")
                frames += 1
            reader.close()
    wait_for(lambda: trainer.get_run(run_id).outcome, "its end")
    assert trainer.get_run(run_id).outcome == "succeeded"
    assert frames
    assert log.read_text().split()[-1] == alone.stdout.split()[-1]
