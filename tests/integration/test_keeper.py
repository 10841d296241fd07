from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.helpers.keeper_runs import (
    DAEMONIZED,
    IGNORES_SIGNALS,
    OBEYS_STOP,
    SLEEPER,
    TIMEOUT_S,
    KeeperRun,
    python,
    send_launch,
    until,
)

from mosaic.base.processes import is_alive
from mosaic.keeper.launch_spec import keeper_command

SHORT = {"stop": 0.2, "term": 0.2}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[KeeperRun]:
    keeper_run = KeeperRun(tmp_path / "it's a run")
    yield keeper_run
    assert keeper_run.close() == [], "processes were left running"


def test_a_normal_exit_is_recorded_with_its_details(run: KeeperRun) -> None:
    run.start("print('out'); print('a word', file=sys.stderr)")
    exited = run.wait_end()
    assert [event["kind"] for event in run.events()][:2] == ["keeper_started", "worker_started"]
    assert (exited["code"], exited["signal"], exited["cause"], exited["limit"]) == (0, None, None, None)
    assert exited["last_words"] == "a word"
    assert exited["duration_s"] > 0
    assert exited["peak_rss_mb"] > 1
    assert run.folder.stdout_log("scripted").read_text() == "out\n"


def test_an_exit_code_and_the_last_line_of_a_traceback_are_recorded(run: KeeperRun) -> None:
    """R2.6: the reason of a failure."""
    run.start("import atexit; atexit.register(lambda: os._exit(3)); raise ValueError('too large')")
    exited = run.wait_end()
    assert (exited["code"], exited["last_words"]) == (3, "ValueError: too large")


def test_a_worker_that_is_killed_shows_its_signal(run: KeeperRun) -> None:
    """F3: the keeper records it."""
    run.start(SLEEPER)
    os.kill(int(run.wait_file("ready")), signal.SIGKILL)
    exited = run.wait_end()
    assert (exited["code"], exited["signal"], exited["cause"]) == (None, signal.SIGKILL, None)


def test_a_segmentation_fault_is_the_last_words(run: KeeperRun) -> None:
    """F5: the signal is recorded, and the Python stack is in stderr."""
    run.start("import ctypes, faulthandler; faulthandler.enable(); ctypes.string_at(0)")
    exited = run.wait_end()
    assert exited["signal"] == signal.SIGSEGV
    assert exited["last_words"] == "Fatal Python error: Segmentation fault"
    assert "string_at" in run.folder.stderr_log("scripted").read_text()


def test_the_worker_is_identified_and_runs_in_its_own_session(run: KeeperRun) -> None:
    keeper = run.start(SLEEPER)
    pid = int(run.wait_file("ready"))
    process = run.wait_event("worker_started")["process"]
    assert process["pid"] == pid
    assert is_alive(process)
    assert is_alive(run.wait_event("keeper_started")["process"])
    assert os.getsid(pid) == pid != os.getsid(keeper.pid)
    os.kill(pid, signal.SIGKILL)
    run.wait_end()


def test_the_worker_sees_its_environment_an_empty_stdin_and_default_signals(run: KeeperRun) -> None:
    run.start("""
        assert sys.stdin.read() == ""
        given = {"PATH", "RUN", "MOSAIC_TEST_MARK", "MOSAIC_KEEPER"}
        assert os.getcwd() == RUN and given <= set(os.environ) <= given | {"LC_CTYPE"}, os.environ
        assert signal.getsignal(signal.SIGHUP) == signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
        assert sorted(os.listdir("/proc/self/fd")) == ["0", "1", "2", "3"]
    """)
    exited = run.wait_end()
    assert exited["code"] == 0, exited["last_words"]


def test_a_stop_that_is_obeyed_needs_no_signal(run: KeeperRun) -> None:
    run.start(OBEYS_STOP)
    run.wait_file("ready")
    run.send("stop")
    exited = run.wait_end()
    assert (exited["code"], exited["signal"], exited["cause"]) == (0, None, "stop")
    assert run.events("escalated") == []


def test_a_stop_that_is_ignored_becomes_a_kill(run: KeeperRun) -> None:
    run.start(IGNORES_SIGNALS, grace_s=SHORT)
    run.wait_file("ready")
    run.send("stop")
    exited = run.wait_end()
    assert (exited["signal"], exited["cause"]) == (signal.SIGKILL, "stop")
    assert [(event["signal"], event["cause"]) for event in run.events("escalated")] == [
        ("SIGTERM", "stop"),
        ("SIGKILL", "stop"),
    ]


def test_a_stop_wakes_a_worker_that_was_stopped_by_a_signal(run: KeeperRun) -> None:
    run.start(OBEYS_STOP)
    pid = int(run.wait_file("ready"))
    os.kill(pid, signal.SIGSTOP)
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "the worker is stopped")
    run.send("stop")
    assert run.wait_end()["code"] == 0


def test_commands_for_an_earlier_attempt_are_not_obeyed_again(run: KeeperRun) -> None:
    run.send("stop")
    offset = run.folder.inbox.stat().st_size
    run.start(SLEEPER, inbox_offset=offset, grace_s={"stop": 0.0, "term": 0.0})
    pid = int(run.wait_file("ready"))
    run.wait_event("sample")
    os.kill(pid, signal.SIGKILL)
    assert run.wait_end()["cause"] is None


def test_a_daemonized_grandchild_is_gone_after_a_normal_exit(run: KeeperRun) -> None:
    run.start(DAEMONIZED)
    exited = run.wait_end()
    assert (exited["code"], exited["cause"], exited["ended_leftovers"]) == (0, None, 1)
    assert run.members() == []


def test_a_daemonized_grandchild_is_gone_after_a_stop(run: KeeperRun) -> None:
    run.start(DAEMONIZED + "    time.sleep(600)\n", grace_s=SHORT)
    grandchild = int(run.wait_file("daemonized"))
    assert os.getsid(grandchild) != os.getsid(run.wait_event("worker_started")["process"]["pid"])
    run.send("stop")
    assert run.wait_end()["cause"] == "stop"
    assert run.members() == []


def test_children_that_are_started_while_the_tree_is_being_killed_end_too(run: KeeperRun) -> None:
    exited = run.run_to_time_limit(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        announce("ready")
        for _ in range(200):
            if os.fork() == 0:
                os.setsid()
                time.sleep(600)
                os._exit(0)
            time.sleep(0.01)
        time.sleep(600)
        """,
        grace_s=SHORT,
    )
    assert exited["cause"] == "time_limit"
    assert run.members() == []


def test_the_worker_can_save_at_its_time_limit(run: KeeperRun) -> None:
    exited = run.run_to_time_limit(
        """
        def save(number, frame):
            announce("checkpoint")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        announce("ready")
        time.sleep(600)
        """,
        seconds=1.0,
    )
    assert (exited["code"], exited["cause"], exited["limit"]) == (0, "time_limit", 1.0)
    assert run.wait_file("checkpoint")


def test_the_time_limit_kills_a_worker_that_ignores_signals(run: KeeperRun) -> None:
    exited = run.run_to_time_limit(IGNORES_SIGNALS, grace_s=SHORT)
    assert (exited["signal"], exited["cause"]) == (signal.SIGKILL, "time_limit")


def test_the_memory_limit_kills_a_tree_whose_child_takes_too_much(run: KeeperRun) -> None:
    """F4: the peak and the limit are recorded."""
    run.start(
        """
        if os.fork() == 0:
            taken = []
            while True:
                taken.append(b"x" * (4 << 20))
                time.sleep(0.02)
        time.sleep(600)
        """,
        limits={"seconds": None, "memory_mb": 60},
    )
    exited = run.wait_end()
    assert (exited["signal"], exited["cause"], exited["limit"]) == (signal.SIGKILL, "memory_limit", 60)
    assert exited["peak_rss_mb"] > 60


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs the kernel's exact figures")
def test_pages_that_forked_children_share_do_not_count_many_times(run: KeeperRun) -> None:
    run.start(
        """
        taken = b"x" * (60 << 20)
        children = []
        for _ in range(4):
            if not (pid := os.fork()):
                time.sleep(600)
            children.append(pid)
        while not os.path.exists(os.path.join(RUN, "sampled")):
            time.sleep(0.02)
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        """,
        limits={"seconds": None, "memory_mb": 150},
    )
    until(lambda: any(sample["processes"] == 5 for sample in run.events("sample")), "a sample of all processes")
    (run.folder.path / "sampled").touch()
    exited = run.wait_end()
    assert (exited["code"], exited["cause"]) == (0, None)
    assert exited["peak_rss_mb"] > 150


def test_a_pause_by_signal_stops_the_whole_tree_until_it_is_resumed(run: KeeperRun) -> None:
    run.start(
        """
        os.fork()
        announce(f"ready{os.getpid()}")
        time.sleep(600)
        """
    )
    members = until(lambda: len(pids := run.members()) == 2 and pids, "two processes")

    def are_stopped() -> bool:
        return all(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in members)

    run.send("pause", by_signal=True)
    until(are_stopped, "both are stopped")
    run.wait_event("paused_by_signal")
    run.send("resume", by_signal=True)
    until(lambda: not are_stopped(), "they continue")
    run.wait_event("resumed_by_signal")
    run.send("pause", by_signal=True)
    until(are_stopped, "both are stopped again")
    os.kill(run.keepers[0].pid, signal.SIGTERM)
    assert run.wait_end()["cause"] == "keeper_terminated"


def test_a_paused_run_outlives_its_time_limit(run: KeeperRun) -> None:
    run.send("pause", by_signal=True)
    run.start(SLEEPER, limits={"seconds": 1.0, "memory_mb": None}, grace_s=SHORT)
    run.wait_event("sample", count=2)
    assert run.events("escalated") == []
    run.send("resume", by_signal=True)
    assert run.wait_end()["cause"] == "time_limit"


def test_a_terminated_keeper_ends_its_tree_cleanly(run: KeeperRun) -> None:
    keeper = run.start(DAEMONIZED + "    announce('ready'); time.sleep(600)\n")
    run.wait_file("ready")
    for number in (signal.SIGHUP, signal.SIGINT):
        keeper.send_signal(number)
    run.wait_event("sample")
    assert keeper.poll() is None
    keeper.terminate()
    exited = run.wait_end()
    assert (exited["signal"], exited["cause"]) == (signal.SIGTERM, "keeper_terminated")
    assert run.members() == []


def test_garbage_on_stdout_and_stderr_reaches_the_files_unchanged(run: KeeperRun) -> None:
    """F7: binary data, progress bars and 1 MB without a newline."""
    run.start("""
        garbage = bytes(range(256)) * 400 + b"\\r10%\\r20%" + b"x" * (1 << 20)
        os.write(1, garbage)
        os.write(2, garbage)
    """)
    exited = run.wait_end()
    garbage = bytes(range(256)) * 400 + b"\r10%\r20%" + b"x" * (1 << 20)
    assert run.folder.stdout_log("scripted").read_bytes() == garbage
    assert run.folder.stderr_log("scripted").read_bytes() == garbage
    assert exited["last_words"] == "x" * 300


@pytest.mark.parametrize(
    ("argv", "changes", "message"),
    [
        (["no-such-program"], {}, "was not found: 'no-such-program'"),
        (["./keeper.log"], {}, "Permission denied for './keeper.log'"),
        (python("pass"), {"cwd": "/no/such/folder"}, "does not exist: '/no/such/folder'"),
        (python("pass"), {"log_name": "no/such/folder"}, "could not be started"),
    ],
)
def test_a_worker_that_cannot_start_is_reported_with_the_reason(
    run: KeeperRun, argv: list[str], changes: dict[str, Any], message: str
) -> None:
    run.start(argv=argv, **changes)
    last = run.wait_end()
    assert last["kind"] == "worker_not_started"
    assert message in last["reason"]
    assert len(run.events()) == 2


def test_a_second_attempt_continues_the_journal_and_has_its_own_last_words(run: KeeperRun) -> None:
    run.start("sys.exit('the first words')")
    assert run.wait_end()["last_words"] == "the first words"
    run.start("pass")
    exited = run.wait_end()
    assert exited["last_words"] is None
    assert len(run.events("worker_started")) == len(run.events("exited")) == 2


def test_samples_show_what_the_tree_uses(run: KeeperRun) -> None:
    run.start("""
        taken = b"x" * (40 << 20)
        if (child := os.fork()) == 0:
            while True: pass
        time.sleep(600)
    """)
    until(lambda: any(sample["processes"] == 2 for sample in run.events("sample")), "a sample of both processes")
    # The child spins from one sample to the next.
    sample = run.wait_event("sample", count=1 + len(run.events("sample")))
    assert sample["processes"] == 2
    assert sample["rss_mb"] > 40
    assert sample["cpu_percent"] > 1
    run.keepers[0].terminate()
    run.wait_end()


def test_events_that_did_not_fit_on_the_disk_are_written_when_there_is_room(run: KeeperRun) -> None:
    """F9: the keeper loses no event."""
    keeper = run.spawn()
    # This keeper cannot write to any file until the limit is lifted.
    _, hard = resource.prlimit(keeper.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(keeper.pid, resource.RLIMIT_FSIZE, (0, hard))
    # The worker inherits the limit and writes nothing, so only its process shows that it was started.
    send_launch(keeper, run.launch(python("while not os.path.exists(os.path.join(RUN, 'seen')): time.sleep(0.02)")))
    until(run.members, "the worker is alive")
    (run.folder.path / "seen").touch()
    until(lambda: run.members() == [], "the worker has exited")
    assert run.events() == []
    resource.prlimit(keeper.pid, resource.RLIMIT_FSIZE, (hard, hard))
    assert run.wait_end()["code"] == 0
    kinds = [event["kind"] for event in run.events()]
    assert kinds == ["keeper_started", "worker_started", "machine", "exited"]


@pytest.mark.parametrize("data", [b"", b"{}", b"no json", json.dumps({"folder": "x"}).encode()])
def test_a_malformed_launch_ends_in_one_sentence(data: bytes) -> None:
    result = subprocess.run(keeper_command(), input=data, capture_output=True, timeout=TIMEOUT_S)
    assert result.returncode == 2
    assert result.stdout == b""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.rstrip().endswith(b".")


def test_nothing_is_started_in_a_missing_run_folder(run: KeeperRun) -> None:
    keeper = run.start("announce('ready')", folder=str(run.folder.path / "gone"))
    assert keeper.wait(TIMEOUT_S) == 1
    assert "could not be opened" in (run.folder.path / "keeper.log").read_text()
    assert not (run.folder.path / "ready").exists()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_the_keeper_stays_under_20_mb(run: KeeperRun) -> None:
    # NVIDIA's library alone takes as much again, so it is left out.
    launch = run.launch(python(SLEEPER), limits={"seconds": 60.0, "memory_mb": 500})
    keeper = run.spawn()
    send_launch(keeper, {**launch, "env": {**launch["env"], "CUDA_VISIBLE_DEVICES": ""}})
    run.wait_event("sample")
    status = Path(f"/proc/{keeper.pid}/status").read_text(encoding="utf-8")
    peak_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    keeper.terminate()
    run.wait_end()
    assert peak_kb <= 20 * 1024
