"""Append and follow JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic.base.journal import Follower, Journal, read_all


def test_seq_continues_when_a_journal_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for _ in range(3):
        journal = Journal(path)
        journal.append("one", value=1)
        journal.append("two")
        journal.close()
    assert [event["seq"] for event in read_all(path)] == [1, 2, 3, 4, 5, 6]


def test_a_truncated_last_line_is_skipped_wherever_it_was_cut(tmp_path: Path) -> None:
    """F14: at every byte; the next writer continues after it."""
    complete = tmp_path / "complete.jsonl"
    journal = Journal(complete)
    for number in range(3):
        journal.append("note", text="größer", number=number)
    journal.close()
    data = complete.read_bytes()
    for cut in range(data.rfind(b"\n", 0, -1) + 1, len(data)):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(data[:cut])
        reopened = Journal(path)
        assert reopened.seq in (2, 3)  # 3 where only the newline was missing
        reopened.append("after")
        reopened.close()
        events = read_all(path)
        assert events[-1]["kind"] == "after"
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


def test_an_incomplete_line_is_returned_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    line = json.dumps({"seq": 1, "at": 0.0, "kind": "x"}).encode() + b"\n"
    follower = Follower(path)
    assert follower.read() == []
    path.write_bytes(line + line[:5])
    assert len(follower.read()) == 1
    assert follower.read() == []
    path.write_bytes(line + line)
    assert len(follower.read()) == 1
    assert follower.offset == 2 * len(line)


def test_a_line_longer_than_the_read_limit_is_returned_complete(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append("long", text="x" * 5000)
    journal.append("short")
    journal.close()
    assert [line.body["kind"] for line in Follower(path).read(limit_bytes=100)] == ["long", "short"]


@settings(max_examples=60)
@given(st.lists(st.one_of(st.binary(max_size=40), st.just(b'{"seq":1,"at":0,"kind":"good"}'))))
def test_garbage_is_counted_and_never_raised(tmp_path_factory, lines: list[bytes]) -> None:  # type: ignore[no-untyped-def]
    """F14: any bytes."""
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    path.write_bytes(b"".join(line.replace(b"\n", b" ") + b"\n" for line in lines))
    follower = Follower(path)
    events = follower.read()
    assert len(events) >= lines.count(b'{"seq":1,"at":0,"kind":"good"}')
    assert len(events) + follower.malformed_count <= len(lines)
    assert follower.offset == path.stat().st_size


@pytest.mark.parametrize("at", ["1e300", "-1", "253402300800", "NaN", "1e999"])
def test_a_line_of_a_time_that_no_calendar_has_is_skipped(tmp_path: Path, at: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(f'{{"seq": 1, "kind": "x", "at": {at}}}\n{{"seq": 2, "kind": "x", "at": 253402300799}}\n')
    follower = Follower(path)
    assert [line.body["seq"] for line in follower.read()] == [2]
    assert follower.malformed_count == 1
