"""Reading a `.env` file: `NAME=value` lines with quotes, comments and `export`. What cannot be read is said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
_QUOTED = re.compile(r"""(?:"((?:[^"\\]|\\.)*)"|'([^']*)')\s*(?:#.*)?""")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class DotEnv(NamedTuple):
    values: dict[str, str]
    problems: list[str]
    """One sentence for each line that was passed over. Never its text: it may hold a secret."""


def parse_dotenv(text: str, name: str = ".env") -> DotEnv:
    values: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        value = _parse_value(found[2]) if found else None
        if found is None:
            problems.append(f"{name}, line {number}: passed over; expected NAME=value.")
        elif value is None:
            problems.append(f"{name}, line {number}: {found[1]} was passed over; its quotes do not match.")
        else:
            values[found[1]] = value
    return DotEnv(values, problems)


def _parse_value(text: str) -> str | None:
    if text[:1] in ("'", '"'):
        found = _QUOTED.fullmatch(text)
        if found is None:
            return None
        if found[2] is not None:
            return found[2]
        return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), found[1])
    return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].rstrip()


def load_workspace_dotenv(root: Path) -> DotEnv:
    """The workspace's own `.env`, else, for a workspace `var`, the one of the folder that it stands in."""
    for path in (root / ".env", *([root.parent / ".env"] if root.name == "var" else [])):
        try:
            return parse_dotenv(path.read_text(encoding="utf-8"), str(path))
        except FileNotFoundError:
            continue
        except UnicodeDecodeError:
            return DotEnv({}, [f"{path} cannot be read: it is no text in UTF-8."])
        except OSError as error:
            return DotEnv({}, [f"{path} cannot be read: {error.strerror or error}."])
    return DotEnv({}, [])
