"""Decodes JSON from outside with limits: what is accepted can be stored, shown and encoded again."""

from __future__ import annotations

import json
import math
from typing import Any

from mosaic.contracts.errors import ConfigRefused, FieldProblem

MAX_BYTES = 1_000_000
MAX_DEPTH = 32
MAX_ENTRIES = 10_000
"""Keys of objects and items of lists together."""
_SHOWN_CHARACTERS = 200
_INT64 = range(-(1 << 63), 1 << 63)


def decode_limited(text: str, subject: str = "The config") -> Any:
    """Decode a config; raises ConfigRefused that names the limit or the key."""
    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_BYTES:
        raise ConfigRefused(f"LOG705 {subject} has {size:,} bytes; at most {MAX_BYTES:,} are accepted.")
    try:
        data = json.loads(text, object_pairs_hook=_unique_keys, parse_int=_parse_int)
    except RecursionError:
        raise ConfigRefused(f"LOG705 {subject} is nested more than {MAX_DEPTH} levels deep.") from None
    except ValueError as error:
        raise ConfigRefused(f"LOG705 {subject} is not valid JSON: {str(error)[:_SHOWN_CHARACTERS]}.") from None
    _Check(subject).visit(data, "", 0)
    return data


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated[:_SHOWN_CHARACTERS]!r} occurs twice")
    return data


def _parse_int(text: str) -> int:
    """Python refuses to convert very long numbers; all that matters is that they are too large."""
    return int(text) if len(text) < 100 else 1 << 64


class _Check:
    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._entries = 0

    def visit(self, value: Any, path: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ConfigRefused(f"LOG705 {self._subject} is nested more than {MAX_DEPTH} levels deep.")
        if isinstance(value, dict):
            children = [(key, f"{path}.{key}" if path else key) for key in value]
            self._count(len(children))
            for key, child in children:
                self._check_text(key, child)
                self.visit(value[key], child, depth + 1)
        elif isinstance(value, list):
            self._count(len(value))
            for number, item in enumerate(value):
                self.visit(item, f"{path}.{number}", depth + 1)
        elif isinstance(value, str):
            self._check_text(value, path)
        elif isinstance(value, float) and not math.isfinite(value):
            self._refuse(path, "a number must be finite")
        elif isinstance(value, int) and value not in _INT64:
            self._refuse(path, "a number must fit into 64 bits")

    def _count(self, entries: int) -> None:
        self._entries += entries
        if self._entries > MAX_ENTRIES:
            raise ConfigRefused(f"LOG705 {self._subject} has more than {MAX_ENTRIES:,} keys and list items.")

    def _check_text(self, text: str, path: str) -> None:
        if "\0" in text:
            self._refuse(path, "a text must not contain NUL characters")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                self._refuse(path, "a text must not contain lone surrogates")

    def _refuse(self, path: str, problem: str) -> None:
        shown = path.encode(errors="replace").decode().replace("\0", "?")[:_SHOWN_CHARACTERS]
        raise ConfigRefused(f"LOG705 {self._subject} was refused: {shown}: {problem}.", [FieldProblem(shown, problem)])
