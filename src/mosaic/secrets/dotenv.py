"""Reads the `.env` file of a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class DotEnv(NamedTuple):
    values: dict[str, str]
    problems: list[str]
    """One sentence for each line that was skipped. Never its text: it may contain a secret."""


def load_workspace_dotenv(root: Path) -> DotEnv:
    """Reads the workspace's own `.env`, else, for a workspace `var`, the one next to it."""
    from dotenv.parser import parse_stream

    for path in (root / ".env", *([root.parent / ".env"] if root.name == "var" else [])):
        try:
            with open(path, encoding="utf-8") as file:
                bindings = list(parse_stream(file))
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            reason = "it is not valid UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror or error
            return DotEnv({}, [f"{path} cannot be read: {reason}."])
        values = {binding.key: binding.value for binding in bindings if binding.key and binding.value is not None}
        invalid = [binding for binding in bindings if binding.error or (binding.key and binding.value is None)]
        lines = [binding.original.line + _leading_newlines(binding.original.string) for binding in invalid]
        return DotEnv(values, [f"{path}, line {line}: skipped; expected NAME=value." for line in lines])
    return DotEnv({}, [])


def _leading_newlines(text: str) -> int:
    return text[: len(text) - len(text.lstrip())].count("\n")
