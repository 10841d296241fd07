"""Accesses the system keyring in a child process: a keyring may wait forever to be unlocked."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
import time

KEYRING_TIMEOUT_S = 5.0
"""After this the file is used instead."""
RETRY_AFTER_S = 60.0
"""How long a keyring that failed is not used."""

_KEYRING_SCRIPT = """
import json, sys
import keyring
verb, name, value = json.load(sys.stdin)
if verb == "put":
    keyring.set_password("mosaic", name, value)
    reply = keyring.get_password("mosaic", name) == value
elif verb == "get":
    reply = keyring.get_password("mosaic", name)
else:
    reply = keyring.get_password("mosaic", name) is not None
    if reply:
        keyring.delete_password("mosaic", name)
json.dump(reply, sys.stdout)
"""


class KeyringClient:
    """Returns None where there is no working keyring."""

    def __init__(self, timeout_s: float = KEYRING_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._retry_at = 0.0
        self._lock = threading.Lock()

    def request(self, verb: str, name: str, value: str = "") -> str | bool | None:
        if importlib.util.find_spec("keyring") is None:
            return None
        with self._lock:  # so that the daemon's threads do not each wait for the same broken keyring
            if time.monotonic() < self._retry_at:
                return None
            try:
                # The value goes through a pipe: arguments are visible to all users.
                process = subprocess.run(
                    [sys.executable, "-P", "-c", _KEYRING_SCRIPT],
                    input=json.dumps([verb, name, value]),
                    capture_output=True,
                    text=True,
                    timeout=self._timeout_s,
                    check=True,
                )
                reply: str | bool | None = json.loads(process.stdout)
                return reply
            except (OSError, ValueError, subprocess.SubprocessError):
                self._retry_at = time.monotonic() + RETRY_AFTER_S
                return None


_keyring = KeyringClient()


def get(name: str) -> str | None:
    value = _keyring.request("get", name)
    return value if isinstance(value, str) and value else None


def put(name: str, value: str) -> bool:
    return _keyring.request("put", name, value) is True


def delete(name: str) -> bool:
    return _keyring.request("forget", name) is True
