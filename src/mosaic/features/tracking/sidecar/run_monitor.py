"""Detects the end of a run, from its keeper's file or from its processes.

Standard library only: for most scripts this is all of a sidecar that ever runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mosaic.base.journal import Follower
from mosaic.base.processes import is_alive
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.process_identity import ProcessIdentity

RUN_POLL_S = 1.0
KEEPER_TIMEOUT_S = 60.0
"""A keeper whose disk is full writes late. One that has written nothing for this long does not exist."""


class RunMonitor:
    """`keeper_from` is the offset of this attempt in the keeper's file."""

    def __init__(self, folder: RunFolder, keeper_from: int) -> None:
        self._folder = folder
        self._follower = Follower(folder.keeper, keeper_from)
        self._started_at = time.monotonic()
        self._keeper: ProcessIdentity | None = None
        self._worker: ProcessIdentity | None = None
        self._is_over = False
        self.is_superseded = False
        """The run was started again and has another sidecar, or its folder is gone: there is nothing left to do."""

    def is_over(self) -> bool:
        if not self._folder.path.is_dir():
            self.is_superseded = self._is_over = True
        for line in self._follower.read():
            self._handle_event(line.body["kind"], line.body.get("process"))
        return self._is_over or self._has_no_process()

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Returns whether the condition became true before the end of the run."""
        while not condition():
            if self.is_over():
                return condition()
            time.sleep(RUN_POLL_S)
        return True

    def _handle_event(self, kind: str, process: ProcessIdentity | None) -> None:
        if kind == "keeper_started":
            self.is_superseded = self._keeper is not None
            self._is_over = self._is_over or self.is_superseded
            self._keeper = self._keeper or process
        elif kind == "worker_started" and not self.is_superseded:
            self._worker = process
        elif kind in ("exited", "worker_not_started"):
            self._is_over = True

    def _has_no_process(self) -> bool:
        known = [process for process in (self._keeper, self._worker) if process is not None]
        if not known:
            return time.monotonic() - self._started_at > KEEPER_TIMEOUT_S
        return not any(is_alive(process) for process in known)
