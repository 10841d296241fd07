"""How a config names a wrapper: `frame-stack(stack_size=4)` or `my_wrappers:Sticky(probability=0.25)`. No pydantic."""

from __future__ import annotations

import ast
import re
from typing import Any, NamedTuple

EXAMPLES = "frame-stack(stack_size=4) or my_wrappers:Sticky(probability=0.25)"
_SPEC = re.compile(r"(?P<name>[\w.-]+(:\w+)?)\s*(\((?P<arguments>.*)\))?", re.DOTALL)


class WrapperChoice(NamedTuple):
    name: str
    """A known name, or `module:Class`."""
    arguments: dict[str, Any]


def parse_wrapper(text: str) -> WrapperChoice:
    """Parse one wrapper; its arguments are named literals. ValueError says what is wrong."""
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a wrapper; expected one such as {EXAMPLES}")
    try:
        call = ast.parse(f"_({match['arguments'] or ''})", mode="eval").body
        assert isinstance(call, ast.Call)
        if not isinstance(call.func, ast.Name) or call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError("not one call with named arguments")
        arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        if len(arguments) < len(call.keywords):
            raise ValueError("an argument that is given twice")
    except (ValueError, SyntaxError, AssertionError, MemoryError, RecursionError):
        raise ValueError(f"{text!r}: expected arguments as name=value with plain values, such as {EXAMPLES}") from None
    return WrapperChoice(match["name"], arguments)


def validate_wrapper(text: str) -> str:
    parse_wrapper(text)
    return text.strip()


def split_wrappers(text: str) -> list[str] | None:
    """Split a list that a person wrote at its commas outside of brackets and quotes; None for an empty one."""
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
    return [validate_wrapper(part) for part in parts if part.strip()] or None
