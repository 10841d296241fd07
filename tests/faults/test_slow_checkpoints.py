"""F48: a checkpoint takes longer to write than a stop may take to be obeyed, as on a network disk."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.daemons import LiveDaemon, ended, wait_for
from tests.helpers.keeper_runs import TIMEOUT_S, KeeperRun

from mosaic.base.checkpoint_files import is_intact, list_steps
from mosaic.base.journal import Journal, read_all
from mosaic.contracts.commands import CHECKPOINT_LIMIT_S
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.trainer_client import TrainerClient

SAVES = """
    import json
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with open(os.path.join(RUN, "journal.jsonl"), "a") as journal:
        def report(kind):
            journal.write(json.dumps({"seq": 1, "kind": kind}) + "\\n")
            journal.flush()
        report("checkpoint_begun")
        announce("ready")
        while not os.path.exists(os.path.join(RUN, "complete")):
            time.sleep(0.01)
        report("checkpoint")
"""
HANGS_AFTERWARDS = f"{SAVES}    announce('saved')\n    time.sleep(600)\n"
SHORT = {"stop": 0.2, "term": 0.2}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[KeeperRun]:
    keeper_run = KeeperRun(tmp_path / "it's a run")
    yield keeper_run
    assert keeper_run.close() == [], "processes were left running"


def end_by_stop(run: KeeperRun) -> str:
    run.send("stop")
    return "stop"


def end_by_sigterm(run: KeeperRun) -> str:
    run.keepers[-1].send_signal(signal.SIGTERM)
    return "keeper_terminated"


def end_by_time_limit(run: KeeperRun) -> str:
    run.send("resume")
    return "time_limit"


@pytest.mark.parametrize("end", [end_by_stop, end_by_sigterm, end_by_time_limit])
def test_a_worker_that_writes_a_checkpoint_is_not_killed(run: KeeperRun, end: Callable[[KeeperRun], str]) -> None:
    """F48: whatever it was stopped by."""
    run.send("pause")  # so that no time passes for the limit
    run.start(SAVES, grace_s={**SHORT, "save": TIMEOUT_S}, limits={"seconds": 0.1, "memory_mb": None})
    run.wait_file("ready")
    cause = end(run)
    assert run.wait_event("checkpoint_awaited")["limit_s"] == TIMEOUT_S
    (run.folder.path / "complete").touch()
    exited = run.wait_end()
    assert (exited["code"], exited["cause"]) == (0, cause)
    assert "SIGKILL" not in [event["signal"] for event in run.events("escalated")]


@pytest.mark.parametrize("end", [end_by_stop, end_by_sigterm])
def test_a_worker_that_only_says_that_it_writes_is_killed_at_the_limit(
    run: KeeperRun, end: Callable[[KeeperRun], str]
) -> None:
    """F48."""
    run.start(SAVES, grace_s={**SHORT, "save": 1.0})
    run.wait_file("ready")
    cause = end(run)
    exited = run.wait_end()
    assert (exited["signal"], exited["cause"]) == (signal.SIGKILL, cause)
    assert len(run.events("checkpoint_awaited")) == 1


def test_a_worker_that_hangs_after_its_checkpoint_is_killed(run: KeeperRun) -> None:
    """F48: the grace period begins again when the checkpoint is complete, and is not endless."""
    run.start(HANGS_AFTERWARDS, grace_s={**SHORT, "save": TIMEOUT_S})
    run.wait_file("ready")
    run.send("stop")
    run.wait_event("checkpoint_awaited")
    (run.folder.path / "complete").touch()
    assert run.wait_end()["signal"] == signal.SIGKILL


def test_a_second_stop_ends_the_wait(run: KeeperRun) -> None:
    """F48: once the user could know of it; before that, it changes nothing."""
    run.start(SAVES, grace_s={**SHORT, "save": TIMEOUT_S})
    run.wait_file("ready")
    run.send("stop")
    run.send("stop")
    run.wait_event("checkpoint_awaited")
    run.send("stop")
    assert run.wait_end()["signal"] == signal.SIGKILL


def test_a_checkpoint_that_an_earlier_attempt_did_not_complete_is_not_waited_for(run: KeeperRun) -> None:
    """F48, F10."""
    journal = Journal(run.folder.journal)
    journal.append("checkpoint_begun")
    journal.close()
    run.start(SAVES.replace('report("checkpoint_begun")', "pass"), grace_s={**SHORT, "save": TIMEOUT_S})
    run.wait_file("ready")
    run.send("stop")
    assert run.wait_end()["signal"] == signal.SIGKILL
    assert run.events("checkpoint_awaited") == []


def test_the_newest_mark_is_found_in_a_long_journal(run: KeeperRun) -> None:
    """F48: only its end is read."""
    code = SAVES.replace(
        'report("checkpoint_begun")', 'report("progress" + "." * 1_000_000); report("checkpoint_begun")'
    )
    run.start(code, grace_s={**SHORT, "save": TIMEOUT_S})
    run.wait_file("ready")
    run.send("stop")
    run.wait_event("checkpoint_awaited")
    (run.folder.path / "complete").touch()
    assert run.wait_end()["code"] == 0


# --- a real checkpoint, whose fsync hangs

SLOW_DISK = """
import os, time
if "MOSAIC_RUN_DIR" in os.environ:
    fsync = os.fsync
    def slow_fsync(descriptor):
        while not os.path.exists({go!r}):
            time.sleep(0.01)
        fsync(descriptor)
    os.fsync = slow_fsync
"""
IMPATIENT_DAEMON = """
from mosaic.trainer import __main__
from mosaic.trainer.executors import local
local.GRACE_S.update(stop=1.0, term={term})
raise SystemExit(__main__.main())
"""


def start_saving(workspace: Workspace, plugins: Path, term: float) -> tuple[LiveDaemon, TrainerClient, str, Path]:
    """Start a training; return when it is writing its first checkpoint, which ends when the file exists."""
    go = plugins.parent / "go"
    plugins.mkdir(parents=True, exist_ok=True)
    (plugins / "sitecustomize.py").write_text(SLOW_DISK.format(go=str(go)))
    daemon = LiveDaemon(workspace, plugins)
    daemon.command = [sys.executable, "-c", IMPATIENT_DAEMON.format(term=term)]
    trainer = daemon.start()
    config: dict[str, Any] = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 10_000_000}
    config["algo_params"] = {"checkpoint_every": 512}
    run_id = trainer.submit({"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}}).run_id
    journal = workspace.run(run_id).journal
    wait_for(lambda: "checkpoint_begun" in [line["kind"] for line in read_all(journal)], "its first checkpoint", 200)
    return daemon, trainer, run_id, go


def test_a_cancelled_training_completes_its_checkpoint(workspace: Workspace, plugins: Path) -> None:
    """F48: the user is told that it is being saved, and for how long it may be."""
    daemon, trainer, run_id, go = start_saving(workspace, plugins, term=TIMEOUT_S)
    trainer.cancel_run(run_id)
    wait_for(lambda: trainer.get_run(run_id).checkpoint_wait, "the keeper to wait")
    view = trainer.get_run(run_id)
    assert view.stage == "stopping"
    assert view.wait_reason == "saving a checkpoint; it has up to 10 minutes"
    assert CHECKPOINT_LIMIT_S == 600
    assert view.history[-1].message.startswith("It is saving a checkpoint; it has up to 10 minutes.")
    go.touch()
    view = ended(trainer, run_id)
    assert (view.outcome, view.reason, view.checkpoint_wait) == ("cancelled", "Cancelled on request.", None)
    folder = workspace.run(run_id)
    assert all(is_intact(folder.checkpoint(step)) for step in list_steps(folder))
    assert list_steps(folder)
    trainer.close()
    daemon.end()


def test_a_run_that_is_cancelled_again_is_ended_at_once(workspace: Workspace, plugins: Path) -> None:
    """F48: the next daemon knows that it is saving, too."""
    daemon, trainer, run_id, _ = start_saving(workspace, plugins, term=0.2)
    trainer.cancel_run(run_id)
    wait_for(lambda: trainer.get_run(run_id).checkpoint_wait, "the keeper to wait")
    trainer.close()
    daemon.kill()
    trainer = daemon.start()
    assert trainer.get_run(run_id).checkpoint_wait
    trainer.cancel_run(run_id)
    view = ended(trainer, run_id)
    assert (view.outcome, view.reason) == (
        "cancelled",
        "Cancelled on request. It did not obey in time and was killed.",
    )
    trainer.close()
    daemon.end()
