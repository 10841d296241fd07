"""The tab with what a run wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QLineEdit, QPushButton, QToolButton
from tests.helpers.gui import click, find, press, pump
from tests.helpers.gui_runs import FakeTrainer, run_id, running, start_with, view

from mosaic.gui.app import Application
from mosaic.gui.panels.logs_panel import PAGE_BYTES, LogsTab, _read_daemon_log
from mosaic.gui.views.text_views import MAX_LINES, LogView


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
    log.append_lines([str(number) for number in range(MAX_LINES + 500)])
    pump(lambda: text(tab).endswith(f"{MAX_LINES + 499}\n"), "the lines")
    assert log.blockCount() <= MAX_LINES


def test_the_search_wraps_around_and_reports_when_nothing_matches(fake: FakeTrainer, tab: LogsTab) -> None:
    fake.logs[False] = b"an apple\na pear\nan apple\n"
    pump(lambda: "pear" in text(tab), "the lines")
    log, search = find(tab, "logs.text", LogView), find(tab, "logs.search", QLineEdit)
    places = []
    tab.start_search()
    search.setText("apple")
    for _ in range(3):
        places.append(log.textCursor().blockNumber())
        press(search, Qt.Key.Key_Return)
    assert sorted(set(places)) == [0, 2]
    assert places[0] == places[2]
    search.setText("plum")
    assert find(tab, "logs.missing", QLabel).text() == "not found"


def test_it_follows_the_end_until_the_user_scrolls_up(fake: FakeTrainer, tab: LogsTab) -> None:
    log, follow = find(tab, "logs.text", LogView), find(tab, "logs.follow", QToolButton)
    log.append_lines([str(number) for number in range(2000)])
    pump(lambda: log.verticalScrollBar().value() == log.verticalScrollBar().maximum() > 0, "the end")
    log.verticalScrollBar().setValue(0)
    assert not follow.isChecked()
    log.append_lines(["one more"])
    assert log.verticalScrollBar().value() == 0
    click(follow)
    assert log.verticalScrollBar().value() == log.verticalScrollBar().maximum()


def test_a_run_without_output_shows_a_message(program: Application, fake: FakeTrainer, tab: LogsTab) -> None:
    program.workbench.select(run_id(1))
    pump(lambda: "wrote nothing" in tab._empty.title.text(), "the empty state")


def test_a_hidden_tab_reads_nothing(program: Application, fake: FakeTrainer, tab: LogsTab) -> None:
    program.workbench.tab_requested.emit("config")
    pump(lambda: not tab._poll_timer.isActive(), "the polling to stop")


def test_the_daemons_log_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    assert _read_daemon_log(path, -10, None, False).data == b""
    path.write_bytes(b"0123456789abcdef")
    assert _read_daemon_log(path, -4, None, False) == type(_read_daemon_log(path, 0, None, False))(b"cdef", 12, 16)
    assert _read_daemon_log(path, 2, 5, False).data == b"234"
    assert _read_daemon_log(path, 16, None, False).data == b""
