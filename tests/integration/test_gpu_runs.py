"""Which GPU a run gets and sees, with a machine whose GPUs are those of a fake `nvidia-smi`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.commands import mosaic
from tests.helpers.daemons import LiveDaemon, ended, running_daemon, scripted, wait_for
from tests.helpers.gpu_machine import install_driver, install_gpus
from tests.helpers.probe_scripts import start_script

from mosaic.contracts.errors import ConfigRefused
from mosaic.contracts.folder import RUN_DIR_VARIABLE, Workspace
from mosaic.trainer.client.trainer_client import TrainerClient

Machine = Callable[..., Any]


@pytest.fixture
def machine(workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a function that starts a daemon on a machine with this many GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    @contextmanager
    def start(count: int, log: Path | None = None) -> Iterator[tuple[LiveDaemon, TrainerClient]]:
        install_gpus(tmp_path / "tools", count, monkeypatch, log)
        with running_daemon(workspace, tmp_path / "plugins", "--max-runs", "9") as both:
            yield both

    return start


def endless(**gpus: Any) -> dict[str, Any]:
    payload = scripted(steps=1_000_000, dt=0.02)
    return {**payload, "resources": {"gpus": gpus}} if gpus else payload


def variables(trainer: TrainerClient, run_id: str) -> dict[str, str]:
    """The variables of CUDA in the environment of a run's worker."""
    pid = wait_for(lambda: trainer.get_run(run_id).pid, "the start of the run")
    path = Path(f"/proc/{pid}/environ")  # empty for a moment while the program is loaded
    words = wait_for(
        lambda: path.read_text(encoding="utf-8") if RUN_DIR_VARIABLE in path.read_text(encoding="utf-8") else "",
        "its environment",
    ).split("\0")
    return {name: value for name, _, value in (word.partition("=") for word in words) if name.startswith("CUDA_")}


def devices(trainer: TrainerClient, run_id: str) -> str:
    return variables(trainer, run_id)["CUDA_VISIBLE_DEVICES"]


def test_a_run_sees_the_gpus_that_it_holds_and_no_others(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """R2.5: a run without a request sees none; the limit is kept; the daemon's own devices are the limit."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    with machine(3) as (_, trainer):
        assert trainer.get_status().slots.gpu_names == ("device 5", "device 7"), "as many as the daemon may see"
        first, second, third = (trainer.submit(endless(requested=1)).run_id for _ in range(3))
        without = [trainer.submit(endless()).run_id, trainer.submit(endless(requested=0)).run_id]
        assert [devices(trainer, run_id) for run_id in (first, second, *without)] == ["5", "7", "", ""]
        assert trainer.get_run(third).stage == "queued"
        trainer.cancel_run(first)
        assert devices(trainer, third) == "5"


def test_runs_share_a_gpu_up_to_its_whole_and_the_status_names_them(machine: Machine, workspace: Workspace) -> None:
    """R2.5: shares of a GPU are limits, too."""
    with machine(2) as (_, trainer):
        whole = trainer.submit(endless(requested=1)).run_id
        assert devices(trainer, whole) == "0"
        shares = [trainer.submit(endless(requested=share)).run_id for share in (0.5, 0.25, 0.25)]
        assert [devices(trainer, run_id) for run_id in shares] == ["1", "1", "1"]
        waiting = trainer.submit(endless(requested=0.1)).run_id
        wait_for(lambda: "2 of 2 GPUs busy" in (trainer.get_run(waiting).wait_reason or ""), "the reason")
        slots = trainer.get_status().slots
        assert [(holder.gpus, holder.gpu_share) for holder in slots.holders] == [
            ((0,), 1.0), ((1,), 0.5), ((1,), 0.25), ((1,), 0.25),
        ]  # fmt: skip
        shown = mosaic(workspace, "daemon", "status").out
        ids = [run_id[-6:] for run_id in (whole, *shares)]
        assert f"Model 0: {ids[0]}\n" in shown.replace("  \n", "\n")
        assert f"Model 1: {ids[1]} 50%, {ids[2]} 25%, {ids[3]} 25%" in shown
        assert f"4 of {slots.cpus} busy: {ids[0]} 1, {ids[1]} 1" in shown
        trainer.cancel_run(shares[1])
        assert devices(trainer, waiting) == "1"


def test_the_status_measures_the_gpus_that_runs_may_get(
    machine: Machine, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,GPU-0")
    install_driver(tmp_path / "tools", monkeypatch)
    with machine(4) as (_, trainer):
        slots = trainer.get_status().slots
        samples = [sample and (sample.util_percent, sample.memory_used_mb) for sample in slots.gpu_samples]
        assert samples == [(30.0, 4096.0), (10.0, 2048.0), None], "one that is not named by its number is not measured"
        assert not slots.has_mps
        assert "Model 3 (30 % busy, 4.0 of 16.0 GB): free" in mosaic(workspace, "daemon", "status").out


def test_a_gpu_can_be_chosen_and_is_kept_on_resume_where_it_is_free(machine: Machine) -> None:
    with machine(3) as (_, trainer):
        chosen = trainer.submit(endless(device=1, mandatory=True)).run_id
        assert devices(trainer, chosen) == "1"
        second = trainer.submit(endless(requested=1)).run_id
        third = trainer.submit(endless(requested=1)).run_id
        assert [devices(trainer, run_id) for run_id in (second, third)] == ["0", "2"]
        for run_id in (second, third):
            trainer.cancel_run(run_id)
            assert ended(trainer, run_id).outcome == "cancelled"
        trainer.resume(third)
        assert devices(trainer, third) == "2", "as before, though another one is free, too"
        assert [attempt.gpus for attempt in trainer.get_run(third).attempts] == [(2,), (2,)]
        waiting = trainer.submit(endless(device=1, mandatory=True)).run_id
        passing = trainer.submit(endless(requested=1)).run_id
        assert devices(trainer, passing) == "0", "it needs another one than the run that waits"
        assert trainer.get_run(waiting).stage == "queued"


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"requested": 3, "mandatory": True}, "3 requested, but this machine has 1. Ask for at most 1"),
        ({"device": 2, "mandatory": True}, "there is no GPU 2; this machine has 1. Known: 0."),
        ({"device": 0, "requested": 2}, "one GPU is named, but several are requested"),
        ({"device": 0, "requested": 0}, "a GPU is named, but none is requested"),
        ({"requested": 1.5}, "expected a whole number, or a share of one GPU below 1"),
    ],
)
def test_what_the_machine_cannot_give_is_refused(machine: Machine, request_: dict[str, Any], sentence: str) -> None:
    with machine(1) as (_, trainer), pytest.raises(ConfigRefused, match=sentence):
        trainer.submit(endless(**request_))


def test_algorithms_with_wide_networks_get_a_gpu_by_default(machine: Machine, workspace: Workspace) -> None:
    def train(algo: str, env_id: str, *options: str) -> Any:
        arguments = ("train", algo, "--env-id", env_id, "--total-timesteps", "1000000", "--detach", "--json", *options)
        done = mosaic(workspace, *arguments)
        assert done.code == 0, done.err
        return done.json

    with machine(1):
        assert train("ppo", "CartPole-v1")["gpus"] == 0, "numpy computes it"
        assert train("qrdqn", "CartPole-v1")["gpus"] == 0, "its network is small"
        assert train("qrdqn", "CartPole-v1", "--cuda")["gpus"] == 1, "as the config asks"
        assert train("tqc", "Pendulum-v1")["gpus"] == 1
        assert train("tqc", "Pendulum-v1", "--no-cuda")["gpus"] == 0
        assert train("tqc", "Pendulum-v1", "--gpus", "0.25")["gpus"] == 0.25
        assert train("tqc", "Pendulum-v1", "--gpu", "0")["gpu"] == 0
        refused = mosaic(workspace, "train", "ppo", "--env-id", "CartPole-v1", "--gpus", "3")
        assert refused.code == 2
        assert "3 requested, but this machine has 1" in refused.err


@pytest.mark.parametrize("count", [0, 1])
def test_a_config_that_asks_for_a_gpu_is_warned_where_there_is_none(
    count: int, machine: Machine, workspace: Workspace
) -> None:
    with machine(count) as (_, trainer):
        for command in ("check", "train"):
            arguments = (command, "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "512", "--num-envs", "4")
            for given in ((), ("--cuda",), ("--cuda", "--json")):
                done = mosaic(workspace, *arguments, *given)
                is_warned = "no GPU" in done.out + done.err
                assert (done.code, is_warned) == (0, bool(given) and not count), done
                if "--json" in given:
                    assert done.json, "one line"
        assert any("no GPU" in warning for warning in trainer.get_run("last").warnings) is not bool(count)


def test_a_script_gets_a_gpu_by_request_or_by_its_environment(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import os; print('devices', repr(os.environ.get('CUDA_VISIBLE_DEVICES')))"

    def printed(trainer: TrainerClient, run_id: str) -> str:
        assert ended(trainer, run_id).outcome == "succeeded"
        return b"".join(chunk.data for chunk in trainer.log(run_id)).decode().strip()

    with machine(1) as (_, trainer):
        silent = start_script(trainer, tmp_path, script)
        assert "devices ''" in printed(trainer, silent)
        assert "--gpus 1" in "".join(trainer.get_run(silent).warnings)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        own = start_script(trainer, tmp_path, script)
        assert "devices '0'" in printed(trainer, own)
        assert trainer.get_run(own).warnings == ()


def test_runs_of_a_group_share_a_gpu_through_one_mps_server(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3.6: seeds share a GPU; the server starts with the first of them, survives the daemon and ends with the last."""
    log = tmp_path / "mps.log"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with machine(1, log) as (daemon, trainer):
        shared = endless(requested=1, runs_per_gpu=2)
        shared["metadata"]["group"] = "seeds"
        first, second, third = (trainer.submit(shared).run_id for _ in range(3))
        assert variables(trainer, first) == variables(trainer, second)
        assert variables(trainer, first)["CUDA_VISIBLE_DEVICES"] == "0"
        folder = Path(variables(trainer, first)["CUDA_MPS_PIPE_DIRECTORY"])
        assert folder.stat().st_mode & 0o077 == 0
        assert trainer.get_run(third).stage == "queued"
        daemon.kill()
        with daemon.start() as trainer:
            trainer.cancel_run(first)
            assert variables(trainer, third) == variables(trainer, second)
            trainer.cancel_run(second)
            trainer.cancel_run(third)
            wait_for(lambda: not folder.parent.exists(), "the end of the MPS server")
    assert log.read_text().splitlines() == ["start all", "quit"]
