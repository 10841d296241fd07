"""Commands that are forked behave as those that are started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.helpers.command_server import can_fork, command_server
from tests.helpers.commands import MOSAIC, mosaic

from mosaic.contracts.folder import Workspace

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="commands are forked on Linux only")


@pytest.mark.parametrize("arguments", [("algorithms", "dqn", "--json"), ("runs", "--jsn"), ("check", "ppo", "no.json")])
def test_a_forked_command_says_and_returns_what_a_started_one_does(arguments: tuple[str, ...], tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "var")
    environment = {**os.environ, "MOSAIC_VAR": str(workspace.root), "COLUMNS": "100"}
    assert can_fork(environment)
    done = subprocess.run([MOSAIC, *arguments], env=environment, capture_output=True, text=True)
    assert mosaic(workspace, *arguments) == (done.returncode, done.stdout, done.stderr)


def test_what_python_reads_at_its_start_needs_a_process_of_its_own() -> None:
    assert can_fork({**os.environ, "MOSAIC_VAR": "elsewhere"})
    assert not can_fork({**os.environ, "LD_PRELOAD": "lib.so"})
    assert not can_fork({**os.environ, "PYTHONPATH": "elsewhere"})


def test_a_forked_process_is_ended_by_a_signal_and_reports_it(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as output:
        command = [MOSAIC, "daemon", "run", "--var", str(tmp_path / "var"), "--port", "0"]
        process = command_server().start(command, os.environ, output.fileno(), output.fileno())
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    assert process.poll() is None
    process.kill()
    assert (process.wait(60), process.poll()) == (-9, -9)
