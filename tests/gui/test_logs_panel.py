"""The tab with what a run wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLabel, QLineEdit, QPushButton, QTabWidget, QToolButton
from tests.helpers.gui import click, find, press, pump
from tests.helpers.gui_runs import FakeTrainer, run_id, running, start_with, view

from mosaic.features.runs.window_log_text import LogLine, _read_daemon_log, _search_daemon_log
from mosaic.features.runs.window_logs import MAX_LINES, PAGE_BYTES, LogsTab, LogView
from mosaic.window.app import Application


@pytest.fixture
def fake(program: Application) -> FakeTrainer:
    made = FakeTrainer([view(1), running(2)])
    start_with(program, made)
    return made


@pytest.fixture
def tab(program: Application, fake: FakeTrainer) -> LogsTab:
    program.workbench.select(run_id(2), "logs")
    tab: LogsTab = pump(lambda: program.window.findChild(LogsTab), "the tab")
    pump(tab.isVisible, "the tab to be filled")
    return tab


def text(tab: LogsTab) -> str:
    return find(tab, "logs.text", LogView).toPlainText()


def test_lines_appear_as_they_are_written_and_half_a_line_is_completed(fake: FakeTrainer, tab: LogsTab) -> None:
    fake.logs[False] = b"first\nsec"
    pump(lambda: text(tab) == "first\nsec", "the first lines")
    fake.logs[False] += b"ond\nthird\n"
    pump(lambda: text(tab) == "first\nsecond\nthird\n", "the rest")


def test_each_stream_has_its_own_text(fake: FakeTrainer, tab: LogsTab) -> None:
    fake.logs = {False: b"out\n", True: b"\x1b[31merr\x1b[0m\n"}
    click(find(tab, "logs.both", QToolButton))
    pump(lambda: text(tab) == "out\nerr\n", "both")
    click(find(tab, "logs.stdout", QToolButton))
    pump(lambda: text(tab) == "out\n", "stdout")
    click(find(tab, "logs.stderr", QToolButton))
    pump(lambda: text(tab) == "err\n", "stderr")


def test_a_long_log_starts_near_its_end_and_loads_earlier_lines_on_demand(fake: FakeTrainer, tab: LogsTab) -> None:
    lines = [f"line {number} of a long log" for number in range(20_000)]
    fake.logs[True] = "\n".join(lines).encode() + b"\n"
    click(find(tab, "logs.stderr", QToolButton))
    pump(lambda: text(tab).endswith("line 19999 of a long log\n"), "the end")
    assert len(text(tab)) <= PAGE_BYTES
    earlier = find(tab, "logs.earlier", QPushButton)
    seen = text(tab).splitlines()
    assert seen == lines[-len(seen) :]
    click(earlier)
    pump(lambda: len(text(tab).splitlines()) > len(seen), "earlier lines")
    again = text(tab).splitlines()
    assert again == lines[-len(again) :]
    while earlier.isVisible():
        count = len(text(tab))
        click(earlier)
        pump(lambda: len(text(tab)) > count or not earlier.isVisible(), "earlier lines")  # noqa: B023
    pump(lambda: text(tab).splitlines() == lines, "the whole log")


def test_the_number_of_kept_lines_is_limited(fake: FakeTrainer, tab: LogsTab) -> None:
    log = find(tab, "logs.text", LogView)
    log.append_lines([LogLine(str(number), number) for number in range(MAX_LINES + 500)])
    pump(lambda: text(tab).endswith(f"{MAX_LINES + 499}\n"), "the lines")
    assert log.blockCount() <= MAX_LINES


def test_ctrl_f_after_a_click_on_the_tab_searches_the_log(program: Application, tab: LogsTab) -> None:
    program.window.activateWindow()
    bar = find(program.window, "run.tabs", QTabWidget).tabBar()
    QTest.mouseClick(bar, Qt.MouseButton.LeftButton, pos=bar.tabRect(bar.currentIndex()).center())
    program.window.action("view.search").trigger()
    pump(lambda: find(tab, "logs.search", QLineEdit).hasFocus(), "the search line of the log")


def test_the_search_wraps_around_and_reports_when_nothing_matches(fake: FakeTrainer, tab: LogsTab) -> None:
    fake.logs[False] = b"an apple\na pear\nan apple\n"
    pump(lambda: "pear" in text(tab), "the lines")
    log, search, found = (
        find(tab, "logs.text", LogView),
        find(tab, "logs.search", QLineEdit),
        find(tab, "logs.found", QLabel),
    )
    tab.start_search()
    search.setText("APPLE")
    pump(lambda: found.text() == "1 of 2", "the first match")
    assert (log.textCursor().blockNumber(), log.textCursor().selectedText()) == (0, "apple")
    press(search, Qt.Key.Key_Return)
    assert (log.textCursor().blockNumber(), found.text()) == (2, "2 of 2")
    press(search, Qt.Key.Key_Return)
    assert (log.textCursor().blockNumber(), found.text()) == (0, "1 of 2")
    press(search, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    assert found.text() == "2 of 2"
    search.setText("plum")
    pump(lambda: found.text() == "not found", "the answer")
    press(search, Qt.Key.Key_Escape)
    pump(lambda: found.text() == "", "nothing to be searched for")


def test_the_search_finds_what_is_not_loaded_and_shows_its_surroundings(fake: FakeTrainer, tab: LogsTab) -> None:
    lines = [f"line {number} {'needle' if number % 40_000 == 5 else 'hay'}" for number in range(200_000)]
    fake.logs[True] = "\n".join(lines).encode() + b"\n"
    click(find(tab, "logs.stderr", QToolButton))
    pump(lambda: text(tab).endswith("line 199999 hay\n"), "the end")
    log, search, found = (
        find(tab, "logs.text", LogView),
        find(tab, "logs.search", QLineEdit),
        find(tab, "logs.found", QLabel),
    )
    assert "needle" not in text(tab)
    tab.start_search()
    search.setText("needle")
    pump(lambda: found.text() == "1 of 5", "the first match")
    for number in (5, 40_005, 80_005):
        pump(lambda: log.textCursor().block().text() == f"line {number} needle", "the match")  # noqa: B023
        assert log.textCursor().selectedText() == "needle"
        shown = text(tab).splitlines()
        assert shown[0] in lines
        assert len(shown) < 20_000
        assert not find(tab, "logs.follow", QToolButton).isChecked()
        press(search, Qt.Key.Key_Return)
    pump(lambda: log.textCursor().block().text() == "line 120005 needle", "the fourth match")
    count = log.blockCount()
    log.verticalScrollBar().setValue(log.verticalScrollBar().maximum())
    pump(lambda: log.blockCount() > count, "later lines")
    click(find(tab, "logs.follow", QToolButton))
    pump(lambda: text(tab).endswith("line 199999 hay\n"), "the end again")
    assert not find(tab, "logs.later", QPushButton).isVisible()


def test_a_failed_run_opens_at_its_first_error(program: Application, fake: FakeTrainer, tab: LogsTab) -> None:
    fake._changed(run_id(1), outcome="failed")
    fake.logs = {
        False: b"working\n" * 60_000,
        True: b"a warning\nTraceback (most recent call last):\n  File x\nKeyError: 'x'\n" + b"at exit\n" * 60_000,
    }
    program.workbench.runs.update([fake.get_run(run_id(1))])
    click(find(tab, "logs.stdout", QToolButton))
    program.workbench.select(run_id(1))
    log, found = find(tab, "logs.text", LogView), find(tab, "logs.found", QLabel)
    pump(lambda: found.text() == "error 1 of 2", "the errors")
    pump(lambda: log.textCursor().block().text() == "Traceback (most recent call last):", "the first error")
    assert find(tab, "logs.both", QToolButton).isChecked()
    click(find(tab, "logs.next", QToolButton))
    pump(lambda: log.textCursor().block().text() == "KeyError: 'x'", "the second error")
    program.workbench.select(run_id(2))
    pump(lambda: text(tab).endswith("working\n"), "the other run")
    assert find(tab, "logs.stdout", QToolButton).isChecked(), "what the user has chosen"
    assert found.text() == ""


def test_it_follows_the_end_until_the_user_scrolls_up(fake: FakeTrainer, tab: LogsTab) -> None:
    log, follow = find(tab, "logs.text", LogView), find(tab, "logs.follow", QToolButton)
    log.append_lines([LogLine(str(number), number) for number in range(2000)])
    pump(lambda: log.verticalScrollBar().value() == log.verticalScrollBar().maximum() > 0, "the end")
    log.verticalScrollBar().setValue(0)
    assert not follow.isChecked()
    log.append_lines([LogLine("one more", 2000)])
    assert log.verticalScrollBar().value() == 0
    click(follow)
    assert log.verticalScrollBar().value() == log.verticalScrollBar().maximum()


def test_a_run_without_output_shows_a_message(program: Application, fake: FakeTrainer, tab: LogsTab) -> None:
    program.workbench.select(run_id(1))
    pump(lambda: tab._empty.title.text() == "The run wrote nothing to stdout or stderr", "the empty state")
    fake.payload["artifacts"]["persist_logs"] = False
    click(find(tab, "logs.stderr", QToolButton))
    pump(lambda: tab._empty.title.text() == "The logs were not kept", "the reason")


def test_a_hidden_tab_reads_nothing(program: Application, fake: FakeTrainer, tab: LogsTab) -> None:
    program.workbench.tab_requested.emit("config")
    pump(lambda: not tab._poll_timer.isActive(), "the polling to stop")


def test_the_daemons_log_is_read_from_its_end_and_searched_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    assert _read_daemon_log(path, -10, None).parts == ()
    path.write_bytes(b"0123456789abcdef")
    last = _read_daemon_log(path, -4, None)
    assert ([part.data for part in last.parts], last.start, last.end) == ([b"cdef"], 12, 16)
    assert _read_daemon_log(path, 2, 5).parts[0].data == b"234"
    assert _read_daemon_log(path, 16, None).parts == ()
    path.write_text("run a\nrun b\nanother a, run a\n" * 100_000)
    found = _search_daemon_log(path, "run a", lambda line: "another" in line)
    assert found.is_limited
    assert [match.line for match in found.lines[:2]] == [3, 6]
    assert found.lines[0].offset == 12
