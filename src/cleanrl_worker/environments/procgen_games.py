"""Procgen's games run by envpool: each episode is another level, seen as one color frame of 64 × 64 pixels.

There are no lives and no stacked frames, and rewards are not clipped.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.algorithms import base
from cleanrl_worker.environments.envpool_games import EnvpoolEnvs, EnvpoolGame, import_envpool, make_pool
from cleanrl_worker.environments.vector import EpisodeEnd
from mosaic.contracts.errors import BadInput, MissingExtra, UnknownName, unknown_name_error
from mosaic.worker.envs import make
from mosaic.worker.envs.families import DISTRIBUTION

Array = npt.NDArray[Any]
PROCGEN_EXTRA = "procgen"
FRAME_SIDE_PX, COLORS = 64, 3
SHAPE = (COLORS, FRAME_SIDE_PX, FRAME_SIDE_PX)
GAMES = (
    "bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot", "heist", "jumper",
    "leaper", "maze", "miner", "ninja", "plunder", "starpilot",
)  # fmt: skip
_QT_LIBRARIES = ("libQt5Core.so.5", "libQt5Gui.so.5")
_MODES = ("Easy", "Hard", "Extreme", "Memory", "Exploration")


class ProcgenTask(NamedTuple):
    """The envpool id of a Procgen game, with unlimited levels."""

    name: str

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        try:
            return gymnasium.spaces.Discrete(int(_import_games().make_spec(self.name).action_space.n))
        except ImportError as error:
            raise MissingExtra(
                f"envpool draws Procgen's games with Qt 5, which is missing: pip install "
                f"'{DISTRIBUTION}[{PROCGEN_EXTRA}]'. ({error})"
            ) from None

    def make_pool(self, seeds: Sequence[int], threads: int) -> Any:
        """Make a pool with one game per seed."""
        return make_pool(_import_games(), self.name, seeds, threads, num_levels=0, start_level=0)


def find_procgen_task(env_id: str) -> ProcgenTask:
    """Return the task of an envpool id (`StarpilotHard-v0`) or of a game's name, which is its easy mode."""
    name = f"{env_id.capitalize()}Easy-v0" if env_id in GAMES else env_id
    possible = {f"{game.capitalize()}{mode}-v0" for game in GAMES for mode in _MODES}
    if name in possible:
        possible &= set(_import_games().list_all_envs())
        if name in possible:
            return ProcgenTask(name)
    raise unknown_name_error("game", env_id, possible | set(GAMES), "Procgen")


def _import_games() -> Any:
    """Import envpool, which finds only the Qt 5 of the system: otherwise load that of the package PyQt5-Qt5."""
    envpool = import_envpool(PROCGEN_EXTRA)
    games = sys.modules.get("envpool.procgen")
    if games is not None and "ProcgenEnvSpec" not in vars(games):
        package = importlib.util.find_spec("PyQt5")
        for folder in (package and package.submodule_search_locations) or ():
            for path in (Path(folder) / "Qt5" / "lib" / library for library in _QT_LIBRARIES):
                if path.exists():
                    ctypes.CDLL(str(path))
        importlib.reload(games)
    return envpool


# --- a single game


class ProcgenGame(EnvpoolGame):
    """A game for evaluation."""

    def __init__(self, env_id: str, render_mode: str | None = None) -> None:
        self._task = find_procgen_task(env_id)
        self._pool: Any = None
        self.spec = gymnasium.envs.registration.EnvSpec(env_id, "envpool:make")
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, SHAPE, np.uint8)
        self.action_space = self._task.action_space

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        observations, rewards, terminations, truncations, _ = self._pool.step(np.array([action]))
        return observations[0], float(rewards[0]), bool(terminations[0]), bool(truncations[0]), {}


def make_procgen_env(env_id: str, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Make one game; an environment of another family is returned as it is, for `check_procgen_env` to refuse."""
    try:
        return ProcgenGame(env_id, render_mode)
    except UnknownName as error:
        try:
            return make(env_id)
        except BadInput:
            raise error from None


def check_procgen_env(algorithm: str, env: gymnasium.Env[Any, Any]) -> int:
    """Raise unless this is a Procgen game; return the number of actions."""
    if not isinstance(env, ProcgenGame):
        raise BadInput(
            f"{algorithm} needs a Procgen game; {base.env_name(env)} is not one. {base.suggest_algorithms(env)}"
        )
    actions: Any = env.action_space
    return int(actions.n)


# --- several games


class ProcgenEnvs(EnvpoolEnvs):
    """`num_envs` games of a task. An observation is a frame: bytes [3, 64, 64]."""

    shape = SHAPE

    def _game_rewards(self, rewards: Array, info: Mapping[str, Array]) -> Array:
        return rewards

    def _restart_ended(
        self, observations: Array, ended_indices: Array, info: Mapping[str, Array], truncations: Array
    ) -> Sequence[EpisodeEnd]:
        endings = [
            self._make_episode_end(index, observations[index].copy(), not truncations[index], truncations[index])
            for index in ended_indices.tolist()
        ]
        if endings[0].env == 0:
            self._finish_video()
        observations[ended_indices], *_ = self._pool.step(
            np.zeros(len(ended_indices), np.int32), ended_indices.astype(np.int32)
        )
        for ending in endings:
            self._begin_game(ending.env)
        if endings[0].env == 0:
            self._pictures.start_video()
        return endings
