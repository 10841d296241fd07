from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.helpers.keeper_runs import SLEEPER, KeeperRun, python, until

from mosaic.base.processes import is_alive

WAITS = "announce('sidecar_ready'); signal.pause()"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[KeeperRun]:
    keeper_run = KeeperRun(tmp_path / "it's a run")
    yield keeper_run
    assert keeper_run.close() == [], "processes were left running"


def sidecar_spec(run: KeeperRun, code: str, **changes: Any) -> dict[str, Any]:
    """Return the sidecar's part of a launch spec."""
    env = run.launch(["-"])["env"]
    return {"argv": python(code), "cwd": str(run.folder.path), "env": env, "log_name": "sidecar", **changes}


def kill_sidecar(process: dict[str, Any]) -> None:
    os.kill(process["pid"], signal.SIGKILL)
    until(lambda: not is_alive(process), "the sidecar's end")  # type: ignore[arg-type]


def test_a_run_ends_while_its_sidecar_keeps_running(run: KeeperRun) -> None:
    run.start("print('done')", sidecar=sidecar_spec(run, WAITS))
    exited = run.wait_end()
    assert exited["code"] == 0
    process = run.wait_event("sidecar_started")["process"]
    assert int(run.wait_file("sidecar_ready")) == process["pid"]
    assert is_alive(process)
    assert os.getsid(process["pid"]) == process["pid"]
    kill_sidecar(process)


def test_a_sidecar_is_not_sampled_limited_or_killed_with_the_tree(run: KeeperRun) -> None:
    large = "memory = bytearray(96 << 20); memory[::4096] = b'x' * len(memory[::4096]); " + WAITS
    limits = {"seconds": None, "memory_mb": 64}
    run.start(SLEEPER, sidecar=sidecar_spec(run, large), limits=limits, grace_s={"stop": 0.1, "term": 0.1})
    worker = psutil.Process(int(run.wait_file("ready")))
    run.wait_file("sidecar_ready")
    sample = run.wait_event("sample", 1 + len(run.events("sample")))
    assert sample["processes"] == 1
    assert sample["rss_mb"] <= worker.memory_info().rss / 2**20
    run.send("stop")
    assert run.wait_end()["cause"] == "stop"
    process = run.wait_event("sidecar_started")["process"]
    assert is_alive(process)
    kill_sidecar(process)


def test_a_sidecar_outlives_its_keeper(run: KeeperRun) -> None:
    keeper = run.start(SLEEPER, sidecar=sidecar_spec(run, WAITS))
    worker = int(run.wait_file("ready"))
    run.wait_file("sidecar_ready")
    process = run.wait_event("sidecar_started")["process"]
    keeper.kill()
    keeper.wait()
    assert is_alive(process)
    kill_sidecar(process)
    os.kill(worker, signal.SIGKILL)
    until(lambda: not run.members(), "the worker's end")


def test_the_output_of_a_sidecar_is_in_its_own_log(run: KeeperRun) -> None:
    run.start("pass", sidecar=sidecar_spec(run, "print('uploaded', flush=True); announce('sidecar_ready')"))
    run.wait_end()
    run.wait_file("sidecar_ready")
    assert (run.folder.logs / "sidecar.log").read_text() == "uploaded\n"


@pytest.mark.parametrize("changes", [{"argv": ["/no/such/program"]}, {"cwd": "/no/such/folder"}])
def test_a_sidecar_that_cannot_start_is_reported_and_the_run_continues(run: KeeperRun, changes: dict[str, Any]) -> None:
    run.start("print('done')", sidecar=sidecar_spec(run, WAITS, **changes))
    assert run.wait_end()["code"] == 0
    assert "/no/such/" in run.wait_event("sidecar_not_started")["reason"]
    assert run.folder.stdout_log("scripted").read_text() == "done\n"
