from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.keeper_runs import SLEEPER, KeptRun, python, until

from mosaic.contracts.processes import is_alive

WAITS = "say('beside'); signal.pause()"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[KeptRun]:
    kept = KeptRun(tmp_path / "it's a run")
    yield kept
    assert kept.close() == [], "processes were left running"


def beside(run: KeptRun, code: str, **changes: Any) -> dict[str, Any]:
    """The sidecar's part of a launch."""
    env = run.launch(["-"])["env"]
    return {"argv": python(code), "cwd": str(run.folder.path), "env": env, "log_name": "sidecar", **changes}


def end(process: dict[str, Any]) -> None:
    os.kill(process["pid"], signal.SIGKILL)
    until(lambda: not is_alive(process), "the sidecar's end")  # type: ignore[arg-type]


def test_a_run_ends_without_its_sidecar_which_goes_on(run: KeptRun) -> None:
    run.start("print('done')", sidecar=beside(run, WAITS))
    exited = run.wait_end()
    assert exited["code"] == 0
    process = run.wait_event("sidecar_started")["process"]
    assert int(run.wait_file("beside")) == process["pid"]
    assert is_alive(process)
    assert os.getsid(process["pid"]) == process["pid"]
    end(process)


def test_a_sidecar_is_no_part_of_the_tree_that_is_measured_limited_and_killed(run: KeptRun) -> None:
    large = "memory = bytearray(96 << 20); memory[::4096] = b'x' * len(memory[::4096]); " + WAITS
    limits = {"seconds": None, "memory_mb": 64}
    run.start(SLEEPER, sidecar=beside(run, large), limits=limits, grace_s={"stop": 0.1, "term": 0.1})
    run.wait_file("ready")
    run.wait_file("beside")
    sample = run.wait_event("sample", 1 + len(run.events("sample")))
    assert sample["processes"] == 1
    assert sample["rss_mb"] < 64
    run.tell("stop")
    assert run.wait_end()["cause"] == "stop"
    process = run.wait_event("sidecar_started")["process"]
    assert is_alive(process)
    end(process)


def test_a_sidecar_outlives_its_keeper(run: KeptRun) -> None:
    keeper = run.start(SLEEPER, sidecar=beside(run, WAITS))
    worker = int(run.wait_file("ready"))
    run.wait_file("beside")
    process = run.wait_event("sidecar_started")["process"]
    keeper.kill()
    keeper.wait()
    assert is_alive(process)
    end(process)
    os.kill(worker, signal.SIGKILL)
    until(lambda: not run.members(), "the worker's end")


def test_what_a_sidecar_says_is_in_its_own_log(run: KeptRun) -> None:
    run.start("pass", sidecar=beside(run, "print('aside', flush=True); say('beside')"))
    run.wait_end()
    run.wait_file("beside")
    assert (run.folder.logs / "sidecar.log").read_text() == "aside\n"


@pytest.mark.parametrize("changes", [{"argv": ["/no/such/program"]}, {"cwd": "/no/such/folder"}])
def test_a_sidecar_that_cannot_be_started_is_told_and_the_run_goes_on(run: KeptRun, changes: dict[str, Any]) -> None:
    run.start("print('done')", sidecar=beside(run, WAITS, **changes))
    assert run.wait_end()["code"] == 0
    assert "/no/such/" in run.wait_event("sidecar_not_started")["reason"]
    assert run.folder.stdout_log("scripted").read_text() == "done\n"
