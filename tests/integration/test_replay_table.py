"""Sessions of random actors in 50 configurations are simulated again, with the observations that they had.

`make test` takes a sample. MOSAIC_FULL_SWEEP=1 takes all whose packages are installed, and writes a row of a table for
each to the file MOSAIC_REPLAY_TABLE: steps, bytes per step, compared hashes of observations, and the hash of these.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.daemons import ended
from tests.helpers.sessions import recording_of, trainer

from mosaic.contracts.errors import BadInput
from mosaic.features.play.core import build_play_payload
from mosaic.features.replay.api import replay_episodes
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.worker.envs.reproducible import hash_observation
from mosaic.worker.recording import Recording

__all__ = ["trainer"]
IS_FULL = bool(os.environ.get("MOSAIC_FULL_SWEEP"))
SEED, EPISODES, MAX_STEPS = 41, 3, 300
CONFIGURATIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("MiniGrid-KeyCorridorS3R3-v0", {}),
    ("MiniGrid-DoorKey-8x8-v0", {}),
    ("MiniGrid-MultiRoom-N4-S5-v0", {}),
    ("MiniGrid-Dynamic-Obstacles-8x8-v0", {}),
    ("BabyAI-GoToObj-v0", {}),
    ("ALE/Pong-v5", {"repeat_action_probability": 0.25, "frameskip": 4}),
    ("ALE/Pong-v5", {"repeat_action_probability": 0.5, "frameskip": 1}),
    ("ALE/Breakout-v5", {"mode": 4, "difficulty": 1, "frameskip": 8}),
    ("ALE/Breakout-v5", {"obs_type": "ram", "full_action_space": True}),
    ("ALE/Breakout-v5", {"frameskip": [2, 5]}),
    ("Blackjack-v1", {"natural": True}),
    ("Blackjack-v1", {"sab": True}),
    ("CarRacing-v3", {}),
    ("CarRacing-v3", {"domain_randomize": True, "continuous": False}),
    ("BipedalWalker-v3", {}),
    ("BipedalWalker-v3", {"hardcore": True}),
    ("BipedalWalkerHardcore-v3", {}),
    ("LunarLander-v3", {"enable_wind": True, "wind_power": 15.0, "turbulence_power": 1.5}),
    ("LunarLander-v3", {"continuous": True, "enable_wind": True}),
    ("Humanoid-v5", {}),
    ("HumanoidStandup-v5", {}),
    ("Walker2d-v5", {}),
    ("Ant-v5", {}),
    ("Reacher-v5", {}),
    ("HalfCheetah-v5", {}),
    ("CartPole-v1", {}),
    ("Pendulum-v1", {}),
    ("Acrobot-v1", {}),
    ("MountainCar-v0", {}),
    ("MountainCarContinuous-v0", {}),
    ("Taxi-v4", {"is_rainy": True}),
    ("Taxi-v4", {"is_rainy": True, "fickle_passenger": True}),
    ("CliffWalking-v1", {"is_slippery": True}),
    ("FrozenLake-v1", {"map_name": "8x8", "success_rate": 0.9}),
    ("FrozenLake-v1", {"desc": ["SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF", "FFFHFFFF", "FHHFFFHF", "FHFFHFHF",
                                "FFFHFFFG"]}),
    ("FrozenLake-v1", {"map_name": None}),
    ("pettingzoo/connect_four_v3", {}),
    ("pettingzoo/tictactoe_v3", {}),
    ("pettingzoo/go_v5", {"board_size": 19}),
    ("pettingzoo/go_v5", {"board_size": 9}),
    ("pettingzoo/rps_v2", {}),
    ("pettingzoo/chess_v6", {}),
    ("pettingzoo/texas_holdem_v4", {}),
    ("pettingzoo/texas_holdem_no_limit_v6", {}),
    ("pettingzoo/leduc_holdem_v4", {}),
    ("pettingzoo/simple_spread_v3", {}),
    ("pettingzoo/simple_tag_v3", {"continuous_actions": True}),
    ("pettingzoo/knights_archers_zombies_v11", {}),
    ("pettingzoo/cooperative_pong_v6", {}),
    ("pettingzoo/pistonball_v6", {}),
)  # fmt: skip
SAMPLE = (("FrozenLake-v1", {"map_name": None}), ("pettingzoo/simple_tag_v3", {"continuous_actions": True}))


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    rows: list[str] = []
    yield rows
    if path := os.environ.get("MOSAIC_REPLAY_TABLE"):
        Path(path).write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.mark.parametrize(("env_id", "settings"), CONFIGURATIONS if IS_FULL else SAMPLE)
def test_a_session_is_simulated_again_with_its_observations(
    trainer: TrainerClient, table: list[str], env_id: str, settings: dict[str, Any]
) -> None:
    given = {"seed": SEED, "episodes": EPISODES, "max_steps": MAX_STEPS, "env_kwargs": settings}
    title = f"{env_id} {json.dumps(settings) if settings else ''}".strip()
    try:
        run_id = trainer.submit(build_play_payload(trainer, env_id, {"*": "random"}, given)).run_id
    except BadInput as error:
        if "pip install" not in str(error):
            raise
        table.append(f"| {title} | | | | | not installed |")
        pytest.skip(str(error))
    assert ended(trainer, run_id).outcome == "succeeded"
    path = recording_of(trainer, run_id)
    reports = list(replay_episodes(path))
    with Recording(path) as recording:
        hashes = [value for episode in recording.episodes() for _, value in episode.hashes]
    steps = sum(report.steps for report in reports)
    verdict = "; ".join(sorted({report.describe() for report in reports}))
    size = path.stat().st_size / steps
    table.append(f"| {title} | {steps} | {size:.1f} | {len(hashes)} | {hash_observation(hashes):08x} | {verdict} |")
    assert [report.is_identical for report in reports] == [True] * EPISODES
    assert {report.compared for report in reports} == {("rewards", "ending", "observations")}
