"""F18: a workspace has one daemon, which is replaced at once when it ends."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
import pytest
from tests.helpers.commands import mosaic
from tests.helpers.daemons import LiveDaemon, environment, wait_for

from mosaic.base.files import write_json
from mosaic.base.processes import identify
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import Workspace
from mosaic.contracts.trainer_pb2_grpc import TrainerServicer, add_TrainerServicer_to_server
from mosaic.trainer.client.connect import connect, read_daemon_address
from mosaic.trainer.client.trainer_client import TrainerClient


def start_process(workspace: Workspace, plugins: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mosaic.trainer", "--var", str(workspace.root), "--port", "0"]
    return subprocess.Popen(command, env=environment(plugins), stderr=subprocess.PIPE, text=True)


def test_of_ten_daemons_started_at_once_one_remains(workspace: Workspace, plugins: Path) -> None:
    """F18: the others exit with the pid of the one that runs. (R2.7)"""
    started = [start_process(workspace, plugins) for _ in range(10)]
    wait_for(lambda: sum(process.poll() is None for process in started) == 1, "all but one to end")
    (living,) = [process for process in started if process.poll() is None]
    messages = [process.communicate()[1] for process in started if process is not living]
    assert all(f"already running, pid {living.pid}" in message for message in messages)
    address = wait_for(lambda: read_daemon_address(workspace), "the daemon's file")
    assert address.process["pid"] == living.pid
    living.terminate()
    living.communicate()
    assert read_daemon_address(workspace) is None


@pytest.mark.may_log("daemon_files_restored")
def test_a_second_daemon_stays_out_when_the_files_of_the_first_are_deleted(
    daemon: LiveDaemon, trainer: TrainerClient, workspace: Workspace, plugins: Path
) -> None:
    """F18: a cleaner of temporary files deletes the lock and daemon.json; the first daemon restores both."""
    pid = trainer.get_status().pid
    workspace.daemon_lock.unlink()
    workspace.daemon_file.unlink()
    second = start_process(workspace, plugins)
    with connect(workspace) as other:  # a command, which would start a daemon, too
        assert other.get_status().pid == pid
    assert f"already running, pid {pid}" in second.communicate(timeout=60)[1]
    assert second.returncode == 75
    assert json.loads(workspace.daemon_lock.read_text()) == identify(pid)
    wait_for(lambda: not started_daemons(workspace) - {pid}, "the daemon that the command has started to stay out")
    assert trainer.get_status().pid == pid


def started_daemons(workspace: Workspace) -> set[int]:
    """Return the processes that were started as the daemon of a workspace; one that was forked is not among them."""
    processes = psutil.process_iter(["pid", "cmdline"])
    commands = {process.info["pid"]: process.info["cmdline"] or [] for process in processes}
    return {pid for pid, words in commands.items() if "mosaic.trainer" in words and str(workspace.root) in words}


@pytest.mark.may_log("workspace_gone", "index_rebuilt")
def test_a_daemon_whose_folder_was_replaced_ends(workspace: Workspace, plugins: Path) -> None:
    """F18: the folder is deleted and made again by the next command, whose daemon is left alone."""
    first = LiveDaemon(workspace, plugins)
    first.start().close()
    shutil.rmtree(workspace.trainer)
    second = LiveDaemon(workspace, plugins)
    with second.start() as trainer:
        assert first.process is not None
        first.process.wait(timeout=60)
        assert second.process is not None
        assert trainer.get_status().pid == second.process.pid
        assert connect(workspace, may_start=False).get_status().pid == second.process.pid
    second.end()


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.15, 0.3])
def test_a_command_during_the_end_of_a_daemon_is_answered_by_the_next(
    daemon: LiveDaemon, trainer: TrainerClient, workspace: Workspace, delay_s: float
) -> None:
    """F2: daemon.json is withdrawn first, so that the next daemon is started and not this one waited for."""
    pid = trainer.get_status().pid
    watch = trainer.watch()
    next(watch)  # an open stream does not hold the end up
    trainer.stop_daemon()
    time.sleep(delay_s)
    result = mosaic(workspace, "runs", "--json")
    assert (result.code, result.out.strip()) == (0, "[]"), result.err
    with connect(workspace, may_start=False) as other:
        assert other.get_status().pid != pid
        other.stop_daemon()


def test_a_daemon_that_was_killed_raises_no_false_alarm(workspace: Workspace, plugins: Path) -> None:
    """F17: daemon.json names a process that dies while another program has its port; the client starts the next."""

    class OtherDaemon(TrainerServicer):
        def Identify(self, request, context):  # type: ignore[no-untyped-def]
            sleeper.kill()
            sleeper.wait()
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the caller does not know the token")

    server = grpc.server(ThreadPoolExecutor(2))
    add_TrainerServicer_to_server(OtherDaemon(), server)  # type: ignore[abstract]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    workspace.trainer.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as sleeper:
        fields = {"address": f"127.0.0.1:{port}", "token": "x", "process": identify(sleeper.pid)}
        write_json(workspace.daemon_file, {**fields, "started_at": 1, "version": ""})
        with connect(workspace) as trainer:
            assert trainer.runs() == []
            trainer.stop_daemon()
    server.stop(None).wait()


HANGING_WORKER = """
import sys
from mosaic.base.worker_registry import WorkerDescription

def describe():
    checker = (sys.executable, "-S", "-c", "import sys, time; sys.stdin.readline(); time.sleep(600)")
    return WorkerDescription(id="hanging", title="Hanging", version="1", command=("true",), checker=checker)
"""


def test_a_checker_that_hangs_does_not_delay_the_end_of_a_daemon(workspace: Workspace, plugins: Path) -> None:
    """F2: the checker is killed, and its caller gets an error."""
    daemon = LiveDaemon(workspace, plugins)
    (plugins / "hanging_worker.py").write_text(HANGING_WORKER)
    info = plugins / "hanging_worker-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging-worker\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[mosaic.workers]\nhanging = hanging_worker:describe\n")
    payload = {"metadata": {"worker": {"id": "hanging", "config": {}}}, "artifacts": {}}
    with daemon.start() as trainer, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(trainer.submit, payload)
        children = psutil.Process(trainer.get_status().pid).children
        checker = wait_for(
            lambda: [child for child in children() if "sleep(600)" in child.cmdline()[-1]], "the checker"
        )
        wait_for(lambda: checker[0].num_ctx_switches().voluntary and not answer.done(), "the question")
        daemon.stop()
        assert isinstance(answer.exception(timeout=90), MosaicError)
