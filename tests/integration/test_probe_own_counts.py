"""What is shown of a script is what the script itself counts, however it trains and evaluates."""

from __future__ import annotations

import json
import os
import signal
import textwrap
from pathlib import Path

import pytest
from tests.helpers import shared_daemon
from tests.helpers.daemons import ended, wait_for
from tests.helpers.probe_scripts import events, points, start_script, write_script

from mosaic.contracts.folder import RunFolder
from mosaic.trainer.client.trainer_client import TrainerClient

plugins, workspace, live, trainer = shared_daemon.FIXTURES

COUNT = """
import json
import gymnasium as gym
import numpy as np
counted = {"train": [], "eval": [], "cut": 0, "steps": 0}
def play(env, use, limit=10_000):
    env.reset(seed=len(counted["train"]))
    env.action_space.seed(len(counted["train"]) + len(counted["eval"]))
    total = 0.0
    for length in range(1, limit + 1):
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        total += reward
        if terminated or truncated:
            break
    else:
        counted["cut"] += use == "train"
    counted["steps"] += length * (use == "train")
    counted[use].append(float(np.sum(total)))
"""
END = "\nprint(json.dumps(counted))\n"

BASELINE_FIRST = """
import os
journal = os.path.join(os.environ["MOSAIC_RUN_DIR"], "journal.jsonl")
def evaluate(env):
    while '"episodes"' not in open(journal).read():  # recorded as training, until there is something else
        play(env, "eval")
    for _ in range(2):
        play(env, "eval")
env, other = gym.make("CartPole-v1"), gym.make("Acrobot-v1")
evaluate(other)
for episode in range(40):
    play(env, "train")
    if episode % 10 == 9:
        evaluate(other)
"""
BASELINE_ON_THE_SAME = """
def evaluate_agent(env):
    for _ in range(5):
        play(env, "eval")
env = gym.make("CartPole-v1")
for _ in range(3):
    evaluate_agent(env)
    for _ in range(10):
        play(env, "train")
evaluate_agent(env)
"""
TWO_TABLES = """
def train(env, count):
    for _ in range(count):
        play(env, "train")
def evaluate_agent(env):
    for _ in range(20):
        play(env, "eval")
lake = gym.make("FrozenLake-v1")
train(lake, 300)
evaluate_agent(lake)
taxi = gym.make("CartPole-v1")
evaluate_agent(taxi)
train(taxi, 130)
evaluate_agent(taxi)
"""
OWN_HORIZON = """
from gymnasium.envs.classic_control import PendulumEnv
env = MAKE
for _ in range(20):
    play(env, "train", 40)
counted["cut"] -= 1  # the last one is cut by the end of the script, not by a reset
counted["train"].pop()
"""
SHORTER_HORIZON = """
env = gym.make("CartPole-v1")
for _ in range(60):
    play(env, "train", 30)
env.reset()
"""
MAX_EPISODE_LENGTH = """
env, test_env = gym.make("Pendulum-v1"), gym.make("Pendulum-v1")
def test_agent():
    for _ in range(3):
        play(test_env, "eval", 25)
    test_env.reset()
for _ in range(5):
    for _ in range(3):
        play(env, "train", 50)
    test_agent()
env.reset()
"""
POPULATION = """
def evaluate_population(count):
    for _ in range(count):
        play(gym.make("CartPole-v1"), "train")
for _ in range(5):
    evaluate_population(10)
"""
INSIDE_A_TEST = """
def test_training():
    def evaluate(env):
        play(env, "eval")
    env, other = gym.make("CartPole-v1"), gym.make("Acrobot-v1")
    for _ in range(10):
        play(env, "train")
        evaluate(other)
test_training()
"""
NOOPS = """
class Noops(gym.Wrapper):
    def reset(self, **options):
        result = self.env.reset(**options)
        for _ in range(3):
            self.env.step(0)
        return result
env = Noops(gym.make("CartPole-v1"))
env.reset(seed=1)
steps = 0
for seed in range(10):
    env.reset(seed=seed)
    done = False
    while not done:
        _, _, terminated, truncated, _ = env.step(seed % 2)
        steps, done = steps + 1, terminated or truncated
    counted["train"].append(None)
counted["steps"] = steps
"""
VECTOR_EVALUATED = """
def run(envs, count, use):
    ended = 0
    for _ in range(count):
        _, _, terminated, truncated, _ = envs.step(envs.action_space.sample())
        ended += int((terminated | truncated).sum())
    counted[use] += [None] * ended
    counted["steps"] += 2 * count * (use == "train")
def evaluate(envs):
    envs.reset(seed=3)
    run(envs, 100, "eval")
if __name__ == "__main__":
    envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="{mode}")
    envs.action_space.seed(3)
    for _ in range(3):
        envs.reset(seed=1)
        run(envs, 150, "train")
        evaluate(envs)
    envs.close()
"""
REWARDS = """
class Rewards(gym.Env):
    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Discrete(100)
    def reset(self, **options):
        self.step_number = 0
        return 0, {}
    def step(self, action):
        self.step_number += 1
        return self.step_number, REWARD, self.step_number == 10, False, {}
env = Rewards()
for _ in range(20):
    play(env, "train")
"""
CASES = {
    "a baseline first": BASELINE_FIRST,
    "a baseline on the same environment": BASELINE_ON_THE_SAME,
    "two tables, each evaluated": TWO_TABLES,
    "a horizon of its own": OWN_HORIZON.replace("MAKE", "PendulumEnv()"),
    "without its wrappers": OWN_HORIZON.replace("MAKE", "gym.make('Pendulum-v1').unwrapped"),
    "a shorter horizon": SHORTER_HORIZON,
    "a maximal length": MAX_EPISODE_LENGTH,
    "a population is evaluated": POPULATION,
    "inside of a test": INSIDE_A_TEST,
    "steps in a reset": NOOPS,
    "a vector that is also evaluated on": VECTOR_EVALUATED.replace("{mode}", "sync"),
    "processes that are also evaluated on": VECTOR_EVALUATED.replace("{mode}", "async"),
    "two components": REWARDS.replace("REWARD,", "np.array([1.0, -0.25]),"),
    "a list": REWARDS.replace("REWARD,", "[1.0, -0.25],").replace("play(", "play_list("),
    "one element": REWARDS.replace("REWARD,", "np.array([0.5]),"),
}
CASES["a list"] = CASES["a list"].replace(
    "env = Rewards()",
    "def play_list(env, use):\n    env.reset()\n    while not env.step(0)[2]:\n        pass\n"
    '    counted["train"].append(7.5)\n    counted["steps"] += 10\nenv = Rewards()',
)


@pytest.mark.parametrize("code", CASES.values(), ids=CASES)
def test_steps_episodes_and_returns_are_those_that_the_script_counts(
    trainer: TrainerClient, tmp_path: Path, code: str
) -> None:
    """R6.1: episodes and scalars."""
    view = ended(trainer, start_script(trainer, tmp_path / "w", COUNT + code + END))
    assert view.outcome == "succeeded", view.reason
    run = RunFolder(view.run_dir)
    counted = json.loads(run.stdout_log("script").read_text())
    assert not events(run, "warning")
    assert (view.global_step, view.episodes, view.cut_episodes) == (
        counted["steps"],
        len(counted["train"]),
        counted["cut"],
    )
    shown = [row.episodic_return or 0.0 for row in trainer.episodes(view.run_id)]
    evaluated = [value for _, _, value in points(run).get("eval/episodic_return", [])]
    assert len(evaluated) == len(counted["eval"])
    if None not in counted["train"]:
        assert sorted(shown) == pytest.approx(sorted(counted["train"]), abs=1e-3)
        assert sorted(evaluated) == pytest.approx(sorted(counted["eval"]), abs=1e-3)


def test_what_was_recorded_as_training_is_corrected_when_it_turns_out_to_be_evaluation(
    trainer: TrainerClient, tmp_path: Path
) -> None:
    run = RunFolder(ended(trainer, start_script(trainer, tmp_path / "w", COUNT + BASELINE_FIRST + END)).run_dir)
    (revoked,) = events(run, "episodes_revoked")
    assert revoked["numbers"][0] == 1
    assert revoked["global_step"] <= 10_000


SECOND_TRAINING = """
def train(env, count):
    for _ in range(count):
        play(env, "train")
train(gym.make("CartPole-v1"), 5)
other = gym.make("CartPole-v1")
while True:
    train(other, 1)
"""


def test_a_second_training_is_shown_while_it_runs_and_outlives_a_kill(trainer: TrainerClient, tmp_path: Path) -> None:
    run_id = start_script(trainer, tmp_path / "w", COUNT + SECOND_TRAINING)
    wait_for(lambda: (trainer.get_run(run_id).global_step or 0) > 1000, "steps of the second training")
    seen = trainer.get_run(run_id)
    assert seen.pid is not None
    os.kill(seen.pid, signal.SIGKILL)
    view = ended(trainer, run_id)
    assert view.episodes >= seen.episodes > 5
    assert (view.global_step or 0) >= (seen.global_step or 0)


HANGING = """
import time
import gymnasium as gym
env = gym.make("CartPole-v1")
env.reset(seed=7)
episodes = 0
for _ in range(50):
    if any(env.step(0)[2:4]):
        env.reset()
        episodes += 1
print(episodes)
time.sleep(3600)
"""


def test_a_script_that_hangs_in_its_first_second_shows_all_its_steps(trainer: TrainerClient, tmp_path: Path) -> None:
    run_id = start_script(trainer, tmp_path / "w", HANGING)
    wait_for(lambda: trainer.get_run(run_id).global_step == 50, "all steps")
    view = wait_for(lambda: (view := trainer.get_run(run_id)).episodes and view, "the episodes")
    printed = RunFolder(view.run_dir).stdout_log("script").read_text()
    assert (view.stage, view.global_step, view.episodes) == ("running", 50, int(printed))
    assert view.pid is not None
    os.kill(view.pid, signal.SIGKILL)
    assert ended(trainer, run_id).global_step == 50


def test_a_script_that_aborts_shows_all_its_steps(trainer: TrainerClient, tmp_path: Path) -> None:
    code = HANGING.replace("time.sleep(3600)", "import os; os.abort()")
    view = ended(trainer, start_script(trainer, tmp_path / "w", code))
    assert (view.outcome, view.global_step) == ("failed", 50), view.reason


CHILD_PATHS = """
import os, subprocess, sys
os.environ["PYTHONPATH"] = "somewhere"
assert os.environ["PYTHONPATH"] == "somewhere"
code = "import gymnasium as gym; env = gym.make('CartPole-v1'); env.reset(); env.step(0); env.reset()"
subprocess.run([sys.executable, "-c", code], check=True)
subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": "elsewhere"}, check=True)
os.system(f'{sys.executable} -c "{code}"')
own = {**os.environ, "PYTHONPATH": "elsewhere"}
command = [sys.executable, "-c", code]
assert os.spawnve(os.P_WAIT, sys.executable, command, own) == 0
assert os.spawnvpe(os.P_WAIT, sys.executable, command, {os.fsencode(n): os.fsencode(v) for n, v in own.items()}) == 0
del own["PYTHONPATH"]
assert os.waitpid(os.posix_spawn(sys.executable, command, own), 0)[1] == 0
assert os.waitpid(os.posix_spawnp(sys.executable, command, own), 0)[1] == 0
try:
    os.execve(sys.executable, command, None)
except TypeError:
    pass
print(os.execve in os.supports_fd, flush=True)
exec(code + "; env.step(0)")
os.execvpe(sys.executable, command, own)
"""


def test_children_with_a_python_path_of_their_own_are_recorded(trainer: TrainerClient, tmp_path: Path) -> None:
    view = ended(trainer, start_script(trainer, tmp_path / "w", CHILD_PATHS))
    assert (view.outcome, view.global_step, view.episodes) == ("succeeded", 10, 9), view.reason
    assert RunFolder(view.run_dir).stdout_log("script").read_text() == "True\n"


def test_an_error_is_printed_as_without_the_probe(trainer: TrainerClient, tmp_path: Path) -> None:
    code = "import gymnasium\ngymnasium.make('Nothing-v0')\n"
    view = ended(trainer, start_script(trainer, tmp_path / "w", code))
    errors = RunFolder(view.run_dir).stderr_log("script").read_text()
    assert "_mosaic_probe" not in errors
    assert "in make" in errors


POOL = """
import multiprocessing
import gymnasium as gym
def play(seed):
    env = gym.make("CartPole-v1")
    env.reset(seed=seed)
    while not any(env.step(0)[2:4]):
        pass
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(play, range(8))
"""


def test_a_terminated_worker_process_reports_its_end_once(trainer: TrainerClient, tmp_path: Path) -> None:
    view = ended(trainer, start_script(trainer, tmp_path / "w", POOL))
    assert (view.outcome, view.episodes) == ("succeeded", 8)
    assert len(events(RunFolder(view.run_dir), "progress")) < 50


ENTRY_POINTS = {
    "click": (
        {},
        """
            import click
            import gymnasium as gym
            @click.command()
            @click.option("--total-timesteps", default=500)
            def main(total_timesteps):
                gym.make("CartPole-v1").reset()
            main()
        """,
    ),
    "fire": (
        {
            "fire/core.py": """
                def _CallAndUpdateTrace(component, args, trace):
                    return component(**dict(arg.lstrip("-").split("=") for arg in args))
            """
        },
        """
            import gymnasium as gym
            from fire import core
            def main(rate=0.5, steps=800):
                gym.make("CartPole-v1").reset()
            core._CallAndUpdateTrace(main, ["--steps=500"], None)
        """,
    ),
    "hydra": (
        {
            "hydra/core/utils.py": """
                class OmegaConf:
                    to_container = staticmethod(dict)
                def run_job(task_function, config):
                    return task_function(config)
            """
        },
        """
            import gymnasium as gym
            from hydra.core.utils import run_job
            run_job(lambda config: gym.make("CartPole-v1").reset(), {"algo": {"total_timesteps": 500}, "steps": 7})
        """,
    ),
}


@pytest.mark.parametrize(("modules", "code"), ENTRY_POINTS.values(), ids=ENTRY_POINTS)
def test_the_total_is_found_in_the_settings_of_other_entry_points(
    trainer: TrainerClient, tmp_path: Path, modules: dict[str, str], code: str
) -> None:
    """fire and hydra are stand-ins with the functions and arguments of the real ones."""
    for name, text in modules.items():
        path = tmp_path / "w" / name
        write_script(path.parent, text, path.name)
    view = ended(trainer, start_script(trainer, tmp_path / "w", textwrap.dedent(code)))
    assert (view.outcome, view.total_timesteps) == ("succeeded", 500)


def test_the_progress_of_lightning_is_the_share_of_its_steps(trainer: TrainerClient, tmp_path: Path) -> None:
    module = """
        class Trainer:
            max_steps, max_epochs, global_step, current_epoch = 200, -1, 0, 0
            def fit(self, step):
                for self.global_step in range(1, 101):
                    step()
    """
    code = """
        import gymnasium as gym
        from lightning.pytorch.trainer.trainer import Trainer
        env = gym.make("Pendulum-v1")
        env.reset()
        Trainer().fit(lambda: env.step(env.action_space.sample()))
    """
    write_script(tmp_path / "w" / "lightning" / "pytorch" / "trainer", module, "trainer.py")
    assert ended(trainer, start_script(trainer, tmp_path / "w", code)).fraction == 0.5
