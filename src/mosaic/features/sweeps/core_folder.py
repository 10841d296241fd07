"""The folder of a study: its files, and the lock that leaves it to one process."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from mosaic.base.files import write_text
from mosaic.base.limited_json import decode_limited
from mosaic.contracts.errors import NotAllowed, StorageFailed, unknown_name_error
from mosaic.contracts.folder import Workspace

LOCK_TRIES, LOCK_PAUSE_S = 20, 0.025
END_TIMEOUT_S = 120.0
"""Longer than a sweep tries to reconnect to its trainer."""
END_POLL_S = 0.1


class SweepFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.config = path / "sweep.json"
        """The sweep's file as it was first given."""
        self.journal = path / "study.log"
        """Optuna's journal."""
        self.lock = path / "lock"
        """It contains the number of the process that holds it."""
        self.end_request = path / "end_request"
        """While this file exists, the process that runs the sweep ends as after Ctrl-C."""
        self.log = path / "sweep.log"
        """The output of the process that the window has started last."""

    def read_config(self) -> dict[str, Any]:
        try:
            data: dict[str, Any] = decode_limited(self.config.read_text(encoding="utf-8"), f"The sweep {self.name}")
        except OSError as error:
            raise StorageFailed(f"The sweep's file {self.config} cannot be read: {error.strerror}.") from None
        return data

    def write_config(self, text: str) -> None:
        write_text(self.config, text, is_durable=True)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep others from writing; the lock ends with the process, however that ends."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.lock, "a+", encoding="utf-8") as file:
            if not _try_lock(file):
                raise NotAllowed(
                    f"The sweep {self.name!r} is running already, in process {self._read_holder()}. "
                    f"Wait for it, press Ctrl-C there, or look: mosaic sweep status {self.name}"
                )
            file.seek(0)
            file.truncate()
            file.write(f"{os.getpid()}\n")
            file.flush()
            self.end_request.unlink(missing_ok=True)  # left by a process that was killed while it waited
            self._repair_journal()
            yield

    def holder_pid(self) -> int | None:
        """Return the process that runs this sweep; None where there is none."""
        if not self.is_held():
            return None
        text = self._read_holder()
        return int(text) if text.isdecimal() else 0

    def is_held(self) -> bool:
        """Return whether a process runs this sweep."""
        try:
            with open(self.lock, encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def end_holder(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Ask the process that runs this sweep to end, and wait until it has. Its runs continue."""
        deadline = time.monotonic() + timeout_s
        try:
            while self.is_held():
                if not self.end_request.exists():  # or one that has started meanwhile has removed it
                    write_text(self.end_request, f"{os.getpid()}\n")
                if time.monotonic() > deadline:
                    raise NotAllowed(
                        f"The sweep {self.name!r} is still running {timeout_s:g} s after it was asked to end, in "
                        f"process {self._read_holder()}. Its connection may be lost. End that process, then try again."
                    )
                time.sleep(END_POLL_S)
        finally:
            self.end_request.unlink(missing_ok=True)

    def _read_holder(self) -> str:
        try:
            return self.lock.read_text(encoding="utf-8").strip() or "unknown"
        except OSError:
            return "unknown"

    def _repair_journal(self) -> None:
        """Remove an incomplete last line, which a power loss may leave: Optuna would refuse all lines after it."""
        if not self.journal.exists():
            return
        with open(self.journal, "rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


def _try_lock(file: IO[str]) -> bool:
    """Lock a file; `is_held` of another process holds it for a moment, so this tries several times."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(LOCK_PAUSE_S)
        else:
            return True
    return False


def sweep_names(workspace: Workspace) -> list[str]:
    """Return the studies of a workspace, the newest first."""
    found = [path.parent for path in workspace.sweeps.glob("*/sweep.json")]
    return [path.name for path in sorted(found, key=lambda path: -(path / "sweep.json").stat().st_mtime)]


def find_sweep(workspace: Workspace, name: str) -> SweepFolder:
    known = sweep_names(workspace)
    if name not in known:
        raise unknown_name_error("sweep", name, known, str(workspace.root))
    return SweepFolder(workspace.sweeps / name)
