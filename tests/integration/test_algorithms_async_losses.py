"""Asynchronous updates with a value that is not finite: it is reported with its own step, and never saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import algorithm_cases
from tests.helpers.algorithm_cases import events, latest_checkpoint, open_run

from cleanrl_worker.algorithms import base
from cleanrl_worker.learners import torch_replay
from cleanrl_worker.learners.conv_network import ConvNetworkSizes
from cleanrl_worker.registry import load_algorithm
from cleanrl_worker.replay.buffers import Replay
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import RunFolder
from mosaic.worker.checkpoints import last_good_checkpoint

SMALL: dict[str, Any] = {
    "total_timesteps": 400, "checkpoint_every": 10**6, "buffer_size": 200, "batch_size": 4, "learning_starts": 60,
    "backend": "torch", "cuda": False,
}  # fmt: skip
ATARI = ("c51_atari", "dqn_atari", "rainbow_atari", "sac_atari")
CONTROL = ("ddpg_continuous_action", "sac_continuous_action", "td3_continuous_action")


def train_run(path: Path, name: str, stop_at: int | None = None, **changes: Any) -> None:
    algorithm_cases.train_run(path, name, load_algorithm(name).Config(**{**SMALL, **changes}), stop_at=stop_at)


def spoil_call(honest: Callable[..., Any], call: int, poison: Callable[[Any], None]) -> Callable[..., Any]:
    """Wrap a function so that one of its calls spoils the batch that it fills or passes on."""
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


@pytest.mark.parametrize("name", ["c51", "dqn", "qrdqn"])
def test_a_small_network_is_stopped_at_the_next_report_and_the_bad_update_is_named(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replay, "sample", spoil_call(Replay.sample, 3, spoil_a_reward))
    with pytest.raises(MosaicError, match="stopped at step 80: losses/"):
        train_run(place / "run", name, train_frequency=8, target_network_frequency=500)
    assert {step for _, step in anomalies(place / "run")} == {80}
    assert last_good_checkpoint(RunFolder(place / "run")) is None


@pytest.mark.parametrize("name", ATARI)
def test_a_network_for_images_is_stopped_at_the_next_report_and_the_bad_update_is_named(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ale_py")
    monkeypatch.setattr(load_algorithm(name), "SIZES", ConvNetworkSizes((4, 4, 4), (8,)))
    monkeypatch.setattr(
        torch_replay.ReplayFeed, "stage_columns", spoil_call(torch_replay.ReplayFeed.stage_columns, 3, spoil_a_reward)
    )
    with pytest.raises(MosaicError, match="stopped at step 72: losses/"):
        train_run(place / "run", name)
    assert {step for _, step in anomalies(place / "run")} == {72}
    assert last_good_checkpoint(RunFolder(place / "run")) is None


@pytest.mark.parametrize("name", CONTROL)
def test_no_environment_receives_an_action_that_is_not_finite(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replay, "sample", spoil_call(Replay.sample, 4, spoil_a_reward))
    with pytest.raises(MosaicError, match="stopped at step 64: losses/"):
        train_run(place / "run", name, env_id="Pendulum-v1", hidden_sizes=(16, 16))
    assert {step for _, step in anomalies(place / "run")} == {64}
    assert ("losses/qf1_loss", 64) in anomalies(place / "run")
    assert events(place / "run", "episodes") == []


def test_a_run_that_is_asked_to_stop_saves_nothing_that_is_not_finite(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replay, "sample", spoil_call(Replay.sample, 3, spoil_a_reward))
    with pytest.raises(MosaicError, match="stopped at step 80: losses/"):
        train_run(place / "run", "dqn", stop_at=88, train_frequency=8, checkpoint_every=72)
    assert latest_checkpoint(place / "run").step == 72


def test_weights_that_are_not_finite_are_never_saved_whatever_the_losses_say(place: Path) -> None:
    config = load_algorithm("dqn").Config(**SMALL)
    complete: dict[str, Any] = {"weights": {"w": np.ones(2)}, "arrays": {}, "facts": {}}
    with open_run(place / "run", config) as run:
        base.save_checkpoint("dqn", run, 10, **complete)
        broken = {**complete, "weights": {"w": np.array([1.0, np.inf])}}
        with pytest.raises(MosaicError, match="stopped at step 20: weights became infinite"):
            base.save_checkpoint("dqn", run, 20, **broken)
    assert latest_checkpoint(place / "run").step == 10
    assert anomalies(place / "run") == {("weights", 20)}
