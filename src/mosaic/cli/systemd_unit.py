"""The unit that lets systemd run a daemon."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

RESTART_S = 5


def build_unit(command: Sequence[str], workspace: Path) -> str:
    """A user unit. `KillMode=process`: only the daemon ends with it, its runs continue."""
    return f"""\
[Unit]
Description=MOSAIC trainer of {_escape_specifiers(str(workspace))}
After=network.target
# A daemon that a command has started holds the workspace until it is idle; this one waits for that.
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={" ".join(map(quote_argument, command))}
Restart=on-failure
RestartSec={RESTART_S}
KillMode=process

[Install]
WantedBy=default.target
"""


def quote_argument(text: str) -> str:
    """An argument as systemd reads it: in quotes, with its escapes, specifiers and variables taken literally."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{_escape_specifiers(escaped)}"'


def _escape_specifiers(text: str) -> str:
    return text.replace("%", "%%")
