"""Arguments as a person writes them: `is_slippery=false, map_name=8x8`, and wrappers that have them. No pydantic."""

from __future__ import annotations

import ast
import json
import re
from contextlib import suppress
from typing import Any, NamedTuple

EXAMPLES = "frame-stack(stack_size=4) or my_wrappers:Sticky(probability=0.25)"
ARGUMENTS_DESCRIPTION = "name=value pairs, such as is_slippery=false,map_name=8x8, or a JSON object"
_SPEC = re.compile(r"(?P<name>[\w.-]+(:\w+)?)\s*(\((?P<arguments>.*)\))?", re.DOTALL)
_PAIR = re.compile(r"\s*(?P<name>[^\W\d]\w*)\s*=(?P<value>.*)", re.DOTALL)
_WORD = re.compile(r"[\w./:@+-]+")


class WrapperChoice(NamedTuple):
    name: str
    """A known name, or `module:Class`."""
    arguments: dict[str, Any]


def parse_arguments(text: str) -> dict[str, Any]:
    """Parse `name=value` pairs separated by commas, or a JSON object. Raises ValueError."""
    if text.lstrip().startswith("{"):
        with suppress(RecursionError):
            value = json.loads(text)
            if isinstance(value, dict):
                return value
        raise ValueError("expected a JSON object")
    arguments: dict[str, Any] = {}
    for part in split_outside_brackets(text):
        pair = _PAIR.fullmatch(part)
        if pair is None or pair["name"] in arguments:
            raise ValueError(f"{part.strip()!r} is not one name=value")
        arguments[pair["name"]] = _parse_plain_value(pair["value"].strip())
    return arguments


def _parse_plain_value(text: str) -> Any:
    """JSON, a literal of Python, or a word that is text without quotes. Raises ValueError."""
    for parse in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return parse(text)
    if _WORD.fullmatch(text):
        return text
    raise ValueError(f"{text!r} is not a plain value")


def parse_wrapper(text: str) -> WrapperChoice:
    """Parse one wrapper; its arguments are named plain values. ValueError says what is wrong."""
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a wrapper; expected one such as {EXAMPLES}")
    try:
        return WrapperChoice(match["name"], parse_arguments(match["arguments"] or ""))
    except ValueError:
        raise ValueError(f"{text!r}: expected arguments as name=value with plain values, such as {EXAMPLES}") from None


def validate_wrapper(text: str) -> str:
    parse_wrapper(text)
    return text.strip()


def split_wrappers(text: str) -> list[str] | None:
    """Split a list that a person wrote; None for an empty one."""
    return [validate_wrapper(part) for part in split_outside_brackets(text)] or None


def split_outside_brackets(text: str) -> list[str]:
    """Split at the commas outside of brackets and quotes; parts without text are left out."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            depth += (char in "([{") - (char in ")]}")
        if char == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return [part for part in parts if part.strip()]
