"""docs/requirements.md lists every line of the requirements, with tests that exist and name it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
COUNTS = {1: 5, 2: 9, 3: 16, 4: 7, 5: 5, 6: 4, 7: 12, 8: 4, 9: 9, 10: 6, 11: 5}
"""By part of the requirements: the number of its lines."""
STATES = ("holds", "part: ", "open")


class Row(NamedTuple):
    lines: list[str]
    state: str
    tests: list[str]


def rows() -> list[Row]:
    found = []
    for text in (ROOT / "docs" / "requirements.md").read_text().splitlines():
        if text.startswith("| R"):
            name, _, state, tests = (cell.strip() for cell in text.strip("|").split("|"))
            found.append(Row(expand(name), state, re.findall(r"`([^`]+)`", tests)))
    return found


def expand(name: str) -> list[str]:
    """`R9.1–R9.8` is a range."""
    first, _, last = name.partition("–")
    part, number = first[1:].split(".")
    return [f"R{part}.{at}" for at in range(int(number), int((last or first).split(".")[1]) + 1)]


@cache
def docstrings(path: Path) -> dict[str, str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_line_is_listed_once() -> None:
    listed = [line for row in rows() for line in row.lines]
    assert listed == sorted(set(listed), key=lambda line: [int(number) for number in line[1:].split(".")])
    assert set(listed) == {f"R{part}.{line}" for part, count in COUNTS.items() for line in range(1, count + 1)}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.lines[0])
def test_a_line_names_tests_that_exist_and_name_it(row: Row) -> None:
    assert row.state.startswith(STATES)
    assert row.tests or row.state.startswith("open"), "a line that holds is proved by a test"
    for test in row.tests:
        file, _, name = test.partition("::")
        known = docstrings(ROOT / "tests" / file)
        assert name in known, test
        named = re.findall(r"\bR\d+\.\d+\b", known[name])
        assert set(row.lines) & set(named), f"the docstring of {test} does not name {row.lines[0]}"
