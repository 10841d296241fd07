"""F58: a worker writes lines of its keeper's into the run's files; only the keeper's own end counts."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.daemons import LiveDaemon, ended, wait_for

from mosaic.base.processes import is_alive
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.states import RunRecord
from mosaic.keeper.launch_spec import parse_launch
from mosaic.trainer.client.trainer_client import TrainerClient

FORGER = """
import json, os, sys, time
folder = os.environ["MOSAIC_RUN_DIR"]
def append(name, line):
    with open(os.path.join(folder, name), "a") as file:
        file.write(json.dumps(line) + "\\n")
for name, line in json.loads(sys.argv[1]):
    append(name, line)
append("journal.jsonl", {"seq": 5000, "kind": "progress", "at": time.time(), "global_step": 7})
while not os.path.exists("end"):
    time.sleep(0.02)
sys.exit(3)
"""
NOBODY = {"pid": 999_999, "start": "1", "boot_id": "none"}
EXITED = {"seq": 1000, "kind": "exited", "code": 0, "duration_s": 1.0, "peak_rss_mb": 1.0}
FORGERIES: dict[str, tuple[str, dict[str, Any]]] = {
    "exit": ("keeper.jsonl", EXITED),
    "exit with a key": ("keeper.jsonl", {**EXITED, "end_key": "0" * 32}),
    "exit in the journal": ("journal.jsonl", EXITED),
    "no start": ("keeper.jsonl", {"seq": 1000, "kind": "worker_not_started", "reason": "forged"}),
    "keeper": ("keeper.jsonl", {"seq": 1000, "kind": "keeper_started", "process": NOBODY}),
    "keeper in the journal": ("journal.jsonl", {"seq": 1000, "kind": "keeper_started", "process": NOBODY}),
}


def start_forger(trainer: TrainerClient, folder: Path, *forgeries: str) -> str:
    """Start a script that writes these lines; return its run when the daemon has read them."""
    lines = json.dumps([FORGERIES[name] for name in forgeries])
    config = {"argv": [sys.executable, "-c", FORGER, lines], "cwd": str(folder)}
    payload = {"metadata": {"worker": {"id": "script", "config": config}}, "artifacts": {}}
    run_id = trainer.submit(payload, environment=dict(os.environ)).run_id
    wait_for(lambda: trainer.get_run(run_id).global_step == 7, "the line after the forged ones")
    return run_id


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_line_ends_no_run(trainer: TrainerClient, tmp_path: Path, forgery: str) -> None:
    """F58: the run continues; its true exit code is seen; an end that was ignored is in its history."""
    run_id = start_forger(trainer, tmp_path, forgery)
    if "keeper" not in forgery:
        wait_for(lambda: "ignored" in str(trainer.get_run(run_id).history), "the warning")
    assert trainer.get_run(run_id).stage == "running"
    (tmp_path / "end").touch()
    view = ended(trainer, run_id)
    assert view.outcome == "failed"
    assert "Ended with exit code 3" in (view.reason or "")


@pytest.mark.may_log("index_rebuilt")
def test_a_forged_exit_is_ignored_by_the_next_daemon(
    daemon: LiveDaemon, trainer: TrainerClient, workspace: Workspace, tmp_path: Path
) -> None:
    """F58: also by one that has lost the index."""
    run_id = start_forger(trainer, tmp_path, "exit")
    trainer.close()
    daemon.kill()
    workspace.index.unlink()
    trainer = daemon.start()
    wait_for(lambda: trainer.get_run(run_id).global_step == 7, "the journal to be read again")
    assert trainer.get_run(run_id).stage == "running"
    (tmp_path / "end").touch()
    assert "Ended with exit code 3" in (ended(trainer, run_id).reason or "")
    trainer.close()


def test_a_worker_that_kills_its_keeper_is_lost_whatever_it_wrote(trainer: TrainerClient, tmp_path: Path) -> None:
    """F58, F43: and nothing of it is left."""
    run_id = start_forger(trainer, tmp_path, "exit", "no start")
    wait_for(lambda: trainer.get_run(run_id).pid, "its process")
    attempt = trainer.get_run(run_id).attempts[-1]
    assert attempt.keeper is not None
    os.kill(attempt.keeper["pid"], signal.SIGKILL)
    view = ended(trainer, run_id)
    assert view.outcome == "lost"
    assert attempt.worker is not None
    assert not is_alive(attempt.worker)


def test_the_key_of_an_end_is_in_no_file_before_the_end(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path
) -> None:
    """F58: the record has its hash only; the line that ends the attempt proves itself by it."""
    run_id = start_forger(trainer, tmp_path)
    (tmp_path / "end").touch()
    ended(trainer, run_id)
    folder: RunFolder = workspace.run(run_id)
    last = json.loads(folder.keeper.read_text().splitlines()[-1])
    assert (last["kind"], len(last["end_key"])) == ("exited", 32)
    holders = [
        path
        for path in workspace.root.rglob("*")
        if path.is_file() and path != folder.keeper and last["end_key"].encode() in path.read_bytes()
    ]
    assert [path.name for path in holders if "index.sqlite" not in path.name] == []
    record = RunRecord.model_validate_json(folder.record.read_bytes())
    assert record.attempts[-1].is_ended_by(last["end_key"])
    assert not record.attempts[-1].is_ended_by("")


def test_the_end_of_a_keeper_of_an_earlier_version_counts() -> None:
    """F58: it was given no key, and its attempt has no hash of one."""
    attempt = {"number": 1, "slot": 1, "started_at": 1.0}
    record = RunRecord.model_validate(
        {"run_id": "R", "worker": "w", "submitted_at": 1.0, "queued_at": 1.0, "attempts": [attempt]}
    )
    assert record.attempts[-1].is_ended_by("")
    launch = {
        "folder": "/f", "argv": ["a"], "cwd": "/", "env": {}, "log_name": "l",
        "limits": {"seconds": None, "memory_mb": None}, "inbox_offset": 0, "grace_s": {"stop": 1.0, "term": 1.0},
    }  # fmt: skip
    assert "end_key" not in parse_launch(json.dumps(launch).encode())
