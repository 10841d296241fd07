"""When to warn that nothing of a user's program is recorded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mosaic.base.journal import Journal
from mosaic.contracts.folder import RunFolder
from mosaic.keeper import console
from mosaic.keeper.console import is_importing, missing_records_warning
from mosaic.probe.inside.hooks import IMPORT_MARK


def append(path: Path, kind: str) -> None:
    journal = Journal(path)
    journal.append(kind)
    journal.close()


def warning_code(folder: RunFolder) -> str | None:
    warning = missing_records_warning(folder)
    return None if warning is None else warning["code"]


def test_a_program_without_a_journal_keeps_the_probe_out(tmp_path: Path) -> None:
    assert warning_code(RunFolder(tmp_path)) == "probe_kept_out"


@pytest.mark.parametrize(
    ("kind", "code"),
    [("artifact", "nothing_seen"), ("warning", "nothing_seen"), ("environment", None), ("metrics", None)],
)
def test_only_environments_and_metrics_count_in_any_process(tmp_path: Path, kind: str, code: str | None) -> None:
    append(tmp_path / "journal.jsonl", "hello")
    assert warning_code(RunFolder(tmp_path)) == "nothing_seen"
    append(tmp_path / "journal.77.jsonl", kind)
    assert warning_code(RunFolder(tmp_path)) == code


def test_a_program_that_imports_its_modules_is_not_warned_of_yet(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert not is_importing(folder)
    mark = tmp_path / IMPORT_MARK
    mark.touch()
    assert is_importing(folder)
    os.utime(mark, (1.0, 1.0))
    assert not is_importing(folder)
    assert console._IMPORT_MARK == IMPORT_MARK
