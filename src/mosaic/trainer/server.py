"""The gRPC servicer: decodes requests, calls the run service and the index, encodes replies and errors."""

from __future__ import annotations

import functools
import inspect
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeVar

import grpc
import structlog

from mosaic import __version__
from mosaic.common.auth_proof import PROBLEMS_KEY, PROOF_KEY, compute_proof, constant_time_equals
from mosaic.common.limited_json import decode_limited
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadInput, MosaicError, UnknownName
from mosaic.contracts.events import Hello
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.trainer_pb2_grpc import TrainerServicer
from mosaic.contracts.views import MetricsCursor, MetricSeries, RunView
from mosaic.fastlane import lanes_folder
from mosaic.journal import Journal
from mosaic.store import BULK_KINDS, IndexedEvent, encode_event
from mosaic.store.ingest import event_sources
from mosaic.trainer.checkers import Checkers
from mosaic.trainer.folder_reader import list_files, read_evaluations, read_file, read_wandb_statuses
from mosaic.trainer.frame_relay import count_acknowledged, relay_frames
from mosaic.trainer.records import Records
from mosaic.trainer.run_import import import_run
from mosaic.trainer.run_service import RunService
from mosaic.workers import get_worker

if TYPE_CHECKING:
    from mosaic.trainer.daemon import Daemon

log = structlog.get_logger("mosaic.trainer.server")

Context = grpc.ServicerContext
AnyServicer = TypeVar("AnyServicer", bound=TrainerServicer)

EVENTS_PER_BATCH = 500
MAX_MESSAGE_LENGTH = 4000
"""Of an error: gRPC drops answers whose headers are too long."""
MAX_BACKLOG_EVENTS = 4000
"""A reader that is this many events behind skips those that later ones replace."""
REPLACEABLE_KINDS = ("progress", "sample")
POINTS_PER_REPLY = 5000
LOG_CHUNK_BYTES = 1 << 18
POINT_KINDS = ("metrics", "episodes")


def _abort(context: Context, error: Exception) -> NoReturn:
    code = grpc.StatusCode.INTERNAL
    if isinstance(error, MosaicError):
        code = grpc.StatusCode.INVALID_ARGUMENT if isinstance(error, BadInput) else grpc.StatusCode.FAILED_PRECONDITION
        log.info("request_refused", error=type(error).__name__, log_code=error.log_code, message=str(error))
        if error.problems:
            context.set_trailing_metadata(((PROBLEMS_KEY, json.dumps(error.problems).encode()),))
    else:
        log.exception("call_failed")
    context.abort(code, f"{type(error).__name__}: {error}"[:MAX_MESSAGE_LENGTH])


@contextmanager
def _errors_as_status(context: Context) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if context.code() is None:  # type: ignore[attr-defined]
            _abort(context, error)
        raise


def _guard(method: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a method count its calls and answer errors with a gRPC status."""

    def call(self: Servicer, request: Any, context: Context) -> Any:
        with self.calls, _errors_as_status(context):
            return method(self, request, context)

    def stream(self: Servicer, request: Any, context: Context) -> Iterator[Any]:
        with self.calls, _errors_as_status(context):
            yield from method(self, request, context)

    return functools.wraps(method)(stream if inspect.isgeneratorfunction(method) else call)


def _guard_calls(servicer: type[AnyServicer]) -> type[AnyServicer]:
    for name in servicer.__dict__.keys() & TrainerServicer.__dict__.keys():
        if not name.startswith("_"):
            setattr(servicer, name, _guard(getattr(servicer, name)))
    return servicer


class CallCounter:
    """How many calls are open, and when the last one ended."""

    def __init__(self) -> None:
        self.open = 0
        self.last_ended_at = time.monotonic()

    def __enter__(self) -> None:
        self.open += 1

    def __exit__(self, *_: object) -> None:
        self.open -= 1
        self.last_ended_at = time.monotonic()


@_guard_calls
class Servicer(TrainerServicer):
    def __init__(
        self, records: Records, run_service: RunService, checkers: Checkers, token: str, daemon: Daemon
    ) -> None:
        self._records = records
        self._run_service = run_service
        self._checkers = checkers
        self._token = token
        self._daemon = daemon
        self.calls = CallCounter()
        self.is_closing = False

    def _folder(self, run: str) -> RunFolder:
        return self._records.folder(self._records.resolve(run))

    def Identify(self, request: pb.IdentifyRequest, context: Context) -> pb.IdentifyReply:
        given = dict(context.invocation_metadata()).get(PROOF_KEY, "")
        if not request.nonce or not constant_time_equals(
            str(given), compute_proof(self._token, "client", request.nonce)
        ):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "MosaicError: the caller does not know the token.")
        return pb.IdentifyReply(proof=compute_proof(self._token, "server", request.nonce), version=__version__)

    # --- runs

    def SubmitRun(self, request: pb.PayloadRequest, context: Context) -> pb.RunReply:
        return _run_reply(self._run_service.submit(request.payload_json, request.environment))

    def CheckRun(self, request: pb.PayloadRequest, context: Context) -> pb.JsonReply:
        verdict = self._run_service.check(request.payload_json, bool(request.environment))
        return pb.JsonReply(json=verdict.model_dump_json())

    def CancelRun(self, request: pb.RunRequest, context: Context) -> pb.RunReply:
        return _run_reply(self._run_service.cancel(request.run))

    def PauseRun(self, request: pb.RunRequest, context: Context) -> pb.RunReply:
        return _run_reply(self._run_service.pause(request.run))

    def ResumeRun(self, request: pb.ResumeRequest, context: Context) -> pb.RunReply:
        total = request.total_timesteps if request.HasField("total_timesteps") else None
        return _run_reply(self._run_service.resume(request.run, total))

    def ListRuns(self, request: pb.ListRequest, context: Context) -> pb.ListReply:
        rows = self._records.index.list_runs(
            list(request.status),
            request.algo,
            request.env_id,
            request.group,
            list(request.tag),
            request.include_archived,
            limit=request.limit,
        )
        positions = self._records.queue_positions()
        views = (self._records.to_view(record, progress, positions) for record, progress in rows)
        return pb.ListReply(views_json=[view.model_dump_json(exclude={"history", "attempts"}) for view in views])

    def GetRun(self, request: pb.RunRequest, context: Context) -> pb.RunReply:
        return _run_reply(self._records.view(self._records.resolve(request.run)))

    def GetConfig(self, request: pb.RunRequest, context: Context) -> pb.JsonReply:
        payload = self._records.read_payload(self._records.resolve(request.run))
        return pb.JsonReply(json=payload.model_dump_json(exclude_unset=True))

    def AnnotateRun(self, request: pb.AnnotateRequest, context: Context) -> pb.RunReply:
        view = self._run_service.annotate(
            request.run,
            list(request.add_tags),
            list(request.remove_tags),
            request.notes if request.HasField("notes") else None,
            request.is_archived if request.HasField("is_archived") else None,
            request.priority if request.HasField("priority") else None,
        )
        return _run_reply(view)

    def DeleteRun(self, request: pb.RunRequest, context: Context) -> pb.RunReply:
        return _run_reply(self._run_service.delete(request.run))

    def ImportRun(self, request: pb.ImportRequest, context: Context) -> pb.RunReply:
        return _run_reply(import_run(self._records, request.path))

    # --- telemetry

    def WatchRuns(self, request: pb.WatchRequest, context: Context) -> Iterator[pb.EventBatch]:
        run_id = self._records.resolve(request.run) if request.run else ""
        for cursor, events, skipped in self._follow_events(context, request.after, run_id, list(request.kinds)):
            # A further attempt drops points of an earlier one.
            grown = {event.run_id for event in events if event.kind in POINT_KINDS or event.kind == Hello.KIND}
            texts = self._events_json([event for event in events if event.kind not in POINT_KINDS])
            yield pb.EventBatch(cursor=cursor, events_json=texts, skipped=skipped, runs_with_points=sorted(grown))

    def StreamTelemetry(self, request: pb.TelemetryFilter, context: Context) -> Iterator[pb.EventBatch]:
        run_id = self._records.resolve(request.run)
        kinds = list(request.kinds) or list(BULK_KINDS)
        for cursor, events, skipped in self._follow_events(context, request.after, run_id, kinds):
            yield pb.EventBatch(cursor=cursor, events_json=self._events_json(events), skipped=skipped)

    def _follow_events(
        self, context: Context, after: int, run_id: str, kinds: Sequence[str]
    ) -> Iterator[tuple[int, Sequence[IndexedEvent], int]]:
        """Yields the cursor, the events up to it and how many were skipped, until the watcher disconnects."""
        index = self._records.index
        cursor = index.last_cursor() if after < 0 else after
        # A watcher that asks for nothing else needs them all, such as a chart of the hardware.
        is_thinned = not kinds or not set(kinds).issubset(REPLACEABLE_KINDS)
        yield cursor, (), 0
        while context.is_active() and not self.is_closing:
            events = index.events_after(cursor, run_id, kinds, MAX_BACKLOG_EVENTS)
            if not events:
                with self._records.change_condition:
                    self._records.change_condition.wait(0.5)
                continue
            sent = events
            if is_thinned and len(events) == MAX_BACKLOG_EVENTS:
                sent = [event for event in events if event.kind not in REPLACEABLE_KINDS]
            for at in range(0, len(sent), EVENTS_PER_BATCH):
                part = sent[at : at + EVENTS_PER_BATCH]
                yield part[-1].cursor, part, len(events) - len(sent) if at == 0 else 0
            cursor = events[-1].cursor

    def _events_json(self, events: Sequence[IndexedEvent]) -> list[str]:
        """The events as JSON, without those of runs that have been deleted since."""
        texts = []
        with ExitStack() as open_files:
            files: dict[tuple[str, str], BinaryIO] = {}
            for event in events:
                try:
                    if event.json_text is not None:
                        texts.append(event.json_text)
                    elif event.body is not None:
                        texts.append(self._daemon_event_json(event))
                    else:
                        place = event.run_id, event.source
                        if place not in files:
                            path = event_sources(self._records.folder(event.run_id))[event.source]
                            files[place] = open_files.enter_context(open(path, "rb"))
                        texts.append(_read_event(files[place], event))
                except (UnknownName, OSError, LookupError, ValueError):
                    continue
        return texts

    def _daemon_event_json(self, event: IndexedEvent) -> str:
        body = {"seq": event.seq, "at": event.at, "kind": event.kind, **json.loads(event.body or "{}")}
        if event.kind == "record":
            body["view"] = self._records.view(event.run_id).model_dump(mode="json")
        return encode_event(event.run_id, event.source, body)

    def ReadMetrics(self, request: pb.MetricsRequest, context: Context) -> Iterator[pb.MetricsReply]:
        run_id = self._records.resolve(request.run)
        after = MetricsCursor(request.generation, request.last_point)
        read = self._records.index.read_metrics(run_id, list(request.tags), request.last_only, after)
        with read as (now, parts):
            for group in _group_parts(parts):
                series = [
                    pb.MetricSeries(tag=part.tag, steps=part.steps, at=part.at, values=part.values) for part in group
                ]
                yield pb.MetricsReply(series=series, generation=now.generation, last_point=now.last_point)

    def ReadEpisodes(self, request: pb.RunRequest, context: Context) -> Iterator[pb.JsonReply]:
        for rows in self._records.index.episodes(self._records.resolve(request.run)):
            yield pb.JsonReply(json=json.dumps(rows))

    def ReadEvaluations(self, request: pb.EvaluationsRequest, context: Context) -> Iterator[pb.JsonReply]:
        run_id = self._records.resolve(request.run) if request.run else ""
        for evaluation in read_evaluations(self._records, run_id, request.env_id):
            yield pb.JsonReply(json=evaluation.model_dump_json())

    def ReadWandb(self, request: pb.RunRequest, context: Context) -> Iterator[pb.JsonReply]:
        run_id = self._records.resolve(request.run) if request.run else ""
        for status in read_wandb_statuses(self._records, run_id):
            yield pb.JsonReply(json=status.model_dump_json())

    def ReadLog(self, request: pb.LogRequest, context: Context) -> Iterator[pb.LogReply]:
        run_id = self._records.resolve(request.run)
        folder = self._records.folder(run_id)
        log_name = get_worker(self._records.get(run_id).worker).log_prefix
        path = folder.stderr_log(log_name) if request.is_stderr else folder.stdout_log(log_name)
        offset = request.offset
        if offset < 0:
            offset = max(0, (path.stat().st_size if path.exists() else 0) + offset)
        while context.is_active() and not self.is_closing:
            # Checked before reading, so that everything written until its end is still read.
            has_ended = not self._records.get(run_id).is_active
            data = b""
            if path.exists():
                with open(path, "rb") as file:
                    file.seek(offset)
                    data = file.read(LOG_CHUNK_BYTES)
            offset += len(data)
            if data:
                yield pb.LogReply(data=data, offset=offset)
            elif not request.follow or has_ended:
                return
            else:
                time.sleep(0.1)

    def ListFiles(self, request: pb.FilesRequest, context: Context) -> pb.FilesReply:
        return pb.FilesReply(files=list_files(self._folder(request.run), request.pattern))

    def ReadFile(self, request: pb.FileRequest, context: Context) -> Iterator[pb.FileReply]:
        for data in read_file(self._folder(request.run), request.name, request.offset):
            yield pb.FileReply(data=data)

    # --- workers

    def RegisterWorker(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterReply:
        is_known = request.run in self._records.active
        log.info("worker_registered", run_id=request.run, worker=request.worker, pid=request.pid, is_known=is_known)
        return pb.RegisterReply(is_known=is_known)

    def Heartbeat(self, request: pb.RunRequest, context: Context) -> pb.RegisterReply:
        is_known = request.run in self._records.active
        if is_known:
            self._records.index.update_progress(request.run, heard_at=time.time())
        return pb.RegisterReply(is_known=is_known)

    def PublishTelemetry(self, request: Iterator[pb.TelemetryRequest], context: Context) -> pb.TelemetryReply:
        """Writes to another journal in the run's folder, which is ingested as the worker's own is."""
        journals: dict[str, Journal] = {}
        accepted = 0
        try:
            for message in request:
                run_id = self._records.resolve(message.run)
                fields = decode_limited(message.fields_json, "The telemetry")
                if message.kind not in BULK_KINDS or not isinstance(fields, dict):
                    raise BadInput(f"Telemetry of kind {message.kind!r} is not known. Known: {', '.join(BULK_KINDS)}.")
                if run_id not in journals:
                    path = self._records.folder(run_id).path / f"journal.{os.getpid()}.jsonl"
                    journals[run_id] = Journal(path)
                fields = {name: value for name, value in fields.items() if name not in ("seq", "at", "kind")}
                journals[run_id].append(message.kind, **fields)
                accepted += 1
        finally:
            for journal in journals.values():
                journal.close()
        return pb.TelemetryReply(accepted=accepted)

    def StreamFrames(self, request: Iterator[pb.FramesRequest], context: Context) -> Iterator[pb.FrameReply]:
        first = next(request)
        run_id = self._records.resolve(first.run)
        yield from relay_frames(
            lanes_folder(self._records.folder(run_id).path),
            first,
            is_open=lambda: context.is_active() and not self.is_closing,
            end_reason=lambda: "" if self._records.get(run_id).is_active else "the run has ended",
            acknowledged_count=count_acknowledged(request),
        )

    def AskWorker(self, request: pb.AskRequest, context: Context) -> pb.JsonReply:
        answer = self._checkers.ask(
            get_worker(request.worker).id, decode_limited(request.question_json, "The question")
        )
        return pb.JsonReply(json=json.dumps(answer))

    # --- the daemon itself

    def GetStatus(self, request: pb.StatusRequest, context: Context) -> pb.JsonReply:
        return pb.JsonReply(json=self._daemon.status().model_dump_json())

    def SetCap(self, request: pb.CapRequest, context: Context) -> pb.JsonReply:
        self._daemon.set_cap(request.runs)
        return pb.JsonReply(json=self._daemon.status().model_dump_json())

    def ContinueQueue(self, request: pb.StatusRequest, context: Context) -> pb.JsonReply:
        self._daemon.supervisor.continue_queue()
        return pb.JsonReply(json=self._daemon.status().model_dump_json())

    def StopDaemon(self, request: pb.StopRequest, context: Context) -> pb.JsonReply:
        status = self._daemon.status()
        self._daemon.shut_down(request.cancel_runs, request.drain)
        return pb.JsonReply(json=status.model_dump_json())


def _group_parts(parts: Iterator[MetricSeries]) -> Iterator[list[MetricSeries]]:
    """Groups small parts, as a message costs more than its points; there is at least one group."""
    group: list[MetricSeries] = []
    size = 0
    for part in parts:
        group.append(part)
        size += len(part.steps)
        if size >= POINTS_PER_REPLY:
            yield group
            group, size = [], 0
    yield group


def _read_event(file: BinaryIO, event: IndexedEvent) -> str:
    """An event that is no longer in memory, from its line in the run's file."""
    file.seek(event.begin or 0)
    body = json.loads(file.read(event.length or 0).splitlines()[-1])
    return encode_event(event.run_id, event.source, body)


def _run_reply(view: RunView) -> pb.RunReply:
    return pb.RunReply(view_json=view.model_dump_json())
