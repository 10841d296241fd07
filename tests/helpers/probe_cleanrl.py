"""A checkout with our own script in CleanRL's style, without dependencies beyond gymnasium."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.probe_scripts import write_script

SCRIPT = '''
    """Takes random actions and logs like CleanRL."""
    import argparse
    import os
    import time
    from dataclasses import dataclass, fields
    from typing import Literal, Optional

    import gymnasium as gym
    from torch.utils.tensorboard import SummaryWriter


    @dataclass
    class Args:
        exp_name: str = os.path.basename(__file__)[: -len(".py")]
        """the name of this experiment"""
        seed: int = 1
        """seed of the experiment"""
        capture_video: bool = False
        """whether to capture videos"""
        env_id: str = "CartPole-v1"
        """the id of the environment"""
        total_timesteps: int = int(2e3)
        """total timesteps of the experiments"""
        learning_rate: float = 3
        """the learning rate"""
        num_envs: int = 2 * 2
        """the number of environments"""
        anneal: bool = True
        """toggle annealing"""
        target_kl: float = None
        """the target, if any"""
        limit: Optional[int] = 5
        start: "float | None" = -0.5
        kind: Literal["a", "b"] = "a"
        """which one"""
        sizes: tuple = (1, 2)
        when: float = time.time()
        """start time"""
        batch_size: int = 0
        """the batch size (computed in runtime)"""


    def parse_args():
        parser = argparse.ArgumentParser()
        for field in fields(Args):
            flag = "--" + field.name.replace("_", "-")
            if isinstance(field.default, bool):
                parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=field.default)
            else:
                parser.add_argument(flag, type=type(field.default or 0.0), default=field.default)
        return parser.parse_args()


    def make_env(env_id):
        def thunk():
            return gym.wrappers.TransformObservation(
                gym.wrappers.RecordEpisodeStatistics(gym.make(env_id)), lambda observation: observation * 1
            )
        return thunk


    if __name__ == "__main__":
        args = parse_args()
        writer = SummaryWriter(f"runs/{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}")
        writer.add_text("hyperparameters", str(vars(args)))
        envs = gym.vector.SyncVectorEnv([make_env(args.env_id) for _ in range(args.num_envs)])
        observations, _ = envs.reset(seed=args.seed)
        envs.action_space.seed(args.seed)
        global_step = 0
        while global_step < args.total_timesteps:
            global_step += args.num_envs
            observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
            if "final_info" in infos:
                for index, info in enumerate(infos["final_info"]):
                    if info and "episode" in info:
                        assert infos["final_observation"][index].shape == observations[index].shape
                        print(f"global_step={global_step}, episodic_return={info['episode']['r']}")
                        writer.add_scalar("charts/episodic_return", info["episode"]["r"], global_step)
                        writer.add_scalar("charts/episodic_length", info["episode"]["l"], global_step)
            if global_step % 400 == 0:
                writer.add_scalar("charts/learning_rate", args.learning_rate, global_step)
        with open(f"runs/{args.exp_name}.flags", "w") as file:
            file.write(repr(sorted(vars(args).items())))
        envs.close()
        writer.close()
'''


def make_checkout(path: Path) -> Path:
    write_script(path / "cleanrl", SCRIPT, "walk.py")
    write_script(path / "cleanrl", "import os\nprint('no Args here')\n", "other.py")
    write_script(path / "cleanrl_utils", "", "__init__.py")
    return path
