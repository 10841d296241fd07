"""A training in several processes: one run, equal weights, and an end for all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from pydantic import ValidationError
from tests.helpers.algorithm_cases import assert_same_checkpoint, events, latest_checkpoint, train_run
from tests.helpers.command_server import SERVERS

from cleanrl_worker.algorithms import ppo_atari_multigpu
from mosaic.contracts.errors import MosaicError

pytest.importorskip("ale_py")
GAME = "RoadRunnerNoFrameskip-v4"
SMALL: dict[str, Any] = {
    "env_id": GAME, "total_timesteps": 128, "local_num_envs": 1, "num_steps": 16, "num_minibatches": 2,
    "update_epochs": 1, "checkpoint_every": 32, "cuda": False, "seed": 3,
}  # fmt: skip
pytestmark = pytest.mark.timeout(240)  # several processes with torch on a machine that may be busy


def config_of(**settings: Any) -> ppo_atari_multigpu.Config:
    return ppo_atari_multigpu.Config.model_validate({**SMALL, **settings})


def other_processes() -> list[psutil.Process]:
    children = (child for child in psutil.Process().children() if child.pid not in SERVERS)
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]


def test_two_processes_train_one_run_that_is_stopped_and_resumes_exactly(tmp_path: Path) -> None:
    """R3.6: one training in several processes."""
    config = config_of(eval_every=64, num_eval_episodes=1, env_kwargs={"max_num_frames_per_episode": 200})
    train_run(tmp_path / "whole", ppo_atari_multigpu.NAME, config)
    whole = latest_checkpoint(tmp_path / "whole")
    assert (whole.step, config.num_envs) == (128, 2)
    assert len(whole.facts["ranks"]) == 1
    emulators = (whole.arrays["env.0.emulator"], whole.arrays["rank.1.env.0.emulator"])
    assert not np.array_equal(*emulators)  # other seeds, other games

    stopped = train_run(tmp_path / "broken", ppo_atari_multigpu.NAME, config, stop_at=70)
    assert stopped.global_step < 128
    middle = latest_checkpoint(tmp_path / "broken")
    assert middle.step == 64  # before the rollout that was interrupted
    assert not other_processes()
    train_run(tmp_path / "broken", ppo_atari_multigpu.NAME, config, middle)
    assert_same_checkpoint(whole, latest_checkpoint(tmp_path / "broken"))
    for run in ("whole", "broken"):
        assert [report["step"] for report in events(tmp_path / run, "evaluated")] == [64, 128]


def test_a_process_that_dies_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    def kill_one(_: int) -> None:
        for child in other_processes():
            child.kill()

    with pytest.raises(MosaicError, match="Process 1 of 2 ended with signal 9, so the training cannot continue"):
        train_run(tmp_path, ppo_atari_multigpu.NAME, config_of(total_timesteps=100_000), update=kill_one)


def test_the_others_end_with_the_worker(tmp_path: Path) -> None:
    code = (
        "import os, sys; from cleanrl_worker.shell.rank_process import other_ranks;"
        "from cleanrl_worker.algorithms.ppo_atari_multigpu import Config\n"
        "with other_ranks('ppo_atari_multigpu', Config(), 2, None): print(os.getpid(), flush=True); sys.stdin.read()"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    worker.stdout.readline()
    (other,) = psutil.Process(worker.pid).children()
    os.kill(worker.pid, signal.SIGKILL)
    worker.communicate()
    other.wait(60)


def test_the_mean_gradient_of_all_processes_is_applied() -> None:
    """A second statement of the update: Adam on the mean of the gradients of two losses."""
    import torch

    from cleanrl_worker.learners.torch_backend import TorchAdam, TorchContext
    from cleanrl_worker.learners.torch_ranks import AveragingAdam

    class TwoRanks:
        """Averages with another process whose gradient is three times as large."""

        def average(self, tensors: Any) -> None:
            for tensor in tensors:
                tensor.copy_((tensor + 3 * tensor) / 2)

    compute = TorchContext.set_up(cuda=False)
    ours, theirs = (torch.tensor([1.0, -2.0], requires_grad=True) for _ in range(2))
    ranks: Any = TwoRanks()
    averaging, plain = AveragingAdam([ours], 0.1, compute, ranks=ranks), TorchAdam([theirs], 0.1, compute)
    for _ in range(3):
        norm = averaging.clipped_step((ours**2).sum(), 1.0)
        expected = plain.clipped_step(2 * (theirs**2).sum(), 1.0)
        assert norm == expected
    assert torch.equal(ours, theirs)


def test_the_number_of_games_follows_from_the_processes() -> None:
    assert config_of(local_num_envs=2, num_processes=3).num_envs == 6
    assert config_of(device_ids=(0, 1, 2, 3)).num_processes == 4
    assert ppo_atari_multigpu.Config(num_envs=12).local_num_envs == 6
    with pytest.raises(ValidationError, match="num_envs = 5 is not local_num_envs × num_processes = 1 × 2"):
        config_of(num_envs=5)
    with pytest.raises(ValidationError, match="num_envs = 5 cannot be divided among 2 processes"):
        ppo_atari_multigpu.Config(num_envs=5)
    with pytest.raises(ValidationError, match="cannot be split into num_minibatches = 32"):
        config_of(num_minibatches=32)
