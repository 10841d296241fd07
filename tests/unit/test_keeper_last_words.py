from __future__ import annotations

from pathlib import Path

import pytest

from mosaic.keeper.worker import extract_last_words, read_last_words

TRACEBACK = b"""\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    run()
    ^^^^^
ValueError: learning_rate is too large
"""
SEGFAULT = b"""\
some warning
Fatal Python error: Segmentation fault

Current thread 0x00007f5c (most recent call first):
  File "ctypes/__init__.py", line 519 in string_at
  File "<string>", line 1 in <module>

Extension modules: numpy.core (total: 1)
"""
JAX = b"""\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
TypeError: clip() got an unexpected keyword argument 'a_max'
--------------------
For simplicity, JAX has removed its internal frames from the traceback of the following exception. \
Set JAX_TRACEBACK_FILTERING=off to include these.
"""


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (b"", None),
        (b"\n \n\t\n", None),
        (b"-----\n=====\n", None),
        (TRACEBACK, "ValueError: learning_rate is too large"),
        (SEGFAULT, "Fatal Python error: Segmentation fault"),
        (JAX, "TypeError: clip() got an unexpected keyword argument 'a_max'"),
        (JAX[JAX.index(b"For") :], JAX[JAX.index(b"For") :].decode().strip()),
        (
            b"Traceback (most recent call last):\n  File x\nValueError: bad thing\nand why\n",
            "ValueError: bad thing and why",
        ),
        (b"Traceback (most recent call last):\n  File x\nValueError: bad\n" + b"a log line\n" * 9, "a log line"),
        (b"first\nsecond without an end", "second without an end"),
        (b"the cause\n    ^^^^^^\n-----\n\n", "the cause"),
        (b"\x1b[31mred\x1b[0m \x1b]0;title\x07alert\x00\x08\n", "red alert"),
        (b" 10%\r 50%\r100% done\r", "100% done"),
        (b"caf\xff latin\n", "caf\ufffd latin"),
        (b"one\ttwo\n", "one two"),
        (b"x" * 1000, "x" * 300),
    ],
)
def test_the_last_line_with_content_is_extracted(written: bytes, words: str | None) -> None:
    assert extract_last_words(written) == words


def test_only_what_this_attempt_wrote_counts(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    log.write_bytes(b"the first attempt's words\n")
    begin = log.stat().st_size
    assert read_last_words(log, begin) is None
    with log.open("ab") as file:
        file.write(b"x" * 100_000 + b"\nthe second's\n")
    assert read_last_words(log, begin) == "the second's"


def test_a_missing_log_has_no_last_words(tmp_path: Path) -> None:
    assert read_last_words(tmp_path / "none.log", 0) is None
