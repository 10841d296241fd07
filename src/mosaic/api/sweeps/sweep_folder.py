"""The folder of a study: its files, and the lock that leaves it to one process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mosaic.common.files import write_text
from mosaic.common.limited_json import decode_limited
from mosaic.contracts.errors import NotAllowed, StorageFailed, unknown_name_error
from mosaic.contracts.folder import Workspace


class SweepFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.config = path / "sweep.json"
        """The sweep's file as it was first given."""
        self.journal = path / "study.log"
        """Optuna's journal."""
        self.lock = path / "lock"

    def read_config(self) -> dict[str, Any]:
        try:
            data: dict[str, Any] = decode_limited(self.config.read_text(), f"The sweep {self.name}")
        except OSError as error:
            raise StorageFailed(f"The sweep's file {self.config} cannot be read: {error.strerror}.") from None
        return data

    def write_config(self, text: str) -> None:
        write_text(self.config, text, is_durable=True)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep others from writing; the lock ends with the process, however that ends."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.lock, "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                raise NotAllowed(
                    f"The sweep {self.name!r} is running already, in process {file.read().strip() or 'unknown'}. "
                    f"Wait for it, press Ctrl-C there, or look: mosaic sweep status {self.name}"
                ) from None
            file.seek(0)
            file.truncate()
            file.write(f"{os.getpid()}\n")
            file.flush()
            self._repair_journal()
            yield

    def is_held(self) -> bool:
        """Return whether a process runs this sweep."""
        try:
            with open(self.lock) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def _repair_journal(self) -> None:
        """Remove an incomplete last line, which a power loss may leave: Optuna would refuse all lines after it."""
        if not self.journal.exists():
            return
        with open(self.journal, "rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


def sweep_names(workspace: Workspace) -> list[str]:
    """Return the studies of a workspace, the newest first."""
    found = [path.parent for path in workspace.sweeps.glob("*/sweep.json")]
    return [path.name for path in sorted(found, key=lambda path: -(path / "sweep.json").stat().st_mtime)]


def find_sweep(workspace: Workspace, name: str) -> SweepFolder:
    known = sweep_names(workspace)
    if name not in known:
        raise unknown_name_error("sweep", name, known, str(workspace.root))
    return SweepFolder(workspace.sweeps / name)
