"""The order of stdout and stderr, and the search in logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mosaic.base.log_order import LogMark, LogOrder, append_mark
from mosaic.contracts.errors import BadInput
from mosaic.contracts.folder import RunFolder
from mosaic.keeper.console import LogMarks
from mosaic.trainer.handlers import logs as run_logs
from mosaic.trainer.handlers.logs import RunLogs, find_error, text_finder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run_folder = RunFolder(tmp_path / "run")
    run_folder.logs.mkdir(parents=True)
    return run_folder


def logs_of(folder: RunFolder, *, is_stderr: bool = False, is_both: bool = False) -> RunLogs:
    paths = folder.stdout_log("w"), folder.stderr_log("w"), folder.log_order("w")
    return RunLogs(*paths, is_stderr, is_both)


def write(path: Path, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


def read_all(logs: RunLogs, has_ended: bool, offset: int = 0) -> list[tuple[str, bool]]:
    return [(part.data.decode(), part.is_stderr) for part in logs.read(offset, has_ended)]


def write_alternately(folder: RunFolder) -> RunLogs:
    """Returns the logs of a run that wrote o1, e1, o2, e2 and, since the keeper looked last, o3 and e3."""
    marks = LogMarks(folder, "w", 0)
    for number in ("1", "2"):
        write(folder.stdout_log("w"), f"o{number}\n")
        marks.poll(0.0)
        write(folder.stderr_log("w"), f"e{number}\n")
        marks.poll(0.0)
    write(folder.stdout_log("w"), "o3\n")
    write(folder.stderr_log("w"), "e3\n")
    return logs_of(folder, is_both=True)


def test_both_logs_are_read_in_the_order_of_their_writing(folder: RunFolder) -> None:
    logs = write_alternately(folder)
    expected = [("o1\n", False), ("e1\n", True), ("o2\n", False), ("e2\n", True), ("o3\n", False)]
    assert read_all(logs, has_ended=False) == expected, "where e3 belongs is not known yet"
    assert read_all(logs, has_ended=True) == [*expected, ("e3\n", True)]


def test_reading_may_begin_at_any_offset(folder: RunFolder) -> None:
    logs = write_alternately(folder)
    text = "".join(part for part, _ in read_all(logs, has_ended=True))
    assert logs.size(has_ended=True) == len(text)
    for offset in range(len(text) + 1):
        assert "".join(part for part, _ in read_all(logs, True, offset)) == text[offset:]


def test_what_a_reader_of_a_growing_log_has_read_stays_before_what_follows(folder: RunFolder) -> None:
    marks = LogMarks(folder, "w", 0)
    logs = logs_of(folder, is_both=True)
    seen = ""
    for number in range(30):
        write(folder.stdout_log("w") if number % 3 else folder.stderr_log("w"), f"line {number}\n")
        if number % 2:
            marks.poll(0.0)
        seen += "".join(part for part, _ in read_all(logs, False, len(seen)))
    marks.mark_growth()
    seen += "".join(part for part, _ in read_all(logs, True, len(seen)))
    assert seen == "".join(part for part, _ in read_all(logs, True))
    assert sorted(seen.splitlines()) == sorted(f"line {number}" for number in range(30))


def test_without_marks_stderr_follows_stdout(folder: RunFolder) -> None:
    write(folder.stderr_log("w"), "err\n")
    write(folder.stdout_log("w"), "out\n")
    assert read_all(logs_of(folder, is_both=True), has_ended=True) == [("out\n", False), ("err\n", True)]
    assert read_all(logs_of(folder, is_stderr=True), has_ended=True) == [("err\n", True)]


def test_a_later_attempt_marks_only_its_own_output(folder: RunFolder) -> None:
    write(folder.stderr_log("w"), "earlier\n")
    marks = LogMarks(folder, "w", len("earlier\n"))
    marks.mark_growth()
    assert not folder.log_order("w").exists()


def test_marks_become_rare_where_there_are_many(folder: RunFolder) -> None:
    marks = LogMarks(folder, "w", 0)
    for number in range(1100):
        write(folder.stderr_log("w"), "x")
        marks.poll(number / 10)
    with LogOrder(folder.log_order("w")) as order:
        assert order.count == 1000 + 10


def test_a_mark_that_did_not_fit_on_the_disk_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "w.order"
    append_mark(path, LogMark(1.0, 2, 3))
    path.write_bytes(path.read_bytes() + b"0000")
    append_mark(path, LogMark(4.0, 5, 6))
    with LogOrder(path) as order:
        assert [order.mark(index) for index in range(order.count)] == [LogMark(1.0, 2, 3), LogMark(4.0, 5, 6)]


def test_an_unreadable_order_does_not_hide_the_logs(folder: RunFolder) -> None:
    write(folder.stdout_log("w"), "out\n")
    folder.log_order("w").write_bytes(b"not a mark " * 20)
    assert read_all(logs_of(folder, is_both=True), has_ended=True)[-1] == ("out\n", False)


# --- searching


def find_all(logs: RunLogs, text: str) -> list[tuple[int, int, bool, str]]:
    replies = list(logs.search(text_finder(text), True))
    return [(match.offset, match.line, match.is_stderr, match.text) for reply in replies for match in reply.matches]


def test_the_search_finds_each_line_once_with_its_number_and_offset(folder: RunFolder) -> None:
    write(folder.stdout_log("w"), "Needle needle\nhay\nlast needle without an end")
    found = find_all(logs_of(folder), "NEEDLE")
    assert found == [(0, 1, False, "Needle needle"), (18, 3, False, "last needle without an end")]
    assert find_all(logs_of(folder, is_stderr=True), "needle") == []


def test_the_search_of_both_gives_offsets_in_their_sequence(folder: RunFolder) -> None:
    logs = write_alternately(folder)
    text = "".join(part for part, _ in read_all(logs, has_ended=True))
    for name in ("o1", "e1", "o2", "e2", "o3", "e3"):
        ((offset, _, is_stderr, line),) = find_all(logs, name)
        assert (text.index(name), name.startswith("e"), name) == (offset, is_stderr, line)


def test_a_match_across_two_parts_of_the_file_is_found(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_logs, "SEARCH_BYTES", 16)
    write(folder.stdout_log("w"), "some hay\n" * 10 + "a long line with a needle in it\n" + "hay\n" * 10)
    assert [line for _, line, _, _ in find_all(logs_of(folder), "needle")] == [11]


def test_the_number_of_matches_is_limited(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_logs, "MAX_MATCHES", 5)
    write(folder.stdout_log("w"), "needle\n" * 20)
    replies = list(logs_of(folder).search(text_finder("needle"), True))
    assert [len(reply.matches) for reply in replies] == [5]
    assert replies[-1].is_limited


@pytest.mark.parametrize("text", ["", "two\nlines", "x" * 1001])
def test_a_text_that_no_line_can_contain_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="must be one line of 1 to 1,000 characters"):
        text_finder(text)


@pytest.mark.parametrize(
    ("line", "is_error"),
    [
        ("Traceback (most recent call last):", True),
        ("ValueError: expected 3", True),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", True),
        ("KeyboardInterrupt", False),
        ("2026-01-01 [ERROR] no connection", True),
        ("Fatal Python error: Segmentation fault", True),
        ("error: unknown flag --x", True),
        ("mean_squared_error 0.3", False),
        ("losses/td_error: 0.1", False),
        ("No errors so far", False),
        ("Error handling is on", True),
    ],
)
def test_lines_that_report_an_error_are_recognized(line: str, is_error: bool) -> None:
    assert (find_error(line.encode(), 0) >= 0) is is_error
