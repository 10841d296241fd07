"""The user's own folders, outside of every workspace. Standard library only."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def config_folder() -> Path:
    """Ignores a relative XDG_CONFIG_HOME, as its specification demands: it could be inside a workspace."""
    config_home = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(config_home) if os.path.isabs(config_home) else Path.home() / ".config"
    return base / "mosaic"


@contextmanager
def lock_private_folder(folder: Path) -> Iterator[None]:
    """Creates a folder that only its owner may enter, and serializes those who write in it: no change is lost."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
