"""Proximal policy optimization for Atari games run by envpool.

The same agent as ppo_atari: it sees the latest four frames through three convolutions, collects a rollout from several
games, and updates the policy on it for a few epochs. One call into envpool steps all games in its own threads. Use it
with many games on many cores, or with a GPU that should not wait for the games; on one core it is no faster than
ppo_atari, which resumes games exactly.

Paper: Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms", arXiv:1707.06347 (2017).
Games: Weng et al., "EnvPool: A Highly Parallel Reinforcement Learning Environment Execution Engine", arXiv:2206.10558.
"""

from __future__ import annotations

import functools
from contextlib import closing
from typing import TYPE_CHECKING, Any

import gymnasium

from cleanrl_worker.algorithms import base, ppo_atari
from cleanrl_worker.algorithms.ppo_atari import SIZES, Agent, image_policy, loss, make_learner, state_dict_of
from cleanrl_worker.algorithms.settings import EnvpoolConfig
from cleanrl_worker.environments.envpool_games import check_envpool_env, make_envpool_env, open_games
from cleanrl_worker.loops.on_policy_frames import AverageReturn, describe_run

if TYPE_CHECKING:
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

__all__ = ["Agent", "Config", "check", "load_policy", "loss", "make_env", "make_learner", "state_dict_of", "train"]
NAME = "ppo_atari_envpool"
STICKINESS = 0.0
"""The probability of repeating the previous action, unless the game's id determines it."""
make_env = functools.partial(make_envpool_env, repeat_action_probability=STICKINESS)
"""Makes the environment that `check` gets."""


class Config(EnvpoolConfig, ppo_atari.Config, defaults={"exp_name": NAME}):
    """Settings of PPO for Atari games in envpool."""


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    actions = check_envpool_env(NAME, env)
    return describe_run(Agent(actions, SIZES.with_architecture(config.architecture)), actions)


class Training(AverageReturn, ppo_atari.Training):
    name = NAME


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    with closing(open_games(config, STICKINESS, run.frames)) as games:
        agent = Agent(games.action_count, SIZES.with_architecture(config.architecture))
        Training(config, run, games, agent).train(resume)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    return image_policy(NAME, checkpoint)
