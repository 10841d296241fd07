"""Extracts a worker's last words: the line of its stderr that explains its exit."""

from __future__ import annotations

import os
import re

_TAIL_BYTES = 1 << 16
_MAX_LENGTH = 300
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_LINE_END = re.compile(r"[\r\n]+")
_FATAL = "Fatal Python error: "


def extract_last_words(tail: bytes) -> str | None:
    """Return the first line of an interpreter's crash dump, otherwise the last line."""
    text = _ESCAPE.sub("", tail.decode(errors="replace"))
    lines = [cleaned for line in _LINE_END.split(text) if _has_content(cleaned := _clean(line))]
    fatal = [line for line in lines if line.startswith(_FATAL)]
    return next((line[:_MAX_LENGTH] for line in reversed(fatal or lines)), None)


def read_last_words(path: str | os.PathLike[str], begin: int) -> str | None:
    """Return the last words written after byte `begin`."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begin, size - _TAIL_BYTES))
            return extract_last_words(file.read(_TAIL_BYTES))
    except OSError:
        return None


def _clean(line: str) -> str:
    return "".join(char if char.isprintable() else " " if char == "\t" else "" for char in line).strip()


def _has_content(line: str) -> bool:
    return any(char.isalnum() for char in line)
