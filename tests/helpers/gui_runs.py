"""Runs for tests of the window: views as the daemon gives them, and a trainer that only remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.gui import pump

from mosaic.contracts.disk_views import DiskKind, PruneItem, PrunePart, TrashedRun
from mosaic.contracts.events import Event
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.run_settings import RunSettings
from mosaic.contracts.states import HistoryEntry, Stage
from mosaic.contracts.views import DaemonStatus, MetricsCursor, RunView, SlotUsage, WandbStatus
from mosaic.features.runs.daemon import describe_settings, find_algorithm, worker_options
from mosaic.trainer.client.trainer_client import LogChunk, LogMatch, LogMatches, MetricsUpdate, RunFile, WatchBatch
from mosaic.trainer.handlers.files import find_files, read_parts
from mosaic.trainer.handlers.logs import Finder, find_error, search_lines, text_finder
from mosaic.window.app import Application

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
        self.trashed: dict[str, RunView] = {}
        self.asked: list[tuple[Any, ...]] = []
        self.logs: dict[bool, bytes] = {False: b"", True: b""}
        self.payload: Json = {
            "metadata": {"worker": {"id": "cleanrl", "config": {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1}}},
            "artifacts": {},
        }

        self.events: list[Event] = []
        """From which the settings of a run follow."""
        self._closed = threading.Event()

    def close(self) -> None:
        self._closed.set()

    def get_status(self) -> DaemonStatus:
        slots = SlotUsage(runs=2, cpus=2)
        return DaemonStatus(pid=1, address="127.0.0.1:1", workspace="/nowhere", version="0", slots=slots)

    def runs(self, status: Any = (), include_archived: bool = False, **_: Any) -> list[RunView]:
        return [run_view for run_view in self.views.values() if not status or run_view.stage in status]

    def watch(self, after: int = 0, run: str = "", kinds: Any = ()) -> Iterator[WatchBatch]:
        yield WatchBatch(0, [], 0)
        self._closed.wait(60)

    def get_run(self, run: str) -> RunView:
        history = (HistoryEntry(at=1.0, stage=Stage.QUEUED, message="It waits."),)
        return self.views[run].model_copy(update={"history": history})

    def config(self, run: str) -> Json:
        return self.payload

    def read_settings(self, run: str) -> RunSettings:
        return describe_settings(self.payload, find_algorithm(self.payload), worker_options(self.payload), self.events)

    def files(self, run: str, pattern: str = "*") -> list[RunFile]:
        listed = find_files(RunFolder(self.views[run].run_dir), pattern)
        return [RunFile(file.name, file.size_bytes, file.modified_at, file.link_target) for file in listed]

    def read_json(self, run: str, name: str) -> Any:
        return json.loads(b"".join(read_parts(RunFolder(self.views[run].run_dir), name, 0)))

    def open_file(self, run: str, name: str) -> Path:
        return Path(self.views[run].run_dir, name)

    def metrics_after(self, run: str, cursor: MetricsCursor, tags: Sequence[str] = ()) -> MetricsUpdate:
        return MetricsUpdate(MetricsCursor(1, 0), cursor.generation != 1, [])

    def log(
        self, run: str, is_stderr: bool = False, offset: int = 0, follow: bool = False, is_both: bool = False
    ) -> Iterator[LogChunk]:
        """In chunks of 64 KB, as the daemon gives them; of both streams, stdout first."""
        streams = (False, True) if is_both else (is_stderr,)
        size = sum(len(self.logs[stream]) for stream in streams)
        at = max(0, size + offset) if offset < 0 else offset
        begin = 0
        for stream in streams:
            data = self.logs[stream]
            while begin <= at < begin + len(data):
                chunk = data[at - begin : at - begin + 65536]
                at += len(chunk)
                yield LogChunk(chunk, at, stream)
            begin += len(data)

    def search_log(self, run: str, text: str, is_stderr: bool = False, is_both: bool = False) -> LogMatches:
        self.asked.append(("search_log", run, text))
        return self._search(text_finder(text), is_stderr, is_both)

    def find_log_errors(self, run: str, is_stderr: bool = False, is_both: bool = False) -> LogMatches:
        return self._search(find_error, is_stderr, is_both)

    def _search(self, find: Finder, is_stderr: bool, is_both: bool) -> LogMatches:
        matches, begin = [], 0
        for stream in (False, True) if is_both else (is_stderr,):
            for match in search_lines(self.logs[stream], begin, 1, find):
                matches.append(LogMatch(match.offset, match.line, stream, match.text))
            begin += len(self.logs[stream])
        return LogMatches(matches, False)

    def _changed(self, run: str, **fields: Any) -> RunView:
        self.views[run] = RunView.model_validate(self.views[run].model_dump() | fields)
        return self.get_run(run)

    def cancel_run(self, run: str) -> RunView:
        self.asked.append(("cancel", run))
        return self._changed(run, stage="stopping")

    def pause_run(self, run: str) -> RunView:
        self.asked.append(("pause", run))
        return self._changed(run, stage="paused")

    def resume(self, run: str, total_timesteps: int | None = None, is_trusted: bool = False) -> RunView:
        self.asked.append(("resume", run, total_timesteps))
        return self._changed(run, stage="running", outcome=None)

    def annotate_run(
        self,
        run: str,
        add_tags: Any = (),
        remove_tags: Any = (),
        notes: Any = None,
        is_archived: Any = None,
        run_name: str | None = None,
        priority: int | None = None,
    ) -> RunView:
        if run_name is not None and notes is None:
            self.asked.append(("rename", run, run_name))
            return self._changed(run, run_name=run_name or None)
        self.asked.append(("annotate", run, list(add_tags), list(remove_tags), notes, is_archived))
        known = self.views[run]
        tags = [tag for tag in dict.fromkeys([*known.tags, *add_tags]) if tag not in remove_tags]
        kept = known.is_archived if is_archived is None else is_archived
        return self._changed(run, tags=tags, is_archived=kept, notes=known.notes if notes is None else notes)

    def read_wandb(self, run: str) -> list[WandbStatus]:
        return []

    def list_trash(self, has_sizes: bool = False) -> Iterator[TrashedRun]:
        for trashed in self.trashed.values():
            size_bytes = 2_000_000 if has_sizes else None
            yield TrashedRun(
                run_id=trashed.run_id,
                path=f"/trash/{trashed.run_id}",
                deleted_at=1_700_000_000.0,
                seconds_left=29.5 * 86_400,
                size_bytes=size_bytes,
                algo=trashed.algo,
                env_id=trashed.env_id,
                seed=trashed.seed,
            )

    def delete_run(self, run: str) -> RunView:
        self.asked.append(("delete", run))
        self.trashed[run] = self.views.pop(run)
        return self.trashed[run].model_copy(update={"run_dir": f"/trash/{run}"})

    def import_run(self, path: str) -> RunView:
        self.asked.append(("import", path))
        run = path.rpartition("/")[2]
        self.views[run] = self.trashed.pop(run)
        return self.views[run]

    def prune_runs(self, *, trashed: Sequence[str]) -> Iterator[PrunePart]:
        self.asked.append(("prune", *trashed))
        gone = [self.trashed.pop(run) for run in trashed]
        items = [PruneItem(run_id=run.run_id, kind=DiskKind.TRASH, names=(), size_bytes=2_000_000) for run in gone]
        yield PrunePart(run_count=0, run_total=0, items=tuple(items))

    def submit(self, payload: Json, environment: Any = None, is_trusted: bool = False, key: str = "") -> RunView:
        made = view(90_000 + len(self.asked), stage="queued", outcome=None)
        self.asked.append(("submit", payload))
        self.views[made.run_id] = made
        return self.get_run(made.run_id)


def start_with(program: Application, fake: FakeTrainer) -> None:
    """Starts the program on this trainer instead of a daemon's, and waits until the runs are listed."""
    program.bridge._connect = lambda: fake  # type: ignore[assignment, return-value]
    lists: list[object] = []  # an empty list must have arrived as well: it would replace what a test adds
    program.bridge.runs_listed.connect(lists.append)
    program.start()
    pump(lambda: lists, "the runs to be listed")


def show_active(program: Application) -> None:
    """Shows the window and waits until keys go to it."""
    program.window.show()
    program.window.activateWindow()
    pump(program.window.isActiveWindow, "the window to be active")
