"""The file of last resort: `~/.config/mosaic/secrets.json`, readable by its owner only. Standard library only."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mosaic.contracts.errors import BadInput
from mosaic.contracts.files import write_json


def secrets_path() -> Path:
    """The XDG specification ignores a relative folder, and so do we: it could lie inside of a workspace."""
    told = os.environ.get("XDG_CONFIG_HOME", "")
    home = Path(told) if os.path.isabs(told) else Path.home() / ".config"
    return home / "mosaic" / "secrets.json"


def read_secrets() -> dict[str, str]:
    place = secrets_path()
    try:
        text = place.read_text(encoding="utf-8")
        data = json.loads(text)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadInput(f"The secrets in {place} cannot be read: {error.strerror or error}.") from None
    except ValueError:
        data = None
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise BadInput(f"{place} is damaged; expected a JSON object of names and keys. Mend it, or remove it.")
    return data


def set_or_remove(name: str, value: str | None) -> bool:
    """Sets or, with None, removes one; whether anything changed."""
    place = secrets_path()
    if value is None and not place.exists():
        return False
    try:
        with _lock_folder(place.parent):
            data = read_secrets()
            before = data.get(name)
            if value is None:
                data.pop(name, None)
            else:
                data[name] = value
            if before != value:
                write_json(place, data, mode=0o600)
            else:
                place.chmod(0o600)
            return before != value
    except OSError as error:
        raise BadInput(
            f"The key cannot be kept in {place}: {error.strerror or error}. "
            "Make that folder writable, or set it in the environment."
        ) from None


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Two programs that store at the same time both find theirs afterwards."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
