"""Keeps a workspace to one daemon, also when files in it are deleted."""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from typing import IO

import structlog

from mosaic.base.processes import own_identity
from mosaic.contracts.errors import AlreadyRunning, NoDaemon
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.connect import read_daemon_address, read_lock_owner

log = structlog.get_logger("mosaic.trainer.workspace_lock")

TAKEOVER_TIMEOUT_S = 15.0
"""How long to wait for a daemon that holds the lock and is not ready: it is ending, or just starting."""


class WorkspaceLock:
    """Held until released or until this process ends, however it ends.

    The folder itself is locked, which stays locked whatever is deleted in it. The lock file holds the owner's
    identity; it is locked, too, because daemons of earlier versions know no other lock.
    """

    def __init__(self, workspace: Workspace) -> None:
        """Raises AlreadyRunning where another daemon is ready, or holds the lock for too long."""
        self._workspace = workspace
        deadline = time.monotonic() + TAKEOVER_TIMEOUT_S
        while not self._try_acquire():
            pid = _ready_daemon_pid(workspace)
            if pid or time.monotonic() > deadline:
                owner = None if pid else read_lock_owner(workspace)
                pid = pid or (owner["pid"] if owner else "unknown")
                raise AlreadyRunning(f"A daemon for {workspace.root} is already running, pid {pid}.")
            time.sleep(0.02)

    def _try_acquire(self) -> bool:
        self._workspace.trainer.mkdir(parents=True, exist_ok=True)
        self._folder_fd = os.open(self._workspace.trainer, os.O_RDONLY)
        try:
            fcntl.flock(self._folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._folder_fd)
            return False
        except OSError as error:  # network file systems lock files only
            log.info("folder_not_locked", error=str(error))
        self._file = self._lock_file()
        if self._file is None:
            os.close(self._folder_fd)
        return self._file is not None

    def _lock_file(self) -> IO[str] | None:
        file = open(self._workspace.daemon_lock, "a+", encoding="utf-8")  # noqa: SIM115 - held open on purpose
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        with suppress(OSError):  # on a full disk; it is needed only where daemon.json is gone, too
            file.truncate(0)
            file.write(json.dumps(own_identity()))
            file.flush()
        return file

    def has_folder(self) -> bool:
        """Whether the workspace's folder is still the one that is locked."""
        try:
            return os.path.samestat(os.stat(self._workspace.trainer), os.fstat(self._folder_fd))
        except OSError:
            return False

    def restore_file(self) -> bool:
        """Create the lock file again if it was deleted or replaced; returns whether that was necessary."""
        try:
            if self._file and os.path.samestat(os.stat(self._workspace.daemon_lock), os.fstat(self._file.fileno())):
                return False
        except FileNotFoundError:
            pass
        if self._file is not None:
            self._file.close()
        self._file = self._lock_file()
        return True

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
        os.close(self._folder_fd)


def _ready_daemon_pid(workspace: Workspace) -> int | str | None:
    try:
        address = read_daemon_address(workspace)
    except NoDaemon:  # the file is damaged
        return None
    return address.process["pid"] if address else None
