"""Runs for tests of the window: views as the daemon gives them, and a trainer that only remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.gui import pump

from mosaic.client.trainer_client import LogChunk, MetricsUpdate, RunFile, WatchBatch
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.states import HistoryEntry, Stage
from mosaic.contracts.views import DaemonStatus, MetricsCursor, RunView, SlotUsage
from mosaic.gui.app import Application
from mosaic.trainer.folder_reader import list_files, read_file

Json = dict[str, Any]


def run_id(number: int) -> str:
    return f"01M7F0000000000000000{number:05d}"


def view(number: int, **fields: Any) -> RunView:
    """A run as lists show it; higher numbers are newer."""
    defaults: Json = {
        "run_id": run_id(number),
        "kind": "train",
        "stage": "finished",
        "outcome": "succeeded",
        "reason": None,
        "worker": "cleanrl",
        "run_name": None,
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "seed": 1,
        "total_timesteps": 1000,
        "group": None,
        "tags": [],
        "notes": None,
        "is_archived": False,
        "submitted_at": 1_700_000_000.0 + number,
        "queued_at": 1_700_000_000.0 + number,
        "started_at": 1_700_000_001.0 + number,
        "finished_at": 1_700_000_060.0 + number,
        "run_dir": f"/nowhere/{run_id(number)}",
        "global_step": 1000,
        "sps": 500.0,
        "episodic_return": float(number),
        "episodes": 10,
        "is_stalled": False,
        "seconds_left": None,
        "hardware": None,
        "checkpoint_step": 1000,
    }
    return RunView.model_validate(defaults | fields)


def running(number: int, **fields: Any) -> RunView:
    about: Json = {"stage": "running", "outcome": None, "finished_at": None, "global_step": 100, "seconds_left": 90.0}
    return view(number, **(about | fields))


class FakeTrainer:
    """Answers from memory."""

    def __init__(self, views: list[RunView] | None = None) -> None:
        self.views = {run_view.run_id: run_view for run_view in views or []}
        self.asked: list[tuple[Any, ...]] = []
        self.logs: dict[bool, bytes] = {False: b"", True: b""}
        self.payload: Json = {
            "metadata": {"worker": {"id": "cleanrl", "config": {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1}}},
            "artifacts": {},
        }

        self._closed = threading.Event()

    def close(self) -> None:
        self._closed.set()

    def status(self) -> DaemonStatus:
        slots = SlotUsage(runs=2, cpus=2)
        return DaemonStatus(pid=1, address="127.0.0.1:1", workspace="/nowhere", version="0", slots=slots)

    def runs(self, status: Any = (), include_archived: bool = False, **_: Any) -> list[RunView]:
        return [run_view for run_view in self.views.values() if not status or run_view.stage in status]

    def watch(self, after: int = 0, run: str = "", kinds: Any = ()) -> Iterator[WatchBatch]:
        yield WatchBatch(0, [], 0)
        self._closed.wait(60)

    def get(self, run: str) -> RunView:
        history = (HistoryEntry(at=1.0, stage=Stage.QUEUED, message="It waits."),)
        return self.views[run].model_copy(update={"history": history})

    def config(self, run: str) -> Json:
        return self.payload

    def files(self, run: str, pattern: str = "*") -> list[RunFile]:
        listed = list_files(RunFolder(self.views[run].run_dir), pattern)
        return [RunFile(file.name, file.size_bytes, file.modified_at, file.link_target) for file in listed]

    def read_json(self, run: str, name: str) -> Any:
        return json.loads(b"".join(read_file(RunFolder(self.views[run].run_dir), name, 0)))

    def open_file(self, run: str, name: str) -> Path:
        return Path(self.views[run].run_dir, name)

    def metrics_after(self, run: str, cursor: MetricsCursor, tags: Sequence[str] = ()) -> MetricsUpdate:
        return MetricsUpdate(MetricsCursor(1, 0), cursor.generation != 1, [])

    def log(self, run: str, is_stderr: bool = False, offset: int = 0, follow: bool = False) -> Iterator[LogChunk]:
        """In chunks of 64 KB, as the daemon gives them."""
        data = self.logs[is_stderr]
        at = max(0, len(data) + offset) if offset < 0 else offset
        while at < len(data):
            chunk = data[at : at + 65536]
            at += len(chunk)
            yield LogChunk(chunk, at)

    def _changed(self, run: str, **fields: Any) -> RunView:
        self.views[run] = RunView.model_validate(self.views[run].model_dump() | fields)
        return self.get(run)

    def cancel(self, run: str) -> RunView:
        self.asked.append(("cancel", run))
        return self._changed(run, stage="stopping")

    def pause(self, run: str) -> RunView:
        self.asked.append(("pause", run))
        return self._changed(run, stage="paused")

    def resume(self, run: str, total_timesteps: int | None = None, is_trusted: bool = False) -> RunView:
        self.asked.append(("resume", run, total_timesteps))
        return self._changed(run, stage="running", outcome=None)

    def annotate(
        self, run: str, add_tags: Any = (), remove_tags: Any = (), notes: Any = None, is_archived: Any = None
    ) -> RunView:
        self.asked.append(("annotate", run, list(add_tags), list(remove_tags), notes, is_archived))
        known = self.views[run]
        tags = [tag for tag in [*known.tags, *add_tags] if tag not in remove_tags]
        kept = known.is_archived if is_archived is None else is_archived
        return self._changed(run, tags=tags, is_archived=kept, notes=known.notes if notes is None else notes)

    def submit(self, payload: Json, environment: Any = None, is_trusted: bool = False) -> RunView:
        made = view(90_000 + len(self.asked), stage="queued", outcome=None)
        self.asked.append(("submit", payload))
        self.views[made.run_id] = made
        return self.get(made.run_id)


def start_with(program: Application, fake: FakeTrainer) -> None:
    """Starts the program on this trainer instead of a daemon's, and waits until the runs are listed."""
    program.bridge._connect = lambda: fake  # type: ignore[assignment, return-value]
    program.start()
    pump(lambda: len(program.workbench.runs) == len(fake.views), "the runs to be listed")
