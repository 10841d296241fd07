"""Studies in Optuna's journal: what a killed process leaves is continued."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from mosaic.contracts.errors import NotAllowed
from mosaic.features.sweeps.core import TrialStatus, parse_sweep, plan_sweep
from mosaic.features.sweeps.core_folder import SweepFolder
from mosaic.features.sweeps.core_study import Study

CONFIG: dict[str, Any] = {
    "name": "study",
    "algorithm": "ppo",
    "environments": ["CartPole-v1"],
    "search": {
        "learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
        "num_steps": {"values": [64, 128]},
        "hidden_sizes": {"choices": [[16], [64, 64]]},
    },
    "sampler": "random",
    "trials": 6,
}
GRID = {"search": {"num_steps": {"values": [64, 128]}, "anneal_lr": {"choices": [True, False]}}, "sampler": "grid"}


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    folder = SweepFolder(tmp_path / "study")
    folder.path.mkdir()
    return folder


def open_study(folder: SweepFolder, **changes: Any) -> Study:
    study = Study(folder, plan_sweep(parse_sweep(CONFIG | changes)))
    study.prepare("one")
    return study


def test_the_defaults_are_the_first_trial_and_a_resumed_sampler_does_not_repeat_itself(folder: SweepFolder) -> None:
    first = open_study(folder)
    rows = [first.ask() for _ in range(3)]
    assert rows[0].params == {"learning_rate": 0.00025, "num_steps": 128, "hidden_sizes": [64, 64]}
    again = open_study(folder)
    assert again.id == "one"
    assert [row.params for row in again.rows()] == [row.params for row in rows]
    rows += [again.ask() for _ in range(3)]
    assert len({row.params["learning_rate"] for row in rows}) == 6
    assert again.is_exhausted()


def test_looking_whether_a_sweep_runs_does_not_keep_it_from_starting(
    folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with folder.hold():
        assert folder.holder_pid() == os.getpid()
        monkeypatch.setattr("mosaic.features.sweeps.core_folder.time.sleep", lambda _: None)
        with pytest.raises(NotAllowed, match=str(os.getpid())), folder.hold():
            pass
    assert folder.holder_pid() is None
    with open(folder.lock, encoding="utf-8") as file:  # as `is_held` does it, for a moment
        fcntl.flock(file, fcntl.LOCK_SH)
        monkeypatch.setattr("mosaic.features.sweeps.core_folder.time.sleep", lambda _: fcntl.flock(file, fcntl.LOCK_UN))
        with folder.hold():
            assert folder.holder_pid() == os.getpid()


def test_a_trial_that_was_given_up_does_not_count(folder: SweepFolder) -> None:
    study = open_study(folder, trials=2)
    study.tell_cancelled(study.ask().number)
    study.tell_failed(study.ask().number, "a reason")
    assert not study.is_exhausted()
    study.tell_done(study.ask().number, 1.0, [1.0])
    assert study.is_exhausted()
    assert [row.status for row in study.rows()] == [TrialStatus.CANCELLED, TrialStatus.FAILED, TrialStatus.DONE]
    assert [row.problem for row in study.rows()] == ["cancelled", "a reason", ""]


def test_every_cell_of_a_grid_is_tried_once_whatever_was_killed(folder: SweepFolder) -> None:
    cells = []
    for number in range(4):
        study = open_study(folder, **GRID, trials=None)
        assert not study.is_exhausted()
        if number == 1:
            study.tell_cancelled(study.ask().number)  # its cell is tried again
        row = study.ask()
        cells.append(row.params)
        study.tell_done(row.number, float(number), [float(number)])
    assert open_study(folder, **GRID, trials=None).is_exhausted()
    assert cells == plan_sweep(parse_sweep(CONFIG | GRID)).grid()


def test_a_trial_that_was_killed_before_all_settings_were_chosen_is_known_as_incomplete(folder: SweepFolder) -> None:
    study = open_study(folder)
    study.ask()
    lines = folder.journal.read_bytes().splitlines(keepends=True)
    folder.journal.write_bytes(b"".join(lines[:-1]))  # the last setting
    (row,) = open_study(folder).rows()
    assert (row.status, row.is_complete) == (TrialStatus.RUNNING, False)


def test_an_incomplete_line_of_the_journal_is_removed_before_more_is_appended(folder: SweepFolder) -> None:
    study = open_study(folder)
    study.ask()
    with open(folder.journal, "ab") as file:
        file.write(b'{"op_code":4,"work')
    with folder.hold():
        open_study(folder).ask()
    assert len(open_study(folder).rows()) == 2


def test_a_stored_report_is_kept_and_pruning_is_decided_once(folder: SweepFolder) -> None:
    study = open_study(folder, pruning={"method": "median", "startup_trials": 1})
    good = study.ask().number
    for at in (1, 2):
        assert not study.report(good, 100.0, at)
    assert not study.report(good, 5.0, 2)
    assert study.row(good).reports == {1: 100.0, 2: 100.0}
    study.tell_done(good, 100.0, [100.0])
    bad = study.ask().number
    assert study.report(bad, 1.0, 1)
    row = open_study(folder).row(bad)
    assert (row.status, row.pruned_at) == (TrialStatus.RUNNING, 1), "a killed process has left the decision"
    study.tell_pruned(bad)
    assert (study.row(bad).status, study.row(bad).score, study.row(bad).last_score) == (TrialStatus.PRUNED, None, 1.0)


def test_a_second_process_is_refused_with_the_first_ones_number(folder: SweepFolder) -> None:
    assert not folder.is_held()
    with folder.hold():
        assert folder.is_held()
        with pytest.raises(NotAllowed, match=r"running already, in process \d+"), SweepFolder(folder.path).hold():
            pass
    assert not folder.is_held()


def test_importance_needs_some_completed_trials(folder: SweepFolder) -> None:
    study = open_study(folder, trials=30)
    for _ in range(7):
        row = study.ask()
        study.tell_done(row.number, row.params["learning_rate"], [0.0])
    assert study.importances() == {}
    for _ in range(20):
        row = study.ask()
        study.tell_done(row.number, row.params["learning_rate"], [0.0])
    importances = study.importances()
    assert next(iter(importances)) == "learning_rate"
    assert sum(importances.values()) == pytest.approx(1.0)
