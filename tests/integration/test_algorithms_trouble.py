"""What becomes infinite where nobody waits for an update: it is named by its own step, and never saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import algorithm_cases
from tests.helpers.algorithm_cases import events, newest, opened

from cleanrl_worker import torch_replay
from cleanrl_worker.algorithms import base
from cleanrl_worker.conv_network import ConvNetworkSizes
from cleanrl_worker.registry import load_algorithm
from cleanrl_worker.replay import Replay
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import RunFolder
from mosaic.run import last_good_checkpoint

SMALL: dict[str, Any] = {
    "total_timesteps": 400, "checkpoint_every": 10**6, "buffer_size": 200, "batch_size": 4, "learning_starts": 60,
    "backend": "torch", "cuda": False,
}  # fmt: skip
ATARI = ("c51_atari", "dqn_atari", "rainbow_atari", "sac_atari")
CONTROL = ("ddpg_continuous_action", "sac_continuous_action", "td3_continuous_action")


def trained(path: Path, name: str, stop_at: int | None = None, **changes: Any) -> None:
    algorithm_cases.trained(path, name, load_algorithm(name).Config(**{**SMALL, **changes}), stop_at=stop_at)


def poisoned(honest: Callable[..., Any], call: int, poison: Callable[[Any], None]) -> Callable[..., Any]:
    """The function; at one of its calls the batch that it fills or hands over is spoiled."""
    calls: list[Any] = []

    def spoiling(self: Any, *args: Any) -> None:
        calls.append(self)
        batch = args[0] if args else self.batch
        if not args and len(calls) == call:
            poison(batch)
        honest(self, *args)
        if args and len(calls) == call:
            poison(batch)

    return spoiling


def spoil_a_reward(batch: Any) -> None:
    batch.rewards[0] = np.nan


def anomalies(path: Path) -> set[tuple[str, int]]:
    return {(event["tag"], event["step"]) for event in events(path, "anomaly")}


@pytest.mark.parametrize("name", ["c51", "dqn"])
def test_a_small_network_is_stopped_at_the_next_report_and_the_bad_update_is_named(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replay, "sample", poisoned(Replay.sample, 3, spoil_a_reward))
    with pytest.raises(MosaicError, match="stopped at step 80: losses/"):
        trained(place / "run", name, train_frequency=8, target_network_frequency=500)
    assert {step for _, step in anomalies(place / "run")} == {80}
    assert last_good_checkpoint(RunFolder(place / "run")) is None


@pytest.mark.parametrize("name", ATARI)
def test_a_network_that_sees_pictures_is_stopped_at_the_next_report_and_the_bad_update_is_named(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ale_py")
    monkeypatch.setattr(load_algorithm(name), "SIZES", ConvNetworkSizes((4, 4, 4), 8))
    monkeypatch.setattr(
        torch_replay.ReplayFeed, "stage_columns", poisoned(torch_replay.ReplayFeed.stage_columns, 3, spoil_a_reward)
    )
    with pytest.raises(MosaicError, match="stopped at step 72: losses/"):
        trained(place / "run", name)
    assert {step for _, step in anomalies(place / "run")} == {72}
    assert last_good_checkpoint(RunFolder(place / "run")) is None


@pytest.mark.parametrize("name", CONTROL)
def test_no_environment_meets_an_action_that_is_no_number(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_algorithm(name), "HIDDEN", (16, 16))
    monkeypatch.setattr(Replay, "sample", poisoned(Replay.sample, 4, spoil_a_reward))
    with pytest.raises(MosaicError, match="stopped at step 64: losses/"):
        trained(place / "run", name, env_id="Pendulum-v1")
    assert {step for _, step in anomalies(place / "run")} == {64}
    assert ("losses/qf1_loss", 64) in anomalies(place / "run")
    assert events(place / "run", "episodes") == []


def test_a_run_that_is_asked_to_stop_saves_nothing_that_is_not_finite(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replay, "sample", poisoned(Replay.sample, 3, spoil_a_reward))
    with pytest.raises(MosaicError, match="stopped at step 80: losses/"):
        trained(place / "run", "dqn", stop_at=88, train_frequency=8, checkpoint_every=72)
    assert newest(place / "run").step == 72


def test_weights_that_are_not_finite_are_never_saved_whatever_the_losses_say(place: Path) -> None:
    config = load_algorithm("dqn").Config(**SMALL)
    whole: dict[str, Any] = {"weights": {"w": np.ones(2)}, "arrays": {}, "facts": {}}
    with opened(place / "run", config) as run:
        base.save_checkpoint("dqn", run, 10, **whole)
        broken = {**whole, "weights": {"w": np.array([1.0, np.inf])}}
        with pytest.raises(MosaicError, match="stopped at step 20: weights became infinite"):
            base.save_checkpoint("dqn", run, 20, **broken)
    assert newest(place / "run").step == 10
    assert anomalies(place / "run") == {("weights", 20)}
