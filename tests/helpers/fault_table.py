"""A pytest plugin that runs the tests of the faults, wherever they are, and prints one line per fault.

    make faults ARGS="--rows F1,F9 --tries 20 --seed 7"

A test belongs to the rows at the beginning of its docstring (`F8: …`, `F20, F21: …`) or, if there are none, of its
module's. It counts as one try unless it records another number (`record_property("tries", 30)`), and its time is its
duration unless it records the one that matters (`record_property("worst_s", 0.4)`), such as that of a recovery.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

ROWS = {
    "F1": "daemon killed while runs are active",
    "F2": "daemon ended by SIGTERM or for an upgrade",
    "F3": "worker killed",
    "F4": "worker out of memory",
    "F5": "worker crashed by a segmentation fault",
    "F6": "worker without progress",
    "F7": "long lines, progress bars and binary data on stdout",
    "F8": "window killed",
    "F9": "disk full",
    "F10": "killed while a checkpoint is saved",
    "F11": "checkpoint damaged or truncated",
    "F12": "checkpoint of another algorithm, environment or shape",
    "F13": "index damaged or deleted",
    "F14": "journal line truncated or garbage",
    "F15": "clock jumps",
    "F16": "port in use",
    "F17": "stale address or forged daemon",
    "F18": "two daemons on one workspace",
    "F19": "recorded pid belongs to another process",
    "F20": "W&B unreachable, hanging or slow",
    "F21": "W&B answers 401, 403, 429 or 500",
    "F22": "W&B together with video recording",
    "F23": "TensorBoard missing, crashed or slow",
    "F24": "no GL, no display",
    "F25": "checkpoint with code in it",
    "F26": "config with hostile paths, modules or variables",
    "F27": "huge, deep or malformed payload",
    "F28": "client without the token",
    "F29": "web page that attacks the port",
    "F30": "secrets in files, logs and arguments",
    "F31": "1,000 queued runs and a kill",
    "F32": "the same config submitted twice at once",
    "F33": "ten viewers",
    "F34": "slow viewer",
    "F35": "frozen viewer while a run ends",
    "F36": "shared memory leaked or full",
    "F37": "torn frame",
    "F38": "machine rebooted",
    "F39": "runs that fail at once",
    "F40": "NaN or infinity in loss or reward",
    "F41": "poisonous data in a journal or on a console",
    "F42": "folder or record of an active run deleted",
    "F43": "keeper and worker killed together",
    "F44": "500 watchers, 1M journal lines, no newline",
    "F45": "hostile import",
    "F46": "other local users and foreign Host headers",
    "F47": "cancel, pause, time limit or SIGTERM while an environment is slow",
    "F48": "checkpoint that takes longer than the grace period",
    "F49": "daemon killed while scripts wait with their environments",
    "F50": "workspace moved while runs are active",
    "F51": "queue paused, daemon.json gone, too few files or no /proc",
    "F52": "workspace that somebody else made, such as a clone",
    "F53": "workspace planted by another user",
    "F54": "HTML in tags, names, notes, groups and reasons",
    "F55": "escape sequences and directions in texts of a run",
    "F56": "hostile trainer: ids, names, sizes, links, streams",
    "F57": "weight files that unfold",
    "F58": "forged ends, run ids by hand, things in runs/",
    "F59": "endpoint that drips headers or repeats the key",
    "F60": "actors that do not act",
    "F61": "viewer opened and closed at random while pixels are seen",
    "F62": "start_run: bad values, forks and ways to end",
    "M1": "any process of any kind of run killed at random",
}
TRIES_VARIABLE = "MOSAIC_FAULT_TRIES"
SEED_VARIABLE = "MOSAIC_FAULT_SEED"
KILLS_VARIABLE = "MOSAIC_FAULT_KILLS"
_PREFIX = re.compile(r"((?:[A-Z][\d.]+(?:, | and )?)+):\s")


def count_kills(quick: int) -> int:
    """Return how many times a test kills a process; MOSAIC_FAULT_KILLS replaces the number of the quick form."""
    return int(os.environ.get(KILLS_VARIABLE, quick))


def find_rows(*docstrings: str | None) -> tuple[str, ...]:
    """Return the rows that the first of these docstrings with rows begins with."""
    for text in docstrings:
        prefix = _PREFIX.match(text or "")
        rows = tuple(row for row in re.findall(r"[A-Z][\d.]+", prefix[1]) if row in ROWS) if prefix else ()
        if rows:
            return rows
    return ()


@dataclass
class FaultResult:
    """What one test, or one repetition of it, reported."""

    rows: tuple[str, ...] = ()
    outcome: str = "passed"
    tries: int = 1
    worst_s: float = 0.0


def format_table(results: Iterable[FaultResult], rows: Sequence[str]) -> tuple[list[str], bool]:
    """Return the lines of the table, and whether every row has a test and survived all its tries."""
    of_row: dict[str, list[FaultResult]] = {row: [] for row in rows}
    for result in results:
        for row in result.rows:
            if row in of_row:
                of_row[row].append(result)
    lines, is_all_well = [f"{'row':<4} {'fault':<55} {'survived':>11} {'worst time':>10}"], True
    for row, tests in of_row.items():
        run = [test for test in tests if test.outcome != "skipped"]
        tries = sum(test.tries for test in run)
        survived = sum(test.tries for test in run if test.outcome == "passed")
        is_all_well &= 0 < tries == survived
        count = f"{survived} / {tries}" if run else "skipped" if tests else "no test"
        worst = f"{max(test.worst_s for test in run):.1f} s" if run else "–"
        mark = "" if 0 < tries == survived else "  <"
        lines.append(f"{row:<4} {ROWS[row]:<55} {count:>11} {worst:>10}{mark}")
    return lines, is_all_well


class FaultTable:
    """Select the tests of the rows, repeat them, and collect their reports."""

    def __init__(self, rows: Sequence[str], tries: int) -> None:
        self._rows = rows
        self._tries = tries
        self._results: dict[str, FaultResult] = {}

    def _rows_of(self, function: object, module: ModuleType) -> list[str]:
        return [row for row in find_rows(function.__doc__, module.__doc__) if row in self._rows]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if self._tries > 1 and self._rows_of(metafunc.function, metafunc.module):
            metafunc.fixturenames.append("fault_try")
            metafunc.parametrize("fault_try", range(1, self._tries + 1), ids=lambda number: f"try {number}")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        chosen: list[pytest.Item] = []
        others: list[pytest.Item] = []
        for item in items:
            rows = self._rows_of(item.function, item.module) if isinstance(item, pytest.Function) else []
            item.user_properties.append(("rows", rows))  # the process that prints the table may not collect the tests
            (chosen if rows else others).append(item)
        items[:] = chosen
        config.hook.pytest_deselected(items=others)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: Mapping[str, Any] = dict(report.user_properties)
        result = self._results.setdefault(report.nodeid, FaultResult(tuple(properties["rows"])))
        if report.outcome != "passed" and result.outcome != "failed":
            result.outcome = report.outcome
        if report.when == "call":
            result.tries = properties.get("tries", 1)
            result.worst_s = properties.get("worst_s", report.duration)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"faults (tries {self._tries}, seed {os.environ[SEED_VARIABLE]})")
        for line in format_table(self._results.values(), self._rows)[0]:
            terminalreporter.line(line)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        is_all_well = format_table(self._results.values(), self._rows)[1]
        if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not is_all_well:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faults")
    group.addoption("--rows", default=",".join(ROWS), help="Rows to run, separated by commas: F1,F9.")
    group.addoption(
        "--tries", type=int, default=int(os.environ.get(TRIES_VARIABLE, 1)), help="Repetitions of each test."
    )
    group.addoption("--seed", default=os.environ.get(SEED_VARIABLE), help="Repeat the random times of an earlier call.")


def pytest_configure(config: pytest.Config) -> None:
    rows = config.getoption("--rows").split(",")
    if unknown := set(rows) - set(ROWS):
        raise pytest.UsageError(f"--rows: {', '.join(sorted(unknown))} is not a row. Known: {', '.join(ROWS)}.")
    tries = config.getoption("--tries")
    # Read by the tests, also in the processes of pytest-xdist, which inherit them.
    os.environ[TRIES_VARIABLE] = str(tries)
    os.environ[SEED_VARIABLE] = config.getoption("--seed") or str(secrets.randbelow(1_000_000))
    config.pluginmanager.register(FaultTable(rows, tries), "fault_table_results")
