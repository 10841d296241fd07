"""F51: `daemon status` and `daemon stop` answer, whatever the queue, daemon.json or the machine is like."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.helpers.commands import MOSAIC, mosaic
from tests.helpers.daemons import LiveDaemon, ended, environment, scripted, wait_for
from tests.helpers.probe_scripts import start_script

from mosaic.base.files import write_json
from mosaic.base.processes import identify, is_alive
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.connect import read_daemon_address
from mosaic.trainer.daemon import Daemon
from mosaic.trainer.scheduler import Slots

PATCHED_DAEMON = """
from mosaic.trainer import __main__, daemon
{change}
raise SystemExit(__main__.main())
"""
NEVER_RESTORES_FILES = "daemon.CHECK_S = 3600"
HAS_NO_STATUS = "daemon.Daemon.status = None"
HAS_NO_PROC = "__main__.own_identity = lambda: {'pid': 1, 'start': '', 'boot_id': ''}"
WAITS = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]):\n    time.sleep(0.02)\n"


def patched(workspace: Workspace, plugins: Path, change: str) -> LiveDaemon:
    daemon = LiveDaemon(workspace, plugins)
    daemon.command = [sys.executable, "-c", PATCHED_DAEMON.format(change=change)]
    return daemon


@pytest.mark.may_log("queue_paused")
def test_a_paused_queue_keeps_its_reason_when_another_run_ends_well(
    workspace: Workspace, plugins: Path, tmp_path: Path
) -> None:
    """F51: an earlier run succeeds while the queue is paused; the status shows why it waits, and the daemon stops."""
    daemon = LiveDaemon(workspace, plugins, "--max-runs", "2")
    with daemon.start() as trainer:
        active = start_script(trainer, tmp_path, WAITS, str(tmp_path / "go"))
        wait_for(lambda: trainer.get_run(active).stage == "running", "the script")
        failing = [trainer.submit(scripted(exit=3)).run_id for _ in range(3)]
        waiting = trainer.submit(scripted()).run_id
        wait_for(lambda: trainer.get_status().paused, "the pause")
        Path(tmp_path, "go").touch()
        assert ended(trainer, active).outcome == "succeeded"
        status = mosaic(workspace, "daemon", "status", "--json")
        assert status.code == 0, status.err
        assert f"mosaic show {failing[-1][-6:].lower()}" in status.json["paused"].lower()
        assert trainer.get_run(waiting).stage == "queued"
        stopped = mosaic(workspace, "daemon", "stop")
        assert (stopped.code, "has ended" in stopped.out) == (0, True), stopped.err
    with daemon.start() as trainer:
        assert ended(trainer, waiting).outcome == "succeeded"
    daemon.end()


@pytest.mark.may_log("status_failed")
def test_a_daemon_that_cannot_describe_itself_stops(workspace: Workspace, plugins: Path) -> None:
    """F51: to stop needs no status."""
    daemon = patched(workspace, plugins, HAS_NO_STATUS)
    daemon.start().close()
    result = mosaic(workspace, "daemon", "stop")
    assert (result.code, "has ended" in result.out, result.err.count("signal")) == (0, True, 0), result.err


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_a_daemon_without_its_file_is_stopped_by_its_lock(
    workspace: Workspace, plugins: Path, content: str | None
) -> None:
    """F51: daemon.json is missing or damaged; daemon.lock tells which process is the daemon."""
    daemon = patched(workspace, plugins, NEVER_RESTORES_FILES)
    daemon.start().close()
    assert daemon.process is not None
    workspace.daemon_file.unlink()
    if content is not None:
        workspace.daemon_file.write_text(content)
    refused = mosaic(workspace, "daemon", "stop", "--drain")
    assert (refused.code, "daemon.json is missing or damaged" in refused.err) == (4, True), refused.err
    result = mosaic(workspace, "daemon", "stop", "--json")
    assert (result.code, result.json) == (0, {"stopped": daemon.process.pid}), result.err
    assert daemon.process.wait(60) == 0
    assert mosaic(workspace, "daemon", "stop", "--json").json == {"stopped": None}


@pytest.mark.parametrize("is_number", [False, True])
def test_a_process_that_got_the_number_of_a_daemon_is_left_alone(workspace: Workspace, is_number: bool) -> None:
    """F51, F19: daemon.lock is that of a daemon that died, of this version or of 0.1.0."""
    workspace.trainer.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        identity = identify(other.pid)
        write_json(workspace.daemon_lock, other.pid if is_number else {**identity, "start": "1"})
        result = mosaic(workspace, "daemon", "stop")
        assert (result.code, result.out.splitlines()[-1]) == (0, "No daemon runs."), result.err
        assert is_alive(identity)


def test_a_daemon_with_too_few_files_says_so(workspace: Workspace, plugins: Path) -> None:
    """F51: the reason is in the message and in the file that it names."""
    command = f"ulimit -n 16; exec '{MOSAIC}' daemon start"
    variables = {**environment(plugins), "MOSAIC_VAR": str(workspace.root)}
    done = subprocess.run(["sh", "-c", command], env=variables, capture_output=True, text=True)
    console = workspace.logs / "trainer.console.log"
    assert done.returncode == 4
    assert "may open 16 files" in done.stderr
    assert "ulimit -n 1024" in done.stderr
    assert str(console) in done.stderr
    assert "ulimit -n 1024" in console.read_text()


def test_a_daemon_that_cannot_recognize_processes_does_not_start(workspace: Workspace, plugins: Path) -> None:
    """F51: without /proc, it would be started again and again by every command."""
    daemon = patched(workspace, plugins, HAS_NO_PROC)
    daemon.launch()
    assert daemon.process is not None
    assert daemon.process.wait(60) == 2
    assert "Mount /proc" in Path(workspace.root, "daemon.out").read_text(encoding="utf-8")
    assert read_daemon_address(workspace) is None


def test_a_check_of_the_files_does_not_bring_back_what_was_withdrawn(workspace: Workspace) -> None:
    """F18: daemon.json is withdrawn by the thread of a call while the loop restores what is missing."""
    workspace.create_private()
    daemon = Daemon(workspace, Slots(runs=1, cpus=1, gpus=0))

    class Files:
        """Where the check is when it has passed its first condition: here the other thread withdraws."""

        def has_folder(self) -> bool:
            return True

        def restore_if_gone(self) -> bool:
            return False

        def restore_file(self) -> bool:
            withdrawing.start()
            withdrawing.join(0.5)
            return False

    withdrawing = threading.Thread(target=daemon._withdraw)
    daemon._is_ready, daemon._lock, daemon._started_at, daemon._address = True, Files(), 1.0, "127.0.0.1:1"  # type: ignore[assignment]
    daemon._records = type("Records", (), {"index": Files()})()
    daemon._write_daemon_file()
    assert json.loads(workspace.daemon_file.read_text())["address"] == "127.0.0.1:1"
    daemon._check_files()
    withdrawing.join()
    assert not workspace.daemon_file.exists()
