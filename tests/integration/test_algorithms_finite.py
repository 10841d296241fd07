"""A value that is not finite ends a run of any algorithm at its step, and the previous checkpoint stays the last."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.algorithm_cases import NanRewardEnv, events, latest_checkpoint, open_run, register_env

from cleanrl_worker.learners.conv_network import ConvNetworkSizes
from cleanrl_worker.registry import ALGORITHMS, load_algorithm
from mosaic.contracts.errors import MosaicError
from mosaic.worker.checkpoints import Checkpoint

EACH = pytest.mark.parametrize("name", [name for name, entry in ALGORITHMS.items() if entry.is_suggested])
SMALL: dict[str, Any] = {
    "total_timesteps": 64, "checkpoint_every": 8, "num_envs": 1, "num_steps": 8, "num_minibatches": 1,
    "update_epochs": 1, "buffer_size": 40, "batch_size": 4, "learning_starts": 4, "train_frequency": 4,
    "target_network_frequency": 8, "n_atoms": 11, "trxl_dim": 8, "num_processes": 1, "cuda": False,
}  # fmt: skip
BAD_STEP = 10
"""The step with a NaN reward."""


class TolerantEnv(NanRewardEnv):
    """Accepts any action, even one that is not finite."""

    def _observe(self) -> Any:
        return np.array([self._position, 1.0])


@pytest.fixture
def env_id(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An environment for the algorithm; convolutional networks are small."""
    if ALGORITHMS[name].is_for_atari:
        pytest.importorskip("ale_py")
        monkeypatch.setattr(load_algorithm(name), "SIZES", ConvNetworkSizes((4, 4, 4), (8,)))
        yield "PongNoFrameskip-v4"
        return
    actions = "discrete" if "Discrete" in ALGORITHMS[name].action_spaces else "box"
    with register_env(limit=None, kind=TolerantEnv, actions=actions) as env_id:
        yield env_id


def train(path: Path, name: str, env_id: str, resume: Checkpoint | None = None, **changes: Any) -> None:
    module = load_algorithm(name)
    known = module.Config.model_fields
    config = module.Config(env_id=env_id, **{key: value for key, value in (SMALL | changes).items() if key in known})
    with open_run(path, config, resume) as run:
        module.train(config, run, resume)


@EACH
def test_a_reward_that_is_not_finite_ends_the_run_at_its_step(
    name: str, env_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F40: every algorithm."""
    if ALGORITHMS[name].is_for_atari:
        from mosaic.worker.envs.atari import AtariEnv

        original, steps = AtariEnv.step, []

        def step(self: Any, action: Any) -> Any:
            steps.append(action)
            images, reward, *rest = original(self, action)
            return images, float("nan") if len(steps) == BAD_STEP else reward, *rest

        monkeypatch.setattr(AtariEnv, "step", step)
    with pytest.raises(MosaicError) as raised:
        train(tmp_path / "a user's run", name, env_id)
    said = str(raised.value)
    assert said.startswith(f"{name} stopped at step {BAD_STEP}: reward became infinite or NaN. ")
    assert "returned it from step(): correct how it computes its rewards. The last good checkpoint, of step 8," in said
    assert "learning_rate" not in said
    assert [(event["tag"], event["step"]) for event in events(tmp_path / "a user's run", "anomaly")] == [
        ("reward", BAD_STEP)
    ]
    assert_last_is_finite(tmp_path / "a user's run", 8)


@EACH
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
@pytest.mark.parametrize("poison", [np.nan, 3e38])
def test_weights_that_are_not_finite_end_the_run_and_are_never_saved(
    name: str, poison: float, env_id: str, tmp_path: Path
) -> None:
    """F40: every algorithm; NaN, and numbers that overflow."""
    path = tmp_path / "a user's run"
    train(path, name, env_id, total_timesteps=8)
    good = latest_checkpoint(path)
    assert good.step == 8
    poisoned = replace(good, weights={key: np.full_like(part, poison) for key, part in good.weights.items()})
    with pytest.raises(MosaicError, match=f"^{name} stopped at step .* became infinite or NaN"):
        train(path, name, env_id, poisoned)
    flagged = events(path, "anomaly")
    assert flagged
    assert 8 <= min(event["step"] for event in flagged) <= 16, "at the first update that met them, or before it"
    assert_last_is_finite(path, 8)


def assert_last_is_finite(path: Path, step: int) -> None:
    last = latest_checkpoint(path)
    assert last.step == step
    assert all(np.isfinite(part).all() for part in last.weights.values())


class EnormousRewardEnv(TolerantEnv):
    """Its rewards have finite squares, but the squared norm of the gradient overflows a float32."""

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, 3e18, *rest


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("name", ["ppo", "a2c"])
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_a_gradient_that_is_not_finite_ends_the_run_though_every_loss_is_finite(
    name: str, backend: str, tmp_path: Path
) -> None:
    """F40: otherwise the policy would stay as it is, and the run would succeed."""
    with register_env(limit=None, kind=EnormousRewardEnv) as env_id:
        settings: dict[str, Any] = {
            "num_steps": 2, "gamma": 0.0, "hidden_sizes": (512, 512), "clip_vloss": False, "norm_adv": False,
        }  # fmt: skip
        with pytest.raises(MosaicError, match="gradient became infinite or NaN"):
            train(tmp_path, name, env_id, backend=backend, **settings)
    assert events(tmp_path, "anomaly")[0]["tag"] == "gradient"


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac_continuous_action", "ppo_atari"])
def test_the_speed_of_a_training_does_not_depend_on_the_wall_clock(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F15: the clock is set back, or stands still, during a training."""
    if ALGORITHMS[name].is_for_atari:
        pytest.importorskip("ale_py")
        monkeypatch.setattr(load_algorithm(name), "SIZES", ConvNetworkSizes((4, 4, 4), (8,)))
    real, times = time.time, itertools.chain([2e9], itertools.repeat(1e9))

    def read_clock() -> float:
        reader: str = sys._getframe(1).f_globals["__name__"]
        return next(times) if reader.startswith("cleanrl_worker.loops") else real()

    monkeypatch.setattr("time.time", read_clock)
    env_id = {"sac_continuous_action": "Pendulum-v1", "ppo_atari": "PongNoFrameskip-v4"}.get(name, "CartPole-v1")
    train(tmp_path, name, env_id, total_timesteps=64 if name == "ppo_atari" else 220)
    points = [point for event in events(tmp_path, "metrics") for point in event["series"].get("charts/SPS", [])]
    assert points
    assert all(speed > 0 for _, _, speed in points)
