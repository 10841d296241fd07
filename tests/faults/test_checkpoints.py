"""Checkpoints that are incomplete, damaged, or of another run."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.helpers.daemons import ended
from tests.helpers.fault_table import count_kills
from tests.helpers.run_folders import make_run_folder
from tests.helpers.worker_runs import events, small, train_here

from cleanrl_worker.registry import ALGORITHMS, load_algorithm
from mosaic.base.checkpoint_files import is_intact, list_steps
from mosaic.base.journal import read_all
from mosaic.contracts.errors import BadInput, CheckpointDamaged
from mosaic.contracts.folder import RunFolder
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.worker.checkpoints import Checkpoint, last_good_checkpoint, recover_interrupted_writes, write

CHILD = Path(__file__).parents[1] / "helpers" / "run_child.py"
KILLS = count_kills(12)
ENVIRONMENTS = {
    **dict.fromkeys(("ppo", "pqn", "dqn", "c51"), "CartPole-v1"),
    **dict.fromkeys(
        (
            "ppo_continuous_action",
            "rpo_continuous_action",
            "sac_continuous_action",
            "td3_continuous_action",
            "ddpg_continuous_action",
        ),
        "Pendulum-v1",
    ),
}
"""Of the algorithms for vectors of numbers; the others need an emulator."""


def test_a_kill_at_any_moment_of_saving_leaves_only_intact_checkpoints(
    tmp_path: Path, chance: random.Random, record_property: Callable[[str, object], None]
) -> None:
    """F10: killed at random times; every checkpoint that was reported can be loaded."""
    folder = make_run_folder(tmp_path)
    command = [sys.executable, str(CHILD), "save_forever", str(folder.path)]
    for _ in range(KILLS):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            saved_steps = [process.stdout.readline()]
            time.sleep(chance.uniform(0, 0.03))
            process.kill()
            saved_steps += process.stdout.read().split()
        for step in list_steps(folder):
            assert is_intact(folder.checkpoint(step))
        recover_interrupted_writes(folder)
        checkpoint = last_good_checkpoint(folder)
        assert checkpoint is not None
        assert checkpoint.step >= int(saved_steps[-1])
        assert checkpoint.weights["w"][0] == checkpoint.arrays["a"][0] == checkpoint.step
        assert checkpoint.step == list_steps(folder)[-1]
    assert [event["seq"] for event in read_all(folder.journal)] == list(range(1, 1 + len(read_all(folder.journal))))
    record_property("tries", KILLS)


def test_a_damaged_checkpoint_is_named_and_an_older_one_used(trainer: TrainerClient) -> None:
    """F11: a resumed run says which one it skipped, and why."""
    config = small(total_timesteps=128, extras={"checkpoint_every": 32})
    run_id = trainer.submit({"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}}).run_id
    folder = RunFolder(ended(trainer, run_id).run_dir)
    path = folder.checkpoint(128) / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    trainer.resume(run_id, total_timesteps=192)
    assert ended(trainer, run_id).outcome == "succeeded"
    assert events(folder, "hello")[-1]["resumed_from"] == 96
    (warning,) = events(folder, "warning")
    assert warning["text"].startswith("Checkpoint 128 is damaged (weights.safetensors: hash mismatch)")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_policy_of_another_algorithm_is_refused_by_name(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    """F12: every pair of algorithms."""
    others = [other for other in ALGORITHMS if other != name]
    for other in others:
        checkpoint = Checkpoint(Path("checkpoints", "1"), 1, {}, {}, {"algorithm": other}, {})
        with pytest.raises(BadInput, match=f"was saved by {other!r}; expected one of {name!r}"):
            load_algorithm(name).load_policy(checkpoint)
    record_property("tries", len(others))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_checkpoint_of_another_algorithm_is_not_resumed(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """F12: every pair of the algorithms that need no emulator, before the first step."""
    others = [other for other in ENVIRONMENTS if other != name]
    for other in others:
        folder = make_run_folder(tmp_path / other)
        save(folder, 32, algorithm=other)
        config = {"algo": name, "env_id": ENVIRONMENTS[name], "total_timesteps": 4096, "seed": 1}
        with pytest.raises(BadInput, match=re.escape(f"its algorithm is {other!r}, but the run's is {name!r}")):
            train_here(folder, config, is_resume=True)
        assert events(folder, "metrics") == []
    record_property("tries", len(others))


def test_a_checkpoint_without_its_normalizer_is_refused_by_name(tmp_path: Path) -> None:
    """F12: it would act on other observations than it was trained on."""
    folder = make_run_folder(tmp_path)
    name = "ppo_continuous_action"
    extras = {"num_steps": 32, "num_minibatches": 2}
    config = {"algo": name, "env_id": "Pendulum-v1", "total_timesteps": 64, "seed": 1, "extras": extras}
    train_here(folder, config)
    good = last_good_checkpoint(folder)
    assert good is not None
    arrays = {key: array for key, array in good.arrays.items() if key != "observation.mean"}
    log = {key: good.manifest[key] for key in ("log", "score")}
    write(folder, good.step, good.weights, arrays, good.facts, log)
    incomplete = last_good_checkpoint(folder)
    assert incomplete is not None
    with pytest.raises(CheckpointDamaged, match=r"has no 'observation\.mean', which the algorithm needs"):
        load_algorithm(name).load_policy(incomplete)
    with pytest.raises(CheckpointDamaged, match=r"has no 'observation\.mean'"):
        train_here(folder, {**config, "total_timesteps": 128}, is_resume=True)


def save(folder: RunFolder, step: int, algorithm: str) -> None:
    log = {"episodes": 0, "recent_returns": [], "scalars": {}}
    write(folder, step, {}, {}, {"algorithm": algorithm, "shape": {}}, {"log": log, "score": None})
