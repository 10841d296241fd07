"""F41: poisonous data of one run, in its files or in what it prints, affects no other run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.helpers.daemons import LiveDaemon, ended, scripted, wait_for

from mosaic.base.journal import Journal
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.views import MetricSeries
from mosaic.trainer.client.trainer_client import TrainerClient

POISON: dict[str, str | bytes] = {
    "seq beyond 64 bits": '{"seq": 1' + "0" * 30 + ', "kind": "x", "at": 1}',
    "seq of a million digits": '{"seq": ' + "9" * 1_000_000 + ', "kind": "x", "at": 1}',
    "nested too deeply": '{"seq": 9, "kind": "x", "at": 1, "body": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "nested up to the parser's limit": '{"seq": 9, "kind": "x", "at": 1, "body": ' + "[" * 900 + "]" * 900 + "}",
    "time that is a list": '{"seq": 9, "kind": "x", "at": [1, 2]}',
    "time that is infinite": '{"seq": 9, "kind": "progress", "at": 1e999, "global_step": 1}',
    "kind with a lone surrogate": '{"seq": 9, "kind": "\\ud800", "at": 1}',
    "reason with a lone surrogate": '{"seq": 9, "kind": "finished", "at": 1, "outcome": "failed", "reason": "\\ud800"}',
    "step that is infinite": '{"seq": 9, "kind": "metrics", "at": 1, "series": {"a": [[Infinity, 1, 1]]}}',
    "step beyond 64 bits": '{"seq": 9, "kind": "metrics", "at": 1, "series": {"a": [[1e30, 1, 1]]}}',
    "series that is a list": '{"seq": 9, "kind": "metrics", "at": 1, "series": [1]}',
    "speed that is an object": '{"seq": 9, "kind": "progress", "at": 1, "global_step": 1, "sps": {}}',
    "sample of words": '{"seq": 9, "kind": "sample", "at": 1, "cpu_percent": "x", "rss_mb": [], "processes": 3}',
    "process without its number": '{"seq": 9, "kind": "keeper_started", "at": 1, "process": {"pid": "x"}}',
    "not text": b"\xff\xfe\x00",
}


def poison(path: Path, line: str | bytes) -> None:
    with open(path, "ab") as file:
        file.write((line if isinstance(line, bytes) else line.encode()) + b"\n")


def list_points(trainer: TrainerClient, run_id: str) -> list[MetricSeries]:
    return list(trainer.metrics(run_id, ["scripted/step"]))


@pytest.mark.timeout(300)  # sixteen runs at once, on a machine that may be busy
@pytest.mark.may_log("index_rebuilt")
@pytest.mark.parametrize("file", ["journal.jsonl", "journal.7.jsonl", "keeper.jsonl"])
def test_a_poisonous_line_is_skipped_and_everything_else_is_followed(
    daemon: LiveDaemon,
    trainer: TrainerClient,
    workspace: Workspace,
    file: str,
    record_property: Callable[[str, object], None],
) -> None:
    """F41: while the runs are active, after a restart, and when the index is rebuilt from finished runs."""
    trainer.set_cap(len(POISON) + 1)
    bad = {name: trainer.submit(scripted(steps=1_000_000, dt=0.02)).run_id for name in POISON}

    def has_steps(name: str, above: int) -> bool:
        return (trainer.get_run(bad[name]).global_step or 0) > above

    def wait_for_steps(above: dict[str, int], what: str) -> None:
        for name in bad:
            wait_for(partial(has_steps, name, above[name]), f"{what}: {name}")

    wait_for_steps(dict.fromkeys(bad, 2), "its first steps")
    for name, line in POISON.items():
        poison(workspace.run(bad[name]).path / file, line)
    good = ended(trainer, trainer.submit(scripted(steps=5)).run_id)
    assert good.outcome == "succeeded"
    wait_for_steps(
        {name: trainer.get_run(run_id).global_step or 0 for name, run_id in bad.items()}, "steps after the line"
    )
    for run_id in bad.values():
        trainer.cancel_run(run_id)
    assert {name: ended(trainer, run_id).outcome for name, run_id in bad.items()} == dict.fromkeys(bad, "cancelled")
    trainer.close()
    daemon.stop()
    for path in workspace.trainer.glob("index.sqlite*"):
        path.unlink()
    trainer = daemon.start()
    outcomes = {view.run_id: view.outcome for view in trainer.runs()}
    assert outcomes == {good.run_id: "succeeded", **dict.fromkeys(bad.values(), "cancelled")}
    for name, run_id in bad.items():
        wait_for(partial(list_points, trainer, run_id), f"its points: {name}")
    trainer.close()
    record_property("tries", len(POISON))


PRINTED = "import time; print('global_step=99999999999999999999999, episodic_return=5.0', flush=True); time.sleep(0.5)"


def test_a_printed_line_with_a_huge_step_changes_nothing(trainer: TrainerClient, workspace: Workspace) -> None:
    """F41: the console of a script is read by the keeper and the probe."""
    config = {"argv": [sys.executable, "-c", PRINTED], "cwd": str(workspace.root)}
    payload = {"metadata": {"worker": {"id": "script", "config": config}}, "artifacts": {}}
    view = ended(trainer, trainer.submit(payload, environment=dict(os.environ)).run_id)
    assert (view.outcome, view.problem) == ("succeeded", None)


@pytest.mark.may_log("run_quarantined")
def test_a_file_that_cannot_be_read_is_quarantined_and_the_run_ends(
    trainer: TrainerClient, workspace: Workspace
) -> None:
    """F41: what fails for another reason is shown with it, and the keeper's file still tells how the run ended."""
    bad = trainer.submit(scripted(steps=1_000_000, dt=0.005)).run_id
    wait_for(lambda: (trainer.get_run(bad).global_step or 0) > 2, "its first steps")
    (workspace.run(bad).path / "journal.7.jsonl").symlink_to("journal.7.jsonl")  # a link to itself
    problem = wait_for(lambda: trainer.get_run(bad).problem, "the problem to be shown")
    assert "journal.7.jsonl cannot be read" in problem
    trainer.cancel_run(bad)
    assert ended(trainer, bad).outcome == "cancelled"
    assert trainer.get_run(bad).problem == problem


@pytest.mark.may_log("record_restored", "record_unreadable")
@pytest.mark.parametrize("damage", ["emptied", "deleted"])
def test_a_damaged_record_is_restored_from_the_index(
    daemon: LiveDaemon, trainer: TrainerClient, workspace: Workspace, damage: str
) -> None:
    """F42: the run is still listed, with what was done."""
    view = ended(trainer, trainer.submit(scripted(steps=3)).run_id)
    trainer.close()
    daemon.stop()
    record = workspace.run(view.run_id).record
    record.unlink() if damage == "deleted" else record.write_text("")
    trainer = daemon.start()
    restored = trainer.get_run(view.run_id)
    assert (restored.outcome, restored.global_step) == ("succeeded", 3)
    assert "restored from the index" in (restored.problem or "")
    assert json.loads(record.read_text())["outcome"] == "succeeded"
    trainer.close()


@pytest.mark.may_log("index_rebuilt", "record_restored", "record_unreadable")
def test_a_damaged_record_that_the_index_does_not_know_is_shown_as_lost(
    daemon: LiveDaemon, trainer: TrainerClient, workspace: Workspace
) -> None:
    """F42: bad state is shown and left as it is."""
    view = ended(trainer, trainer.submit(scripted(steps=3)).run_id)
    trainer.close()
    daemon.stop()
    record = workspace.run(view.run_id).record
    record.write_text("{")
    for path in workspace.trainer.glob("index.sqlite*"):
        path.unlink()
    trainer = daemon.start()
    (shown,) = trainer.runs()
    assert (shown.run_id, shown.outcome) == (view.run_id, "lost")
    assert "is damaged" in (shown.problem or "")
    assert record.read_text() == "{"
    trainer.close()


def test_other_calls_are_answered_while_a_long_journal_is_read(trainer: TrainerClient, workspace: Workspace) -> None:
    """F44: a journal of many lines and one without a newline are read in bounded parts."""
    run_id = trainer.submit(scripted(steps=1_000_000, dt=0.05)).run_id
    wait_for(lambda: trainer.get_run(run_id).global_step, "its first steps")
    folder: RunFolder = workspace.run(run_id)
    (folder.path / "journal.8.jsonl").write_bytes(b"x" * (50 << 20))
    journal = Journal(folder.path / "journal.9.jsonl")
    count = 30_000
    for step in range(count):
        journal.append("metrics", series={"many": [[step, 1.0, 1.0]]})
    journal.close()
    seen: set[int] = set()
    while count not in seen:
        seen.add(sum(len(series.steps) for series in trainer.metrics(run_id, ["many"])))
    assert len(seen - {0, count}) >= 3, "The daemon answered no call while it read the journal."
    trainer.cancel_run(run_id)
    ended(trainer, run_id)
