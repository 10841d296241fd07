"""Whether the run that we go along with still goes on, told by its keeper, or by nobody being there any more."""

from __future__ import annotations

import time

from mosaic.contracts.events import Exited, KeeperStarted, WorkerNotStarted, WorkerStarted
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.processes import ProcessIdentity, is_alive
from mosaic.journal import Follower

SILENCE_S = 60.0
"""A keeper whose disk is full tells late. One that has told nothing for so long is not there."""


class Watch:
    """`keeper_from` is where this attempt begins in the keeper's file."""

    def __init__(self, folder: RunFolder, keeper_from: int) -> None:
        self._follower = Follower(folder.keeper, keeper_from)
        self._began = time.monotonic()
        self._keeper: ProcessIdentity | None = None
        self._worker: ProcessIdentity | None = None
        self._is_over = False
        self.is_superseded = False
        """The run was started again, and has another sidecar."""

    def is_over(self) -> bool:
        for line in self._follower.read():
            self._take(line.body["kind"], line.body.get("process"))
        return self._is_over or self._is_nobody_there()

    def _take(self, kind: str, process: ProcessIdentity | None) -> None:
        if kind == KeeperStarted.KIND:
            self.is_superseded = self._keeper is not None
            self._is_over = self._is_over or self.is_superseded
            self._keeper = self._keeper or process
        elif kind == WorkerStarted.KIND and not self.is_superseded:
            self._worker = process
        elif kind in (Exited.KIND, WorkerNotStarted.KIND):
            self._is_over = True

    def _is_nobody_there(self) -> bool:
        known = [process for process in (self._keeper, self._worker) if process is not None]
        if not known:
            return time.monotonic() - self._began > SILENCE_S
        return not any(is_alive(process) for process in known)
