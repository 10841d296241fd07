"""The system keyring, asked in a process of its own: a keyring may wait for ever for somebody to unlock it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
import time

KEYRING_TIMEOUT_S = 5.0
"""How long the keyring may take. Behind it stands the file."""
RETRY_AFTER_S = 60.0
"""How long a keyring that failed is not asked again."""

_KEYRING_SCRIPT = """
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


class KeyringClient:
    """Answers None where there is no keyring, or none that works."""

    def __init__(self, timeout_s: float = KEYRING_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._retry_at = 0.0
        self._lock = threading.Lock()

    def request(self, verb: str, name: str, value: str = "") -> str | bool | None:
        if importlib.util.find_spec("keyring") is None:
            return None
        with self._lock:  # the daemon's threads do not each wait for the same dead keyring
            if time.monotonic() < self._retry_at:
                return None
            try:
                # The value goes by pipe: arguments are for everybody to see.
                done = subprocess.run(
                    [sys.executable, "-P", "-c", _KEYRING_SCRIPT],
                    input=json.dumps([verb, name, value]),
                    capture_output=True,
                    text=True,
                    timeout=self._timeout_s,
                    check=True,
                )
                said: str | bool | None = json.loads(done.stdout)
                return said
            except (OSError, ValueError, subprocess.SubprocessError):
                self._retry_at = time.monotonic() + RETRY_AFTER_S
                return None


_keyring = KeyringClient()


def get(name: str) -> str | None:
    said = _keyring.request("get", name)
    return said if isinstance(said, str) and said else None


def put(name: str, value: str) -> bool:
    return _keyring.request("put", name, value) is True


def delete(name: str) -> bool:
    return _keyring.request("forget", name) is True
