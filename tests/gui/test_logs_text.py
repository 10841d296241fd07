"""From a log's bytes to lines that can be shown."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from mosaic.features.runs.window_log_text import (
    MAX_LINE_CHARS,
    LogLine,
    LogLines,
    Span,
    format_daemon_line,
    parse_spans,
)


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


def test_complete_lines_are_returned_and_the_rest_is_shown_as_partial() -> None:
    lines = LogLines()
    assert lines.add(b"one\ntw") == [LogLine("one", 0)]
    assert lines.partial_line == LogLine("tw", 4)
    assert lines.add(b"o\nthree\n") == [LogLine("two", 4), LogLine("three", 8)]
    assert lines.partial_line is None


def test_a_character_that_is_cut_between_two_chunks_stays_whole() -> None:
    data = "Zürich\n".encode()
    lines = LogLines()
    assert texts(lines.add(data[:2]) + lines.add(data[2:])) == ["Zürich"]


def test_invalid_bytes_are_replaced() -> None:
    assert texts(LogLines().add(b"\xff\xfe ok\n")) == ["�� ok"]


def test_the_first_line_of_a_part_from_the_middle_is_left_to_the_part_before_it() -> None:
    lines = LogLines(100, starts_mid_line=True)
    assert lines.add(b"half a") == []
    assert lines.add(b" line\nwhole\n") == [LogLine("whole", 112)]
    assert lines.first_offset == 112


def test_lines_of_two_streams_that_alternate_are_not_mixed() -> None:
    lines = LogLines()
    assert lines.add(b"progress 1", is_stderr=True) == []
    assert lines.add(b"out\nhalf", is_stderr=False) == [LogLine("out", 10)]
    assert lines.partial_line == LogLine("half", 14)
    assert lines.add(b"\rprogress 2\n", is_stderr=True) == [LogLine("progress 2", 0, True)]
    assert lines.take_partial_lines() == [LogLine("half", 14)]
    assert lines.take_partial_lines() == []


def test_a_carriage_return_begins_the_line_again() -> None:
    assert texts(LogLines().add(b"10%\r50%\r100%\nWindows\r\n")) == ["100%", "Windows"]


def test_an_endless_line_is_cut_and_not_kept() -> None:
    (line,) = texts(LogLines().add(b"x" * 100_000 + b"\n"))
    assert line.startswith("x" * MAX_LINE_CHARS)
    assert "100,000 characters" in line
    lines = LogLines()
    for _ in range(50):
        lines.add(b"y" * 10_000)
    assert len(lines._partials[False].data) <= 8 * MAX_LINE_CHARS


def test_colors_become_styles_and_other_sequences_vanish() -> None:
    assert parse_spans("\x1b[31mbad\x1b[0m ok \x1b[1;32mgood\x1b[39m still bold\x1b[22m.") == [
        Span("bad", "red"),
        Span(" ok "),
        Span("good", "green", True),
        Span(" still bold", "", True),
        Span("."),
    ]
    assert parse_spans("\x1b[2K\x1b]0;title\x07plain\x1b[3A") == [Span("plain")]
    assert parse_spans("\x1b[38;5;9mnine\x1b[38;2;1;2;3mtrue\x1b[91mbright") == [
        Span("nine", "red"),
        Span("true"),
        Span("bright", "red"),
    ]


def test_an_empty_line_is_one_empty_span() -> None:
    assert parse_spans("") == [Span("")]
    assert parse_spans("\x1b[31m") == [Span("", "red")]


@given(st.text())
def test_control_characters_are_never_shown(text: str) -> None:
    for span in parse_spans(text.replace("\n", "")):
        assert all(char == "\t" or char.isprintable() for char in span.text)


@given(st.binary(), st.integers(1, 7))
def test_lines_do_not_depend_on_how_the_bytes_were_cut(data: bytes, size: int) -> None:
    whole, parts = LogLines(), LogLines()
    cut = [line for at in range(0, len(data), size) for line in parts.add(data[at : at + size])]
    assert cut == whole.add(data)
    assert parts.partial_line == whole.partial_line


def test_lines_of_the_daemons_log_become_sentences() -> None:
    line = json.dumps({"event": "run_failed", "level": "warning", "timestamp": "2026-01-01T00:00:00Z", "code": 3})
    shown = "".join(span.text for span in parse_spans(format_daemon_line(line)))
    assert shown == "2026-01-01T00:00:00Z  warning run_failed  code=3"
    assert any(span.color == "yellow" for span in parse_spans(format_daemon_line(line)))
    assert format_daemon_line("Traceback: no JSON") == "Traceback: no JSON"
    assert format_daemon_line("[1, 2]") == "[1, 2]"
