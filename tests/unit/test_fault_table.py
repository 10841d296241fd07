"""The table of faults: which tests belong to a row, what is printed, and when it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.helpers.fault_table import ROWS, FaultResult, find_rows, format_table

TESTS = '''
"""F7: a module whose tests belong to one row."""
import os
import pytest

def test_long_lines(record_property):
    record_property("tries", 30)
    record_property("worst_s", 0.4)

def test_of_another_row():
    """F8: a window."""

def test_of_two_rows():
    """F8 and F9: it fails."""
    assert False

@pytest.mark.skip
def test_that_is_skipped():
    """F10: nothing."""
'''


def test_rows_are_named_by_the_docstring_of_a_test_or_of_its_module() -> None:
    assert find_rows("F8: the window.", "F9: other") == ("F8",)
    assert find_rows(None, "F20 and F21: a server.") == ("F20", "F21")
    assert find_rows("R6.3, F1: nothing is lost.") == ("F1",)
    assert find_rows("R6.3: nothing is lost.", "F1: a daemon.") == ("F1",)
    assert find_rows("F8 is a key.", "F99: unknown.", None) == ()
    assert list(ROWS)[:46] == [f"F{number}" for number in range(1, 47)]


def test_a_row_survives_if_it_has_a_test_and_no_try_failed() -> None:
    good, bad = FaultResult(("F1",), tries=4, worst_s=2.5), FaultResult(("F1", "F2"), "failed")
    lines, is_all_well = format_table([good], ["F1"])
    assert (lines[-1].split()[-5:], is_all_well) == (["4", "/", "4", "2.5", "s"], True)
    lines, is_all_well = format_table([good, bad], ["F1", "F2", "F3"])
    assert not is_all_well
    assert [line.split(maxsplit=1)[0] for line in lines[1:]] == ["F1", "F2", "F3"]
    assert ["4 / 5" in lines[1], "0 / 1" in lines[2], "no test" in lines[3]] == [True] * 3


def test_the_plugin_runs_the_tests_of_the_rows_and_fails_without_one(tmp_path: Path) -> None:
    (tmp_path / "test_faults.py").write_text(TESTS)
    (tmp_path / "test_others.py").write_text("def test_something():\n    assert False\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "pytest", "-p", "tests.helpers.fault_table", "-c", os.devnull, "--seed", "7"]

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *options, str(tmp_path)], env=environment, cwd=tmp_path, capture_output=True, text=True
        )

    def cells(printed: str) -> dict[str, str]:
        table = printed.partition("faults (tries ")[2].splitlines()[2:]
        return {line.split()[0]: line[60:72].strip() for line in table if line.split(" ")[0] in ROWS}

    everything = run("--tries", "2")
    assert everything.returncode == 1
    assert "faults (tries 2, seed 7)" in everything.stdout
    assert "test_something" not in everything.stdout
    rows = cells(everything.stdout)
    assert (rows["F7"], rows["F8"], rows["F9"]) == ("60 / 60", "2 / 4", "0 / 2")
    assert (rows["F10"], rows["F11"], len(rows)) == ("skipped", "no test", len(ROWS))
    assert run("--rows", "F7").returncode == 0
