"""F19: the pids in the files of a workspace have been given to other processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.helpers.daemons import LiveDaemon, ended, scripted, wait_for

from mosaic.base.processes import identify, is_alive
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.trainer.client.connect import read_daemon_address
from mosaic.trainer.client.trainer_client import TrainerClient


@pytest.mark.parametrize("difference", ["start", "boot_id"])
def test_a_process_that_has_the_pid_of_an_earlier_one_is_not_touched(
    daemon: LiveDaemon, trainer: TrainerClient, workspace: Workspace, difference: str
) -> None:
    """F19: the record and daemon.json name it, with another start time or from another boot; the run is lost."""
    run_id = trainer.submit(scripted(steps=1_000_000, dt=0.01)).run_id
    wait_for(lambda: trainer.get_run(run_id).global_step, "its first steps")
    view = trainer.get_run(run_id)
    processes = [view.attempts[-1].keeper, view.attempts[-1].worker]
    trainer.close()
    address = workspace.daemon_file.read_text()
    daemon.kill()
    for process in processes:
        assert process is not None
        os.kill(process["pid"], signal.SIGKILL)
        wait_for(lambda: not is_alive(process), "its processes to end")  # noqa: B023

    sleep = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
    with subprocess.Popen(sleep, start_new_session=True) as stranger:
        try:
            recorded = {**identify(stranger.pid), difference: "1"}
            path = RunFolder(view.run_dir).record
            record = json.loads(path.read_text())
            record["attempts"][-1] |= {"keeper": recorded, "worker": recorded}
            path.write_text(json.dumps(record))
            workspace.daemon_file.write_text(json.dumps({**json.loads(address), "process": recorded}))
            assert read_daemon_address(workspace) is None
            trainer = daemon.start()
            assert ended(trainer, run_id).outcome == "lost"
            trainer.close()
            assert stranger.poll() is None
        finally:
            stranger.kill()
