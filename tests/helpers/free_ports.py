"""Ports for servers that are told their port, and bind it a while later."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

_FIRST = 10_000
_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Ports that the system gives neither to connections nor to servers that ask for any: they stay free."""
    first_given = int(_GIVEN.read_text(encoding="utf-8").split()[0]) if _GIVEN.exists() else 49_152
    candidates = list(range(_FIRST, first_given))
    random.shuffle(candidates)
    found: list[int] = []
    while len(found) < count:
        port = candidates.pop()
        with socket.socket() as one, suppress(OSError):  # it is taken
            one.bind((address, port))
            found.append(port)
    return found
