"""From a log's bytes to lines that can be shown."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from mosaic.gui.models.log_text import LONGEST_LINE, LogText, Span, daemon_line, spans


def test_lines_come_when_they_are_whole_and_the_rest_is_known_meanwhile() -> None:
    text = LogText()
    assert text.take(b"one\ntw") == ["one"]
    assert text.rest == "tw"
    assert text.take(b"o\nthree\n") == ["two", "three"]
    assert text.rest == ""


def test_a_character_that_is_cut_between_two_chunks_stays_whole() -> None:
    data = "Zürich\n".encode()
    text = LogText()
    assert text.take(data[:2]) + text.take(data[2:]) == ["Zürich"]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert LogText().take(b"\xff\xfe ok\n") == ["�� ok"]


def test_the_first_line_of_a_part_from_the_middle_is_kept_for_the_part_before_it() -> None:
    text = LogText(is_cut=True)
    assert text.take(b"half a line\nwhole\n") == ["whole"]
    assert text.passed == "half a line"


def test_a_carriage_return_begins_the_line_again() -> None:
    assert LogText().take(b"10%\r50%\r100%\nWindows\r\n") == ["100%", "Windows"]


def test_an_endless_line_is_cut_and_not_kept() -> None:
    (line,) = LogText().take(b"x" * 100_000 + b"\n")
    assert line.startswith("x" * LONGEST_LINE)
    assert "100,000 characters" in line
    text = LogText()
    for _ in range(50):
        text.take(b"y" * 10_000)
    assert len(text.rest) <= 4 * LONGEST_LINE


def test_colours_become_styles_and_other_sequences_vanish() -> None:
    assert spans("\x1b[31mbad\x1b[0m ok \x1b[1;32mgood\x1b[39m still bold\x1b[22m.") == [
        Span("bad", "red"),
        Span(" ok "),
        Span("good", "green", True),
        Span(" still bold", "", True),
        Span("."),
    ]
    assert spans("\x1b[2K\x1b]0;title\x07plain\x1b[3A") == [Span("plain")]
    assert spans("\x1b[38;5;9mnine\x1b[38;2;1;2;3mtrue\x1b[91mbright") == [
        Span("nine", "red"),
        Span("true"),
        Span("bright", "red"),
    ]


def test_a_line_without_anything_is_one_empty_span() -> None:
    assert spans("") == [Span("")]
    assert spans("\x1b[31m") == [Span("", "red")]


@given(st.text())
def test_whatever_comes_no_control_character_is_shown(text: str) -> None:
    for span in spans(text.replace("\n", "")):
        assert all(char == "\t" or char.isprintable() for char in span.text)


@given(st.binary(), st.integers(1, 7))
def test_lines_do_not_depend_on_how_the_bytes_were_cut(data: bytes, size: int) -> None:
    whole, parts = LogText(), LogText()
    cut = [line for at in range(0, len(data), size) for line in parts.take(data[at : at + size])]
    assert cut == whole.take(data)
    assert parts.rest == whole.rest


def test_the_daemons_lines_are_told_as_sentences() -> None:
    line = json.dumps({"event": "run_failed", "level": "warning", "timestamp": "2026-01-01T00:00:00Z", "code": 3})
    shown = "".join(span.text for span in spans(daemon_line(line)))
    assert shown == "2026-01-01T00:00:00Z  warning run_failed  code=3"
    assert any(span.colour == "yellow" for span in spans(daemon_line(line)))
    assert daemon_line("Traceback: no JSON") == "Traceback: no JSON"
    assert daemon_line("[1, 2]") == "[1, 2]"
