"""A keeper whose caller may be killed together with its children: it is nobody's child, and notices the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.helpers.keeper_runs import KeeperRun, python, until

from mosaic.base.processes import identify, is_alive
from mosaic.keeper.launch_spec import detached_keeper_command

SLEEPER = """
    announce("ready")
    time.sleep(600)
"""


def test_a_keeper_that_loses_its_lifeline_stops_its_worker(tmp_path: Path) -> None:
    run = KeeperRun(tmp_path / "it's a run")
    reader, writer = os.pipe()
    launch = run.launch(python(SLEEPER), lifeline_fd=reader, lifeline_s=0.1)
    with open(run.folder.path / "keeper.log", "ab") as log:
        starter = subprocess.Popen(
            detached_keeper_command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=(reader,),
        )
    os.close(reader)
    pid, _ = starter.communicate(json.dumps(launch).encode())
    keeper = identify(int(pid))
    assert run.wait_event("keeper_started")["process"] == keeper
    assert os.getsid(keeper["pid"]) == keeper["pid"]
    run.wait_file("ready")
    assert run.events("exited") == []
    os.close(writer)
    until(lambda: not is_alive(keeper), "the end of the keeper")
    assert run.events()[-1]["cause"] == "lifeline_lost"
    assert run.close() == []


def test_the_signals_of_a_cluster_are_left_to_the_process_that_vouches_for_the_run(tmp_path: Path) -> None:
    """Some clusters signal every process of a job: a notice ends none of them, a termination is not a cancellation."""
    run = KeeperRun(tmp_path / "it's a run")
    keeper = run.start(SLEEPER, is_signalled_by_cluster=True)
    worker = int(run.wait_file("ready"))
    for pid in (keeper.pid, worker):
        os.kill(pid, signal.SIGUSR2)
    keeper.terminate()
    exited = run.wait_end()
    assert (exited["signal"], exited["cause"]) == (signal.SIGTERM, "lifeline_lost")
    assert run.close() == []
