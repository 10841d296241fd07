"""Reads the studies of a workspace for the window, in a process of its own: the window does not import Optuna.

`python -m mosaic.features.sweeps.worker WORKSPACE` prints a report (one line of JSON) when something has changed,
until its standard input ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from mosaic.contracts.errors import MissingExtra, MosaicError, StorageFailed
from mosaic.contracts.folder import Workspace
from mosaic.features.sweeps.core import TrialRow, TrialStatus
from mosaic.features.sweeps.core_folder import SweepFolder, sweep_names
from mosaic.features.sweeps.core_loop import read_study

if TYPE_CHECKING:
    from mosaic.features.sweeps.core_study import Study

# --- The state of a sweep as the process that reads its study reports it to the window.


@dataclass(frozen=True)
class SweepSnapshot:
    name: str
    config: dict[str, Any]
    """The sweep's file."""
    study_id: str = ""
    """Of the study, from which the keys of its runs follow; empty before it was created."""
    trials: tuple[TrialRow, ...] = ()
    importances: dict[str, float] | None = None
    """By setting, the most important first; empty where too few trials are done."""
    runner_pid: int | None = None
    """The process that runs the sweep; 0 where its id is not known, None where there is none."""
    problem: str = ""
    """Why it cannot be read."""


@dataclass(frozen=True)
class SweepReport:
    """One message: what has changed since the last one."""

    names: tuple[str, ...] = ()
    """All sweeps, the one changed last first."""
    changed: tuple[SweepSnapshot, ...] = ()
    problem: str = ""
    """Why no sweep can be read, such as a missing package."""


def encode_report(report: SweepReport) -> str:
    return json.dumps(asdict(report))


def decode_report(line: bytes) -> SweepReport:
    try:
        return _adapter().validate_json(line)
    except ValidationError as error:
        raise StorageFailed(f"The reader of sweeps sent what cannot be read: {error.errors()[0]['msg']}.") from None


@cache
def _adapter() -> TypeAdapter[SweepReport]:
    return TypeAdapter(SweepReport)


# --- Reads the studies of a workspace for the window, in a process of its own: the window does not import Optuna.
#     `python -m mosaic.features.sweeps.worker WORKSPACE` prints a report (one line of JSON) when something has
#     changed, until its standard input ends.


POLL_S = 0.7


class StudyReader:
    """Keeps the study of one sweep open: Optuna reads only what was appended to its journal."""

    def __init__(self, folder: SweepFolder) -> None:
        self._folder = folder
        self._study: Study | None = None
        self._seen: tuple[int, ...] = ()
        self._importances: dict[str, float] = {}
        self._done = 0
        self._last: SweepSnapshot | None = None

    def read(self) -> SweepSnapshot | None:
        """Return the sweep if it has changed since the last call."""
        stats = [path.stat() for path in (self._folder.config, self._folder.journal) if path.exists()]
        seen = tuple(number for stat in stats for number in (stat.st_ino, stat.st_size, stat.st_mtime_ns))
        runner = self._folder.holder_pid()
        if self._last is not None and seen == self._seen and runner == self._last.runner_pid:
            return None
        if seen[:3] != self._seen[:3]:
            self._study = None  # the file was given again, or this is another study
        self._seen = seen
        try:
            self._last = self._read_study(runner)
        except MissingExtra:
            raise
        except (MosaicError, ValueError, KeyError, OSError) as error:
            self._study = None
            self._last = SweepSnapshot(self._folder.name, {}, runner_pid=runner, problem=str(error))
        return self._last

    def _read_study(self, runner: int | None) -> SweepSnapshot:
        config = self._folder.read_config()
        # Opening a study that was not created yet would create it, at the same time as its own process.
        if not self._folder.journal.exists() or not self._folder.journal.stat().st_size:
            return SweepSnapshot(self._folder.name, config, runner_pid=runner)
        self._study = self._study or read_study(self._folder)
        rows = tuple(self._study.rows())
        done = sum(row.status is TrialStatus.DONE for row in rows)
        if done != self._done:
            self._done, self._importances = done, self._study.importances()
        return SweepSnapshot(self._folder.name, config, self._study.id, rows, self._importances, runner_pid=runner)


def follow(workspace: Workspace, stop: threading.Event) -> None:
    readers: dict[str, StudyReader] = {}
    names: list[str] | None = None
    while not stop.is_set():
        listed = sweep_names(workspace)
        readers = {name: readers.get(name) or StudyReader(SweepFolder(workspace.sweeps / name)) for name in listed}
        changed = [snapshot for reader in readers.values() if (snapshot := reader.read()) is not None]
        if changed or listed != names:
            names = listed
            print(encode_report(SweepReport(tuple(listed), tuple(changed))), flush=True)
        stop.wait(POLL_S)


def main() -> int:
    stop = threading.Event()

    def wait_for_end() -> None:
        while os.read(0, 100):
            pass
        stop.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    try:
        follow(Workspace(Path(sys.argv[1])), stop)
    except MissingExtra as error:
        print(encode_report(SweepReport(problem=str(error))), flush=True)
    except BrokenPipeError:
        os._exit(0)  # the window was killed
    return 0


if __name__ == "__main__":
    sys.exit(main())
