"""Scripts that train and evaluate: only training counts in step, progress and return."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest
from tests.helpers import shared_daemon
from tests.helpers.daemons import ended
from tests.helpers.probe_scripts import SKIP, episodes, points, start_script

from mosaic.contracts.folder import RunFolder
from mosaic.trainer.client.trainer_client import TrainerClient

plugins, workspace, live, trainer = shared_daemon.FIXTURES
BASELINES = os.environ.get("MOSAIC_TEST_VENV_SB3", "")
PLAY = """
    import gymnasium as gym
    def play(env, limit=100_000):
        env.reset(seed=1)
        env.action_space.seed(1)
        for length in range(1, limit + 1):
            if any(env.step(env.action_space.sample())[2:4]):
                return length
"""
INTERLEAVED = (
    PLAY
    + """
    train_env, other_env = gym.make("CartPole-v1"), gym.make("Acrobot-v1")
    trained = 0
    for _ in range(6):
        trained += play(train_env)
        play(other_env)
    trained += play(train_env)
    print(trained)
"""
)
NAMED = (
    PLAY
    + """
    def evaluate(env):
        return play(env)
    print(sum(play(gym.make("CartPole-v1")) for _ in range(7)))
    other_env = gym.make("Acrobot-v1")
    for _ in range(6):
        evaluate(other_env)
"""
)
VECTOR = """
    import gymnasium as gym
    def steps(envs, count):
        for _ in range(count):
            envs.step(envs.action_space.sample())
    envs = gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="{mode}")
    def evaluate(envs):
        envs.reset(seed=2)
        steps(envs, 500)
    other_envs = gym.make_vec("Acrobot-v1", num_envs=2, vectorization_mode="{mode}")
    envs.reset(seed=1)
    steps(envs, 200)
    evaluate(other_envs)
    steps(envs, 200)
    envs.close()
    other_envs.close()
    print(1200)
"""


@pytest.mark.parametrize(
    "code", [INTERLEAVED, NAMED, VECTOR.format(mode="sync"), VECTOR.format(mode="async")], ids=range(4)
)
def test_an_evaluation_has_its_own_curves_and_is_not_counted(trainer: TrainerClient, tmp_path: Path, code: str) -> None:
    run_id = start_script(trainer, tmp_path / "w", code)
    view = ended(trainer, run_id)
    assert view.outcome == "succeeded", view.reason
    run = RunFolder(view.run_dir)
    assert view.global_step == int(run.stdout_log("script").read_text())
    returns = [row[4] for row in episodes(run)]
    assert len(returns) >= 7
    assert min(returns) > 0, "CartPole's returns are positive, Acrobot's are negative"
    evaluated = points(run)["eval/episodic_return"]
    assert max(value for _, _, value in evaluated) < 0
    assert len(evaluated) == len(points(run)["eval/episodic_length"]) >= 2
    assert view.episodes == len(returns)


@pytest.mark.parametrize(
    "code",
    [
        "envs = [gym.make('CartPole-v1') for _ in range(3)]\nfor env in envs * 4: print(play(env))",
        "for seed in range(12): print(play(gym.make('CartPole-v1')))",
        """
first, second = gym.make("CartPole-v1"), gym.make("CartPole-v1")
for _ in range(6):
    running = [first, second]
    for env in running:
        env.reset()
    lengths = {first: 0, second: 0}
    while running:
        for env in list(running):
            lengths[env] += 1
            if any(env.step(env.action_space.sample())[2:4]):
                running.remove(env)
                print(lengths[env])
""",
    ],
    ids=["in turn, by episode", "one after the other", "in turn, by step"],
)
def test_several_environments_that_are_trained_on_all_count(trainer: TrainerClient, tmp_path: Path, code: str) -> None:
    run_id = start_script(trainer, tmp_path / "w", textwrap.dedent(PLAY) + code)
    view = ended(trainer, run_id)
    assert view.outcome == "succeeded", view.reason
    lengths = [int(line) for line in RunFolder(view.run_dir).stdout_log("script").read_text().split()]
    assert (view.global_step, view.episodes) == (sum(lengths), 12)


def test_frames_that_a_vectorized_wrapper_skips_are_not_counted(trainer: TrainerClient, tmp_path: Path) -> None:
    code = (
        SKIP
        + """
    envs = gym.vector.SyncVectorEnv([lambda: Skip(gym.make("CartPole-v1"))] * 2)
    envs.reset(seed=1)
    for _ in range(100):
        envs.step(envs.action_space.sample())
"""
    )
    assert ended(trainer, start_script(trainer, tmp_path / "w", code)).global_step == 200


@pytest.mark.skipif(not BASELINES, reason="MOSAIC_TEST_VENV_SB3 is not set to an environment with stable-baselines3")
@pytest.mark.parametrize("kind", ["DummyVecEnv", "SubprocVecEnv"])
def test_evaluations_of_stable_baselines_are_not_counted(trainer: TrainerClient, tmp_path: Path, kind: str) -> None:
    code = f"""
        from stable_baselines3 import PPO
        from stable_baselines3.common.callbacks import EvalCallback
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.evaluation import evaluate_policy
        from stable_baselines3.common.vec_env import {kind}
        if __name__ == "__main__":
            envs = make_vec_env("CartPole-v1", 4, seed=1, vec_env_cls={kind})
            eval_envs = make_vec_env("CartPole-v1", 2, seed=2, vec_env_cls={kind})
            model = PPO("MlpPolicy", envs, n_steps=64, seed=1, device="cpu")
            evaluate_policy(model, eval_envs, 2)
            model.learn(512, callback=EvalCallback(eval_envs, eval_freq=64, n_eval_episodes=3, verbose=0))
            model.learn(512, reset_num_timesteps=False)
            print(len(model.ep_info_buffer), sum(episode["r"] for episode in model.ep_info_buffer))
            envs.close()
            eval_envs.close()
    """
    run_id = start_script(trainer, tmp_path / "w", code, python=f"{BASELINES}/bin/python")
    view = ended(trainer, run_id)
    assert view.outcome == "succeeded", view.reason
    run = RunFolder(view.run_dir)
    assert (view.global_step, view.total_timesteps) == (1024, 1024)
    count, total = run.stdout_log("script").read_text().split()[-2:]
    assert (view.episodes, sum(row[4] for row in episodes(run))) == (int(count), pytest.approx(float(total)))
    assert len(points(run)["eval/episodic_return"]) >= 8
