"""Proximal policy optimization for multiplayer Atari games of PettingZoo.

All players share one convolutional policy, which sees the latest four frames and which player it acts for; each learns
from its own rewards, so that it plays against or with itself. Use it for games such as Pong for two. For one player use
ppo_atari; for several agents without frames use ppo_pettingzoo.

Paper: Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms", arXiv:1707.06347 (2017).
Games: Terry, Black, "Multiplayer Support for the Arcade Learning Environment", arXiv:2009.09341 (2020).
"""

from __future__ import annotations

import functools
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from cleanrl_worker.algorithms import base, ppo_atari
from cleanrl_worker.algorithms.ppo_atari import SIZES, Agent, image_policy, loss, make_learner, state_dict_of
from cleanrl_worker.algorithms.settings import COMPUTE, ROLLOUT, RUN
from cleanrl_worker.environments.agent_rows import AgentRows, check_rows
from cleanrl_worker.environments.vector import EpisodeEnd
from cleanrl_worker.loops.on_policy_frames import describe_run
from mosaic.contracts.errors import BadInput
from mosaic.contracts.payload import EnvId
from mosaic.worker.envs.teams import PETTINGZOO_PREFIX, TeamEnv, make_team_env

if TYPE_CHECKING:
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

__all__ = ["Agent", "Config", "check", "load_policy", "loss", "make_env", "make_learner", "state_dict_of", "train"]
Array = npt.NDArray[Any]
NAME = "ppo_pettingzoo_ma_atari"
make_env = make_team_env
"""Makes the environment that `check` gets."""


class Config(ppo_atari.Config, defaults={"exp_name": NAME, "total_timesteps": 20_000_000}):
    """Settings of PPO for multiplayer Atari games."""

    takes_network: ClassVar[bool] = False

    env_id: EnvId = Field(default="pettingzoo/pong_v3", json_schema_extra=RUN)
    """The game to train in, by its name in PettingZoo: `pong_v3` or `pettingzoo/pong_v3`."""
    num_envs: int = Field(default=16, ge=1, le=4096, json_schema_extra=ROLLOUT)
    """The number of players in all parallel games; a multiple of those of one game."""
    env_processes: Literal[1] = Field(default=1, json_schema_extra=COMPUTE)
    """Always 1: the games are stepped by one process."""

    @field_validator("env_id", mode="after")
    @classmethod
    def _add_prefix(cls, env_id: str) -> str:
        return env_id if "/" in env_id else f"{PETTINGZOO_PREFIX}{env_id}"


def check(config: Config, env: TeamEnv) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    if not env.has_frames:
        raise BadInput(f"{NAME} needs a multiplayer Atari game; {config.env_id} is not one. This fits: ppo_pettingzoo.")
    check_rows(config.env_id, config.num_envs, len(env.agents))
    actions, channels = int(env.action_spaces[0].n), env.observation_spaces[0].shape[0]
    return describe_run(Agent(actions, SIZES._replace(hidden=config.hidden_sizes), channels), actions, channels)


class Training(ppo_atari.Training):
    """Each player is a row; what a player that has left would see is not learned from."""

    name = NAME
    games: Any

    def minibatches(self) -> Array:
        present = np.flatnonzero(~self.games.is_absent.reshape(-1))
        # Others fill the places of absent rows, because minibatches have a fixed size.
        rows = np.resize(self.rng.permutation(present), self.config.batch_size)
        return rows.reshape(self.config.num_minibatches, -1)

    def report_episode(self, episode_end: EpisodeEnd) -> None:
        """Report a player's score under CleanRL's names, and with the end of the game the sum over its players."""
        player = episode_end.env % len(self.games.agents)
        self.run.scalar(f"charts/episodic_return-player{player}", episode_end.episodic_return, self.global_step)
        self.run.scalar(f"charts/episodic_length-player{player}", episode_end.length, self.global_step)
        game_end = self.games.take_team_end(episode_end.env)
        if game_end is not None:
            super().report_episode(game_end)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    make_one = functools.partial(make_env, config.env_id, **config.env_settings)
    games: Any = AgentRows(make_one, config.num_envs, config.seed, run.frames, clips_rewards=True)
    with closing(games):
        agent = Agent(games.action_count, SIZES._replace(hidden=config.hidden_sizes), games.shape[0])
        Training(config, run, games, agent).train(resume)


class PlayersPolicy:
    """Acts for all players of a game: observations [n, players, channels, 84, 84] to actions [n, players]."""

    def __init__(self, policy: base.TrainedPolicy) -> None:
        self._policy = policy

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        rows = observations.reshape(-1, *observations.shape[2:])
        return self._policy.act(rows, deterministic, rng).reshape(observations.shape[:2])


def load_policy(checkpoint: Checkpoint) -> PlayersPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    return PlayersPolicy(image_policy(NAME, checkpoint))
