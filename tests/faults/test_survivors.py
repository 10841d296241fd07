"""F43: nothing of a run's process tree survives its keeper, however the processes left its session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.daemons import LiveDaemon, ended, scripted, wait_for

from mosaic.base.processes import identify, is_alive, own_identity
from mosaic.contracts.folder import KEEPER_VARIABLE
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.keeper.survivors import find_survivors, keeper_mark
from mosaic.trainer.client.trainer_client import TrainerClient

SCRIPT = """
import os, subprocess, sys, time
SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
plain = subprocess.Popen(SLEEP)
without_environment = subprocess.Popen(SLEEP, env={})
own_session = subprocess.Popen(SLEEP, start_new_session=True)
# A daemon: its parent has ended, and it has a session of its own.
starter = "import subprocess; print(subprocess.Popen(%r, start_new_session=True, stdout=-3).pid)" % SLEEP
orphan = subprocess.run([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True).stdout
pids = [os.getpid(), plain.pid, without_environment.pid, own_session.pid, int(orphan)]
with open(sys.argv[1] + ".part", "w") as file:
    file.write(" ".join(map(str, pids)))
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(300)
"""


def start_tree(trainer: TrainerClient, folder: Path) -> tuple[str, ProcessIdentity, list[ProcessIdentity]]:
    """Start a script with children of every kind; return its run, its keeper and all its processes."""
    listing = folder / "pids"
    config = {"argv": [sys.executable, "-c", SCRIPT, str(listing)], "cwd": str(folder)}
    payload = {"metadata": {"worker": {"id": "script", "config": config}}, "artifacts": {}}
    run_id = trainer.submit(payload, environment=dict(os.environ)).run_id
    wait_for(listing.exists, "the script's processes")
    keeper = wait_for(lambda: trainer.get_run(run_id).attempts[-1].keeper, "its keeper")
    return run_id, keeper, [identify(int(pid)) for pid in listing.read_text().split()]


@pytest.mark.parametrize("is_worker_killed", [False, True], ids=["keeper", "keeper and worker"])
def test_no_process_survives_a_killed_keeper(trainer: TrainerClient, tmp_path: Path, is_worker_killed: bool) -> None:
    """F43: plain, orphaned and daemonized children are found by session, ancestry and an environment variable."""
    run_id, keeper, tree = start_tree(trainer, tmp_path)
    os.kill(keeper["pid"], signal.SIGKILL)
    if is_worker_killed:
        os.kill(tree[0]["pid"], signal.SIGKILL)
    view = ended(trainer, run_id)
    assert view.outcome == "lost"
    assert "its remaining processes were stopped" in (view.reason or "")
    assert [process for process in tree if is_alive(process)] == []


def test_no_process_survives_a_keeper_that_is_killed_with_the_daemon(
    daemon: LiveDaemon, trainer: TrainerClient, tmp_path: Path
) -> None:
    """F43: the next daemon ends what the keeper left."""
    run_id, keeper, tree = start_tree(trainer, tmp_path)
    trainer.close()
    daemon.kill()
    os.kill(keeper["pid"], signal.SIGKILL)
    os.kill(tree[0]["pid"], signal.SIGKILL)
    trainer = daemon.start()
    assert ended(trainer, run_id).outcome == "lost"
    assert [process for process in tree if is_alive(process)] == []
    trainer.close()


def test_strangers_are_not_survivors() -> None:
    """F19: a process that reuses the worker's number, its session, and other keepers' processes are left alone."""
    itself = own_identity()
    keeper: ProcessIdentity = {**itself, "start": "1"}
    command = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
    environment = {**os.environ, KEEPER_VARIABLE: keeper_mark({**keeper, "start": "2"})}
    stranger = subprocess.Popen(command, start_new_session=True, env=environment)
    try:
        reused: ProcessIdentity = {**identify(stranger.pid), "start": "1"}
        assert find_survivors(keeper, reused) == []
        assert find_survivors(keeper, identify(stranger.pid)) == [stranger.pid]
        mark = keeper_mark({**keeper, "start": "2"}).encode()
        # During its start, a program has no environment yet.
        wait_for(lambda: mark in Path(f"/proc/{stranger.pid}/environ").read_bytes(), "its environment")
        assert find_survivors({**keeper, "start": "2"}, None) == [stranger.pid]
    finally:
        stranger.kill()
        stranger.wait()


def test_a_survivor_that_writes_without_end_is_killed_before_its_journal_is_read(trainer: TrainerClient) -> None:
    """F43: its journal grows faster than the daemon reads it; other calls are answered meanwhile (F44)."""
    run_id = trainer.submit(scripted(steps=1_000_000_000, tags=200)).run_id
    wait_for(lambda: trainer.get_run(run_id).global_step, "its first step")
    keeper = trainer.get_run(run_id).attempts[-1].keeper
    assert keeper is not None
    os.kill(keeper["pid"], signal.SIGKILL)
    assert ended(trainer, run_id).outcome == "lost"
