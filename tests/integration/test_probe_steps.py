"""The step and the total of scripts: counted where the script itself steps, added over its processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.helpers import shared_daemon
from tests.helpers.daemons import ended
from tests.helpers.probe_scripts import SKIP, episodes, events, points, start_script, write_script

from mosaic.contracts.folder import RunFolder
from mosaic.contracts.views import RunView
from mosaic.trainer.client.trainer_client import TrainerClient

plugins, workspace, live, trainer = shared_daemon.FIXTURES
PLAY = (
    SKIP
    + """
    class NoopReset(gym.Wrapper):
        def reset(self, **kwargs):
            result = self.env.reset(**kwargs)
            for _ in range(3):
                self.env.step(0)
            return result
    def play(env, limit=100_000):
        env.reset(seed=1)
        env.action_space.seed(1)
        for length in range(1, limit + 1):
            if any(env.step(env.action_space.sample())[2:4]):
                return length
"""
)


def run_script(trainer: TrainerClient, folder: Path, code: str, *args: str) -> RunView:
    view = ended(trainer, start_script(trainer, folder, code, *args))
    assert view.outcome == "succeeded", view.reason
    assert not events(RunFolder(view.run_dir), "warning")
    return view


def printed_numbers(view: RunView) -> list[int]:
    return [int(word) for word in RunFolder(view.run_dir).stdout_log("script").read_text().split()]


def test_steps_are_counted_at_the_wrapper_that_the_script_steps(trainer: TrainerClient, tmp_path: Path) -> None:
    code = (
        PLAY
        + """
    total = 0
    for wrap in (
        Skip,
        lambda env: gym.wrappers.RecordEpisodeStatistics(Skip(NoopReset(env))),
        lambda env: env,
        lambda env: gym.wrappers.TimeLimit(Skip(Skip(env)), 50),
    ):
        env = wrap(gym.make("CartPole-v1"))
        total += sum(play(env) for _ in range(3))
    env = gym.make("CartPole-v1")
    total += play(env) + play(Skip(env)) + play(env) + play(Skip(gym.wrappers.OrderEnforcing(env)))
    print(total)
"""
    )
    view = run_script(trainer, tmp_path / "w", code)
    assert [view.global_step] == printed_numbers(view)
    assert view.episodes == 16


def test_episodes_of_a_frame_skipping_child_process_lie_at_the_scripts_own_steps(
    trainer: TrainerClient, tmp_path: Path
) -> None:
    code = (
        SKIP
        + """
    if __name__ == "__main__":
        envs = gym.vector.AsyncVectorEnv([lambda: Skip(gym.make("CartPole-v1"))] * 2)
        envs.reset(seed=1)
        for _ in range(100):
            envs.step(envs.action_space.sample())
        envs.close()
"""
    )
    view = run_script(trainer, tmp_path / "w", code)
    assert view.global_step == 200
    assert 100 < max(row[2] for row in episodes(RunFolder(view.run_dir))) <= 200


WORKERS = """
    import argparse, os, subprocess, sys
    import gymnasium as gym
    def train(seed):
        env = gym.make("CartPole-v1")
        env.reset(seed=seed)
        for _ in range(5):
            while not any(env.step(env.action_space.sample())[2:4]):
                pass
            env.reset()
    if __name__ == "__main__":
        parser = argparse.ArgumentParser()
        parser.add_argument("--total-timesteps", type=int)
        parser.add_argument("--rank", type=int)
        parser.add_argument("--how")
        args = parser.parse_args()
        if args.how is None:
            train(args.rank or 0)
        elif args.how == "fork":
            for seed in range(3):
                if not os.fork():
                    train(seed)
                    os._exit(0)
            for seed in range(3):
                os.wait()
        else:
            children = []
            for rank in range(3):
                environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3"}
                environment = environment if args.how == "torchrun" else None
                command = [sys.executable, __file__, "--total-timesteps", "700", "--rank", str(rank)]
                children.append(subprocess.Popen(command, env=environment))
            for child in children:
                child.wait()
"""


@pytest.mark.parametrize(("how", "total"), [("fork", 900), ("subprocess", 2100), ("torchrun", 700)])
def test_steps_are_added_over_processes(trainer: TrainerClient, tmp_path: Path, how: str, total: int) -> None:
    view = run_script(trainer, tmp_path / "w", WORKERS, "--how", how, "--total-timesteps", "900")
    rows = episodes(RunFolder(view.run_dir))
    assert (view.episodes, view.global_step) == (15, sum(row[5] for row in rows))
    assert view.total_timesteps == total


def test_a_process_that_only_evaluates_is_not_counted(trainer: TrainerClient, tmp_path: Path) -> None:
    code = (
        PLAY
        + """
    import multiprocessing
    def test():
        play(gym.make("Acrobot-v1"))
    if __name__ == "__main__":
        child = multiprocessing.get_context("fork").Process(target=test)
        child.start()
        print(sum(play(gym.make("CartPole-v1")) for _ in range(3)))
        child.join()
"""
    )
    view = run_script(trainer, tmp_path / "w", code)
    assert [view.global_step] == printed_numbers(view)
    assert (view.episodes, len(points(RunFolder(view.run_dir))["eval/episodic_return"])) == (3, 1)


BARS = """
    import tqdm
    import gymnasium as gym
    envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    env = gym.make("CartPole-v1")
    def step():
        envs.step(envs.action_space.sample())
    def play():
        env.reset(seed=1)
        while not any(env.step(env.action_space.sample())[2:4]):
            pass
    envs.reset(seed=1)
    options = {"mininterval": 0, "miniters": 1}
"""


@pytest.mark.parametrize(
    ("code", "total", "fraction"),
    [
        ("for _ in tqdm.trange(100, **options): step()", 200, 1.0),
        ("for _ in tqdm.tqdm(range(40), **options):\n        for _ in range(16): step()", 1280, 1.0),
        ("for done in tqdm.trange(20, **options):\n        play()\n        if done == 9: break", None, 0.45),
        ("for _ in range(3):\n        for _ in tqdm.trange(50, **options): step()", None, None),
        ("for _ in range(3):\n        for _ in tqdm.trange(50, disable=True): step()", None, None),
    ],
    ids=["steps", "iterations", "episodes", "a bar per epoch", "disabled"],
)
def test_a_progress_bar_gives_the_total_or_the_fraction_that_is_done(
    trainer: TrainerClient, tmp_path: Path, code: str, total: int | None, fraction: float | None
) -> None:
    view = run_script(trainer, tmp_path / "w", BARS + f"    {code}\n")
    assert (view.total_timesteps, view.fraction) == (total, fraction)


TRAINERS = {
    "skrl/trainers/torch/base.py": """
        class Trainer:
            def __init__(self, *, cfg, env):
                self.cfg, self.env = cfg, env
            def train(self):
                for _ in range(self.cfg.timesteps):
                    self.env.step()
            eval = train
    """,
    "torchrl/collectors/_base.py": """
        class BaseCollector:
            def __init__(self, env, total_frames):
                self.env, self.total_frames = env, total_frames
            def __iter__(self):
                for _ in range(0, self.total_frames, 2):
                    yield self.env.step()
    """,
    "tianshou/trainer.py": """
        class Trainer:
            def __init__(self, params, env, test_env):
                self.params, self.env, self.test_env = params, env, test_env
            def run(self):
                self._test_step()
                for _ in range(self.params.max_epochs):
                    for _ in range(0, self.params.epoch_num_steps, 2):
                        self.env.step()
                    self._test_step()
            def _test_step(self):
                for _ in range(30):
                    self.test_env.step()
        class OnlineTrainer(Trainer):
            pass
    """,
}
USES = {
    "skrl": """
        from skrl.trainers.torch.base import Trainer
        trainer = Trainer(cfg=SimpleNamespace(timesteps=50), env=Stepper())
        trainer.train()
        trainer.eval()
        trainer.train()
    """,
    "torchrl": """
        from torchrl.collectors._base import BaseCollector
        list(BaseCollector(Stepper(), 120))
        list(BaseCollector(Stepper(), 80))
    """,
    "tianshou": """
        from tianshou.trainer import OnlineTrainer
        OnlineTrainer(SimpleNamespace(max_epochs=2, epoch_num_steps=100), Stepper(), Stepper()).run()
    """,
}
STEPPER = """
        from types import SimpleNamespace
        import gymnasium as gym
        class Stepper:
            num_envs = 2
            def __init__(self):
                self.envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
                self.envs.reset(seed=1)
            def step(self):
                self.envs.step(self.envs.action_space.sample())
"""


@pytest.mark.parametrize(("library", "evaluated"), [("skrl", True), ("torchrl", False), ("tianshou", True)])
def test_the_total_is_that_of_the_trainer(
    trainer: TrainerClient, tmp_path: Path, library: str, evaluated: bool
) -> None:
    """The trainers are stand-ins with the classes, methods and fields of the real libraries, which are too heavy."""
    folder = tmp_path / "w"
    for name, code in TRAINERS.items():
        path = folder / name
        write_script(path.parent, code, path.name)
    view = run_script(trainer, folder, STEPPER + USES[library])
    assert (view.global_step, view.total_timesteps) == (200, 200)
    assert ("eval/episodic_return" in points(RunFolder(view.run_dir))) == evaluated


def test_environments_in_processes_can_be_trained_and_evaluated_on(trainer: TrainerClient, tmp_path: Path) -> None:
    """The trainer is a stand-in for that of skrl."""
    folder = tmp_path / "w"
    write_script(folder / "skrl" / "trainers" / "torch", TRAINERS["skrl/trainers/torch/base.py"], "base.py")
    code = """
        from types import SimpleNamespace
        import gymnasium as gym
        from skrl.trainers.torch.base import Trainer
        class Stepper:
            num_envs, ended = 2, 0
            def __init__(self):
                self.envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="async")
                self.envs.reset(seed=1)
                self.envs.action_space.seed(1)
            def step(self):
                _, _, terminated, truncated, _ = self.envs.step(self.envs.action_space.sample())
                self.ended += int((terminated | truncated).sum())
        env = Stepper()
        trainer = Trainer(cfg=SimpleNamespace(timesteps=100), env=env)
        for use in (trainer.train, trainer.eval, trainer.train):
            env.ended = 0
            use()
            print(env.ended)
        env.envs.close()
    """
    view = run_script(trainer, folder, code)
    trained, evaluated, trained_again = printed_numbers(view)
    assert (view.global_step, view.episodes) == (400, trained + trained_again)
    assert max(row[2] for row in episodes(RunFolder(view.run_dir))) <= 400
    assert len(points(RunFolder(view.run_dir))["eval/episodic_return"]) == evaluated > 0
