"""A daemon in memory for tests of what the command line says and sends; e2e tests use the real one."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mosaic.cli.context import CliContext
from mosaic.cli.main import main
from mosaic.contracts.errors import MosaicError, NoDaemon, unknown_name_error
from mosaic.contracts.events import Event, RecordChanged
from mosaic.contracts.folder import PLAY_SUMMARY_NAME, RunFolder
from mosaic.contracts.payload import Payload
from mosaic.contracts.play import PlaySummary
from mosaic.contracts.run_settings import RunSettings
from mosaic.contracts.views import MetricsCursor, MetricSeries, RunView, Verdict, VerdictSummary, WandbStatus
from mosaic.trainer.client.trainer_client import LogChunk, MetricsUpdate, RunFile, TrainerClient, WatchBatch
from mosaic.trainer.handlers.files import find_files, read_parts

Json = dict[str, Any]


def view(run_id: str = "01M7F4D1G10M14WJPB063GKCSW", **fields: Any) -> RunView:
    """A run as the daemon reports it."""
    defaults: Json = {
        "run_id": run_id, "kind": "train", "stage": "running", "outcome": None, "reason": None, "worker": "cleanrl",
        "run_name": None, "algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 1000, "group": None,
        "tags": [], "notes": None, "is_archived": False, "submitted_at": 100.0, "queued_at": 100.0,
        "started_at": 101.0, "finished_at": None, "run_dir": f"/nowhere/{run_id}",
        "pid": None, "global_step": None, "sps": None, "episodic_return": None, "episodes": 0, "is_stalled": False,
        "seconds_left": None, "hardware": None, "checkpoint_step": None,
    }  # fmt: skip
    return RunView.model_validate({**defaults, **fields})


def finished(run: RunView, outcome: str = "succeeded", **fields: Any) -> RunView:
    ended = {"stage": "finished", "outcome": outcome, "finished_at": 111.0, "pid": None}
    return RunView.model_validate({**run.model_dump(), **ended, **fields})


def record(run: RunView) -> Event:
    return RecordChanged(seq=1, at=1.0, kind="record", source="daemon", run_id=run.run_id, stage=run.stage, view=run)


class FakeTrainer:
    """Keeps what it was asked; `scripts` are what `watch` plays, one at a time: events, new points, or an error."""

    def __init__(self, *views: RunView) -> None:
        self.views = {run_view.run_id: run_view for run_view in views}
        self.submitted: list[Json] = []
        self.calls: list[tuple[Any, ...]] = []
        self.scripts: list[list[Event | MetricSeries | MosaicError | Callable[[], None]]] = []
        self.series: list[MetricSeries] = []
        self.log_bytes = b""
        self.config_json: Json = {"metadata": {"worker": {"id": "cleanrl", "config": {}}}, "artifacts": {}}
        self._ids = itertools.count()
        self.is_local = True

    def close(self) -> None: ...

    def __enter__(self) -> FakeTrainer:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(
        self, payload: Json, environment: dict[str, str] | None = None, is_trusted: bool = False, key: str = ""
    ) -> RunView:
        self.submitted.append(payload)
        config = payload["metadata"]["worker"]["config"]
        run = view(
            f"01NEW{next(self._ids):05}0000000000000000",
            stage="queued",
            seed=config.get("seed"),
            group=payload["metadata"].get("group"),
        )
        self.views[run.run_id] = run
        return run

    def files(self, run: str, pattern: str = "*") -> list[RunFile]:
        listed = find_files(RunFolder(self.get_run(run).run_dir), pattern)
        return [RunFile(file.name, file.size_bytes, file.modified_at, file.link_target) for file in listed]

    def read_file(self, run: str, name: str, offset: int = 0) -> Iterator[bytes]:
        yield from read_parts(RunFolder(self.get_run(run).run_dir), name, offset)

    def read_json(self, run: str, name: str) -> Any:
        return TrainerClient.read_json(self, run, name)  # type: ignore[arg-type]

    def read_small_file(self, run: str, name: str) -> bytes:
        return b"".join(self.read_file(run, name))

    def play_summary(self, run: str) -> PlaySummary | None:
        stored = self.read_json(run, PLAY_SUMMARY_NAME)
        return None if stored is None else PlaySummary.model_validate(stored)

    def read_wandb(self, run: str = "") -> Iterator[WandbStatus]:
        yield from ()

    def open_file(self, run: str, name: str) -> Path:
        return Path(self.get_run(run).run_dir, name)

    def get_run(self, run: str) -> RunView:
        if run == "last":
            return list(self.views.values())[-1]
        if run not in self.views:
            raise unknown_name_error("run", run, self.views)
        return self.views[run]

    def runs(self, *filters: Any, **named: Any) -> list[RunView]:
        self.calls.append(("runs", *filters, named))
        limit = named.get("limit") or (filters[6] if len(filters) > 6 else 0)
        group = named.get("group")
        return [one for one in self.views.values() if not group or one.group == group][: limit or None]

    def cancel_run(self, run: str) -> RunView:
        self.calls.append(("cancel", run))
        self.views[run] = finished(self.views[run], "cancelled")
        return self.views[run]

    def resume(self, run: str, total_timesteps: int | None = None, is_trusted: bool = False) -> RunView:
        self.calls.append(("resume", run, total_timesteps))
        return self.views[run]

    def annotate_run(self, run: str, **changes: Any) -> RunView:
        self.calls.append(("annotate", run, changes))
        return self.get_run(run)

    def delete_run(self, run: str) -> RunView:
        self.calls.append(("delete", run))
        return self.get_run(run).model_copy(update={"run_dir": "/trash/it's here"})

    def config(self, run: str) -> Json:
        return self.config_json

    def read_settings(self, run: str) -> RunSettings:
        return RunSettings()

    def payload(self, run: str) -> Payload:
        return Payload.model_validate(self.config(run))

    def check(self, payload: Json, environment: dict[str, str] | None = None) -> Verdict:
        self.submitted.append(payload)
        return Verdict(summary=VerdictSummary(module="m", algo="ppo", settings={"learning_rate": 0.001}))

    def metrics(self, run: str, tags: Sequence[str] = (), last_only: bool = False) -> Iterator[MetricSeries]:
        yield from (one for one in self.series if not tags or one.tag in tags)

    def metrics_after(self, run: str, cursor: MetricsCursor, tags: Sequence[str] = ()) -> MetricsUpdate:
        self.calls.append(("metrics_after", cursor))
        return MetricsUpdate(MetricsCursor(1, 0), cursor.generation != 1, list(self.metrics(run, tags)))

    def log(
        self, run: str, is_stderr: bool = False, offset: int = 0, follow: bool = False, is_both: bool = False
    ) -> Iterator[LogChunk]:
        yield LogChunk(self.log_bytes[offset:], len(self.log_bytes))

    def watch(self, after: int = 0, run: str = "", kinds: Sequence[str] = ()) -> Iterator[WatchBatch]:
        self.calls.append(("watch", after))
        for cursor, step in enumerate(self.scripts.pop(0) if self.scripts else [], after + 1):
            if isinstance(step, MosaicError):
                raise step
            if isinstance(step, MetricSeries):
                self.series = [step]
                yield WatchBatch(cursor, [], 0, frozenset([run]))
            elif callable(step):
                step()
            else:
                yield WatchBatch(cursor, [step], 0)


class FakeContext(CliContext):
    def __init__(self, trainer: FakeTrainer | None, root: Path) -> None:
        super().__init__()
        self.workspace_dir = str(root)
        self.fake = trainer

    def address(self) -> None:
        return None

    def connect(self, may_start: bool = True) -> Any:
        if self.fake is None:
            raise NoDaemon("No daemon runs.")
        return self.fake


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str


def call(trainer: FakeTrainer | None, *arguments: str, root: Path = Path("/nowhere/var")) -> CommandResult:
    """The command in this process, with its output caught."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments, FakeContext(trainer, root))
    return CommandResult(code, out.getvalue(), err.getvalue())
