"""`~/.config/mosaic/secrets.json`, readable by its owner only, for systems without a keyring. Standard library only."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mosaic.common.files import write_json
from mosaic.contracts.errors import BadInput


def secrets_path() -> Path:
    """Ignores a relative XDG_CONFIG_HOME, as its specification demands: it could be inside a workspace."""
    config_home = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(config_home) if os.path.isabs(config_home) else Path.home() / ".config"
    return base / "mosaic" / "secrets.json"


def read_secrets() -> dict[str, str]:
    path = secrets_path()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadInput(f"The secrets in {path} cannot be read: {error.strerror or error}.") from None
    except ValueError:
        data = None
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise BadInput(f"{path} is damaged; expected a JSON object of names and keys. Fix or remove it.")
    return data


def set_or_remove(name: str, value: str | None) -> bool:
    """Sets a secret, or removes it with None; returns whether anything changed."""
    path = secrets_path()
    if value is None and not path.exists():
        return False
    try:
        with _lock_folder(path.parent):
            data = read_secrets()
            is_changed = data.get(name) != value
            if is_changed:
                others = {key: secret for key, secret in data.items() if key != name}
                write_json(path, others if value is None else {**others, name: value}, mode=0o600)
            path.chmod(0o600)
            return is_changed
    except OSError as error:
        raise BadInput(
            f"The key cannot be stored in {path}: {error.strerror or error}. "
            "Make that folder writable, or set the key in the environment."
        ) from None


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Serializes writers, so that none of two concurrent changes is lost."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
