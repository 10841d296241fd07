"""The system keyring, asked in a process of its own: a keyring may wait for ever for somebody to unlock it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
import time

PATIENCE_S = 5.0
"""How long the keyring may take. Behind it stands the file."""
AVOID_S = 60.0
"""How long a keyring that failed is not asked again."""

_ASK = """
import json, sys
import keyring
verb, name, value = json.load(sys.stdin)
if verb == "put":
    keyring.set_password("mosaic", name, value)
    found = keyring.get_password("mosaic", name)
    said = found == value
elif verb == "get":
    said = keyring.get_password("mosaic", name)
else:
    said = keyring.get_password("mosaic", name) is not None
    if said:
        keyring.delete_password("mosaic", name)
json.dump(said, sys.stdout)
"""


class Ring:
    """Answers None where there is no keyring, or none that works."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._avoid_until = 0.0
        self._lock = threading.Lock()

    def ask(self, verb: str, name: str, value: str = "") -> str | bool | None:
        if importlib.util.find_spec("keyring") is None:
            return None
        with self._lock:  # the daemon's threads do not each wait for the same dead keyring
            if time.monotonic() < self._avoid_until:
                return None
            try:
                # The value goes by pipe: arguments are for everybody to see.
                done = subprocess.run(
                    [sys.executable, "-P", "-c", _ASK],
                    input=json.dumps([verb, name, value]),
                    capture_output=True,
                    text=True,
                    timeout=self._patience_s,
                    check=True,
                )
                said: str | bool | None = json.loads(done.stdout)
                return said
            except (OSError, ValueError, subprocess.SubprocessError):
                self._avoid_until = time.monotonic() + AVOID_S
                return None


_ring = Ring()


def get(name: str) -> str | None:
    said = _ring.ask("get", name)
    return said if isinstance(said, str) and said else None


def put(name: str, value: str) -> bool:
    return _ring.ask("put", name, value) is True


def forget(name: str) -> bool:
    return _ring.ask("forget", name) is True
