"""Workers that are killed, crash or hang."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.helpers.daemons import LiveDaemon, ended, scripted, wait_for
from tests.helpers.probe_scripts import start_script

from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.trainer_client import TrainerClient

STARTS_A_CHILD = """
    import subprocess, sys
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
    print(child.pid, flush=True)
    sys.exit(f"the simulator ended with {child.wait()}")
"""
CRASHES = """
    import ctypes
    def read_nothing():
        ctypes.string_at(0)
    read_nothing()
"""
SPINS = """
    while True:
        pass
"""
DEADLOCKS = """
    import threading
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
"""
SOON_STALLED = """
from mosaic.trainer import __main__, records
records.STALLED_AFTER_S = 1.0
raise SystemExit(__main__.main())
"""


@pytest.mark.parametrize(
    ("killed", "outcome", "reason"),
    [("worker", "failed", "SIGKILL"), ("keeper", "lost", "keeper"), ("child", "failed", "the simulator ended with -9")],
)
def test_a_killed_process_of_a_run_is_its_true_end(
    trainer: TrainerClient,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    killed: str,
    outcome: str,
    reason: str,
) -> None:
    """F3: the worker, the keeper, or a child that the worker waits for."""
    run_id = start_script(trainer, tmp_path / "script", STARTS_A_CHILD)
    wait_for(lambda: b"\n" in read_log(trainer, run_id) and trainer.get_run(run_id).attempts[-1].worker, "the child")
    attempt = trainer.get_run(run_id).attempts[-1]
    assert attempt.worker is not None
    assert attempt.keeper is not None
    pids = {"worker": attempt.worker["pid"], "keeper": attempt.keeper["pid"], "child": int(read_log(trainer, run_id))}
    os.kill(pids[killed], signal.SIGKILL)
    killed_at = time.monotonic()
    view = ended(trainer, run_id)
    record_property("worst_s", time.monotonic() - killed_at)
    assert view.outcome == outcome
    assert reason in (view.reason or "")
    for pid in pids.values():
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), f"process {pid} to be gone")  # noqa: B023


def read_log(trainer: TrainerClient, run_id: str, is_stderr: bool = False) -> bytes:
    return b"".join(chunk.data for chunk in trainer.log(run_id, is_stderr))


def test_a_crash_of_a_script_is_shown_with_its_signal_and_stack(trainer: TrainerClient, tmp_path: Path) -> None:
    """F5: although the script does not enable the fault handler."""
    view = ended(trainer, start_script(trainer, tmp_path / "script", CRASHES))
    assert view.outcome == "failed"
    assert "SIGSEGV" in (view.reason or "")
    assert b"in read_nothing" in read_log(trainer, view.run_id, is_stderr=True)


def test_a_run_without_progress_is_shown_as_stalled_and_not_killed(
    workspace: Workspace, plugins: Path, tmp_path: Path
) -> None:
    """F6: stopped by a signal, in an endless loop or in a deadlock; it can be cancelled, or waited for."""
    daemon = LiveDaemon(workspace, plugins, "--max-runs", "4")
    daemon.command = [sys.executable, "-c", SOON_STALLED]
    trainer = daemon.start()
    stopped = trainer.submit(scripted(steps=1_000_000, dt=0.02)).run_id
    hanging = [start_script(trainer, tmp_path / name, code) for name, code in (("s", SPINS), ("d", DEADLOCKS))]
    wait_for(lambda: (trainer.get_run(stopped).global_step or 0) > 3, "its first steps")
    pid = trainer.get_run(stopped).pid or 0
    os.kill(pid, signal.SIGSTOP)
    for run_id in (stopped, *hanging):
        wait_for(lambda: trainer.get_run(run_id).status == "stalled", "it to be stalled")  # noqa: B023
    assert {view.status for view in trainer.runs()} == {"stalled"}
    assert {view.stage for view in trainer.runs()} == {"running"}
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: trainer.get_run(stopped).status == "running", "it to continue")
    for run_id in (stopped, *hanging):
        trainer.cancel_run(run_id)
    assert [ended(trainer, run_id).outcome for run_id in (stopped, *hanging)] == ["cancelled"] * 3
    trainer.close()
    daemon.end()
