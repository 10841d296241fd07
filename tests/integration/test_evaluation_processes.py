"""An evaluation played by several processes has the same result, whatever happens to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import wait_until
from tests.helpers.worker_runs import COMMAND, events, small, train_here

from cleanrl_worker.environments.normalization import ObservationNormalizer
from cleanrl_worker.evaluation.loading import load_for_evaluation
from cleanrl_worker.shell.worker_config import parse_request
from mosaic.base.journal import Journal
from mosaic.contracts.folder import RUN_DIR_VARIABLE, RunFolder
from mosaic.worker.checkpoints import last_good_checkpoint
from mosaic.worker.envs import make
from mosaic.worker.evaluation import Episode, EpisodeSteps, evaluate
from mosaic.worker.evaluation_batches import process_count

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="helpers are forked, which is only safe on Linux")
SEEDS = range(100, 160)


@pytest.fixture(autouse=True)
def _start_helpers_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use helpers from the first step on, however little work there is."""
    module = sys.modules["mosaic.worker.evaluation"]
    monkeypatch.setattr(module, "PROBE_S", 0.0)
    monkeypatch.setattr(module, "MIN_PARALLEL_WORK_S", 0.0)


def test_helpers_return_the_steps_of_their_episodes(tmp_path: Path) -> None:
    def record(count: int, name: str) -> tuple[dict[int, EpisodeSteps], PolePolicy]:
        policy, recorded = PolePolicy(tmp_path / name), dict[int, EpisodeSteps]()

        def on_episode(episode: Episode) -> None:
            assert episode.steps is not None
            recorded[episode.seed] = episode.steps

        episodes = evaluate(
            policy, cartpole, SEEDS, on_episode=on_episode, on_step=make_helper_gate(policy) if count > 1 else None,
            processes=count, records_steps=True,
        )  # fmt: skip
        assert {episode.steps for episode in episodes} == {None}, "They are not all held in memory."
        return recorded, policy

    alone, _ = record(1, "alone")
    together, policy = record(3, "together")
    assert 1 <= len(policy.helpers) <= 2, "A helper that starts late finds nothing left to play."
    assert alone.keys() == together.keys() == set(SEEDS)
    for seed, steps in alone.items():
        np.testing.assert_array_equal(together[seed].actions, steps.actions)
        np.testing.assert_array_equal(together[seed].rewards, steps.rewards)
        assert together[seed].is_terminated == steps.is_terminated


class PolePolicy:
    """Pushes to the side to which the pole leans, with matrix products like a network; logs the calling helpers."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._owner = os.getpid()
        self._weights = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
        self._calls = 0

    def act(self, observations: np.ndarray, deterministic: bool, rng: np.random.Generator) -> np.ndarray:
        if os.getpid() != self._owner:
            if self._calls == 0:
                with open(self._log, "a", encoding="utf-8") as file:
                    file.write(f"{os.getpid()}\n")
            self._calls += 1
            self.on_helper_call(self._calls)
        leans = np.tanh(observations @ self._weights) @ self._weights.T
        chance = 0.0 if deterministic else rng.standard_normal(len(observations))
        return (leans[:, 2] + chance > 0).astype(int)

    def on_helper_call(self, count: int) -> None:
        """Called in helper processes; overridden by policies that fail."""

    @property
    def helpers(self) -> list[int]:
        return [int(line) for line in self._log.read_text().split()] if self._log.exists() else []


def cartpole() -> Any:
    return make("CartPole-v1")


def evaluate_in_one_process(tmp_path: Path, deterministic: bool = True) -> list[Episode]:
    return evaluate(PolePolicy(tmp_path / "unused"), cartpole, SEEDS, deterministic)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("count", [2, 4])
def test_the_number_of_processes_does_not_change_the_returns(tmp_path: Path, count: int, deterministic: bool) -> None:
    policy = PolePolicy(tmp_path / "pids")
    reported: list[Episode] = []
    steps: list[int] = []
    gate = make_helper_gate(policy)

    def on_step(count: int) -> bool:
        steps.append(count)
        return gate(count)

    episodes = evaluate(policy, cartpole, SEEDS, deterministic, reported.append, on_step=on_step, processes=count)
    assert episodes == evaluate_in_one_process(tmp_path, deterministic)
    assert sorted(reported, key=lambda episode: episode.index) == episodes
    assert steps[-1] <= sum(episode.length for episode in episodes)
    assert 1 <= len(set(policy.helpers)) <= count - 1
    assert_gone(policy)


def assert_gone(policy: PolePolicy) -> None:
    for pid in policy.helpers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


class Dies(PolePolicy):
    def on_helper_call(self, count: int) -> None:
        if count == 3:
            os.kill(os.getpid(), signal.SIGKILL)


class Raises(PolePolicy):
    def on_helper_call(self, count: int) -> None:
        raise RuntimeError("a bug that shows in helpers only")


class Hangs(PolePolicy):
    def on_helper_call(self, count: int) -> None:
        time.sleep(1000)


@pytest.mark.parametrize("kind", [Dies, Raises])
def test_episodes_that_a_helper_does_not_return_are_played_by_the_main_process(
    tmp_path: Path, kind: type[PolePolicy]
) -> None:
    policy = kind(tmp_path / "pids")
    gate = make_helper_gate(policy)
    assert evaluate(policy, cartpole, SEEDS, on_step=gate, processes=3) == evaluate_in_one_process(tmp_path)
    assert policy.helpers
    assert_gone(policy)


def make_helper_gate(policy: PolePolicy) -> Callable[[int], bool]:
    """Return an `on_step` in which the main process waits until a helper has started."""

    def gate(steps: int) -> bool:
        if steps > 20 and not policy.helpers:
            assert wait_until(lambda: bool(policy.helpers))
        return True

    return gate


def test_a_stop_ends_helpers_even_one_that_hangs(tmp_path: Path) -> None:
    policy = Hangs(tmp_path / "pids")
    gate = make_helper_gate(policy)
    episodes = evaluate(
        policy, cartpole, range(5000), on_step=lambda steps: gate(steps) and not policy.helpers, processes=3
    )
    assert len(episodes) < 5000
    assert policy.helpers
    assert_gone(policy)


def test_the_number_of_processes_can_be_limited_below_the_number_of_cores() -> None:
    assert process_count(1) == 1
    assert process_count(None) == process_count(10_000) == len(os.sched_getaffinity(0))


def test_the_summary_of_a_cancelled_evaluation_has_every_finished_episode(tmp_path: Path) -> None:
    trained = train_here(RunFolder(tmp_path / "trained"), small())
    folder = RunFolder(tmp_path / "it's cancelled")
    config = tmp_path / "config.json"
    extras = {"mode": "policy_eval", "policy_path": str(trained.path), "eval_episodes": 1_000_000}
    config.write_text(json.dumps({"extras": extras}))
    environment = {**os.environ, RUN_DIR_VARIABLE: str(folder.path)}
    with subprocess.Popen(
        [*COMMAND, "--config", str(config)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as worker:
        assert wait_until(lambda: folder.journal.exists() and len(events(folder, "episodes")) > 2)
        inbox = Journal(folder.inbox)
        inbox.append("stop")
        inbox.close()
        _, stderr = worker.communicate(timeout=60)
    assert (worker.returncode, stderr) == (0, b"")
    summary = json.loads(folder.eval_summary.read_text())
    returns = [row[4] for event in events(folder, "episodes") for row in event["rows"]]
    assert summary["episodes"] == len(summary["returns"]) == len(returns) > 0
    assert sorted(summary["returns"]) == sorted(returns)
    assert [event["outcome"] for event in events(folder, "finished")] == ["stopped"]
    assert len(events(folder, "policy_eval_completed")) == 1


def test_a_trained_policy_scores_in_evaluation_as_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the statistics of its normalizer it would be no better than chance."""
    settings = {"gamma": 0.9, "learning_rate": 1e-3, "num_envs": 4, "num_steps": 512, "num_minibatches": 16}
    config = {"algo": "ppo_continuous_action", "env_id": "Pendulum-v1", "total_timesteps": 150_000, "seed": 2}
    folder = train_here(RunFolder(tmp_path / "trained"), {**config, "extras": settings})
    checkpoint = last_good_checkpoint(folder)
    assert checkpoint is not None
    score = checkpoint.manifest["score"]
    extras = {"mode": "policy_eval", "policy_path": str(folder.path), "eval_episodes": 100}
    evaluated = train_here(RunFolder(tmp_path / "played"), {"extras": extras})
    summary = json.loads(evaluated.eval_summary.read_text())
    low, high = summary["ci95"]
    assert abs(summary["avg_return"] - score) < max(0.1 * abs(score), (high - low) / 2)

    monkeypatch.setattr(ObservationNormalizer, "restore", lambda *_: None)
    match = load_for_evaluation(parse_request({"extras": extras}))
    unnormalized = evaluate(match.policy, lambda: make("Pendulum-v1"), summary["seeds"][:30])
    assert np.mean([episode.episodic_return for episode in unnormalized]) < 2 * score
