"""The environments of the callers of runs that were not started yet. They hold secrets, so never in a workspace."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mosaic.base.files import config_folder, lock_private_folder, write_text
from mosaic.contracts.folder import Workspace

KEPT_DAYS = 30
"""How long those of a workspace are kept that is gone: it may be on a disk that is mounted again."""


class CallerEnvironments:
    """In memory, and in files of the user's, each bound to one run of one workspace: they survive the daemon."""

    def __init__(self, workspace: Workspace, folder: str = "environments") -> None:
        self._owner = str(workspace.trainer.resolve())
        self._files = config_folder() / folder
        self._in_memory: dict[str, dict[str, str]] = {}
        self._is_reported = False

    def put(self, run_id: str, variables: Mapping[str, str]) -> tuple[str, ...]:
        """Keeps the environment of a run; returns what its caller is told, once: that it is in memory only."""
        self._in_memory[run_id] = dict(variables)
        try:
            with lock_private_folder(self._files):
                content = json.dumps({"workspace": self._owner, "variables": self._in_memory[run_id]})
                write_text(self._path(run_id), content, is_durable=True)
        except OSError as error:
            if not self._is_reported:
                self._is_reported = True
                return (
                    f"{self._files} cannot be written ({error.strerror or error}), so the environments of queued "
                    "programs are kept in memory only: those that wait when the daemon ends must be submitted again.",
                )
        return ()

    def get(self, run_id: str) -> dict[str, str] | None:
        if run_id not in self._in_memory:
            content = _read(self._path(run_id))
            if content.get("workspace") != self._owner:
                return None
            self._in_memory[run_id] = content["variables"]
        return self._in_memory[run_id]

    def drop(self, run_id: str) -> None:
        """Forgets the environment of a run that was started, or never will be."""
        if self.get(run_id) is not None:
            self._in_memory.pop(run_id, None)
            with suppress(OSError):  # it is removed by the next daemon
                self._path(run_id).unlink(missing_ok=True)

    def remove_stale(self, waiting: Collection[str]) -> None:
        """Removes the files of this workspace's runs that do not wait, and those of workspaces that are long gone."""
        with suppress(OSError):
            for path in self._files.iterdir():
                owner = _read(path).get("workspace")
                is_gone = owner is None or not os.path.isdir(owner)
                is_old = path.stat().st_mtime < time.time() - KEPT_DAYS * 86_400
                if (owner == self._owner and path.stem not in waiting) or (is_gone and is_old):
                    path.unlink()

    def _path(self, run_id: str) -> Path:
        return self._files / f"{run_id}.json"


def _read(path: Path) -> dict[str, Any]:
    """An environment's file; empty where there is none that can be read."""
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict) and isinstance(content.get("variables"), dict):
            return content
    return {}
