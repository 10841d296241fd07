"""The RPC door: envelopes in, desk and index behind, JSON out. Errors the user can act on travel by their name."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import grpc
import structlog

from mosaic import __version__
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadInput, MosaicError, UnknownName
from mosaic.contracts.secrets import PROOF_KEY, proof, same
from mosaic.contracts.trainer_pb2_grpc import TrainerServicer
from mosaic.fastlane import lanes_folder
from mosaic.journal import Journal
from mosaic.plugins import worker as worker_named
from mosaic.store import IndexedEvent
from mosaic.store.ingest import sources
from mosaic.trainer.checkers import Checkers
from mosaic.trainer.desk import Desk
from mosaic.trainer.evaluations import evaluations
from mosaic.trainer.frames import Seen, Wish, relay
from mosaic.trainer.importing import import_run
from mosaic.trainer.records import Records, as_json
from mosaic.trainer.wandb import wandb_states

log = structlog.get_logger("mosaic.trainer.server")

Context = grpc.ServicerContext
Method = TypeVar("Method", bound=Callable[..., Any])

BATCH = 500
BACKLOG = 4000
"""A reader this far behind is spared the events that later ones replace."""
REPLACEABLE = ("progress", "sample")
LOG_CHUNK_BYTES = 1 << 18
TELEMETRY = ("step", "episodes", "metrics")


def _abort(context: Context, error: Exception) -> None:
    if isinstance(error, MosaicError):
        code = grpc.StatusCode.INVALID_ARGUMENT if isinstance(error, BadInput) else grpc.StatusCode.FAILED_PRECONDITION
        log.info("call_answered_with_refusal", error=type(error).__name__, log_code=error.log_code, said=str(error))
        context.abort(code, f"{type(error).__name__}: {error}")
    log.exception("call_failed")
    context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")


def _answering(method: Method) -> Method:
    @functools.wraps(method)
    def wrapped(self: Servicer, request: Any, context: Context) -> Any:
        with self.calls:
            try:
                return method(self, request, context)
            except Exception as error:
                if context.code() is None:  # type: ignore[attr-defined]
                    _abort(context, error)
                raise

    return wrapped  # type: ignore[return-value]


def _streaming(method: Method) -> Method:
    @functools.wraps(method)
    def wrapped(self: Servicer, request: Any, context: Context) -> Any:
        with self.calls:
            try:
                yield from method(self, request, context)
            except Exception as error:
                if context.code() is None:  # type: ignore[attr-defined]
                    _abort(context, error)
                raise

    return wrapped  # type: ignore[return-value]


class Calls:
    """How many calls are open, and when the last one ended."""

    def __init__(self) -> None:
        self.open = 0
        self.last_at = time.monotonic()

    def __enter__(self) -> None:
        self.open += 1

    def __exit__(self, *_: object) -> None:
        self.open -= 1
        self.last_at = time.monotonic()


class Controls(NamedTuple):
    """What may be done with the daemon itself."""

    status: Callable[[], dict[str, Any]]
    end: Callable[[bool, bool], None]
    """Its arguments: whether to cancel the runs, whether to drain."""
    set_cap: Callable[[int], None]
    continue_queue: Callable[[], None]


class Servicer(TrainerServicer):
    def __init__(self, records: Records, desk: Desk, checkers: Checkers, token: str, controls: Controls) -> None:
        self._records = records
        self._desk = desk
        self._checkers = checkers
        self._token = token
        self._controls = controls
        self.calls = Calls()
        self.is_closing = False

    @_answering
    def Identify(self, request: pb.IdentifyRequest, context: Context) -> pb.IdentifyReply:
        given = dict(context.invocation_metadata()).get(PROOF_KEY, "")
        if not request.nonce or not same(str(given), proof(self._token, "client", request.nonce)):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "MosaicError: the caller does not know the token.")
        return pb.IdentifyReply(proof=proof(self._token, "server", request.nonce), version=__version__)

    # --- runs

    @_answering
    def SubmitRun(self, request: pb.PayloadRequest, context: Context) -> pb.RunReply:
        return _view(self._desk.submit(request.payload_json, request.environment))

    @_answering
    def CheckRun(self, request: pb.PayloadRequest, context: Context) -> pb.JsonReply:
        return pb.JsonReply(json=as_json(self._desk.check(request.payload_json, bool(request.environment))))

    @_answering
    def CancelRun(self, request: pb.RunRequest, context: Context) -> pb.RunReply:
        return _view(self._desk.cancel(request.run))

    @_answering
    def PauseRun(self, request: pb.RunRequest, context: Context) -> pb.RunReply:
        return _view(self._desk.pause(request.run))

    @_answering
    def ResumeRun(self, request: pb.ResumeRequest, context: Context) -> pb.RunReply:
        total = request.total_timesteps if request.HasField("total_timesteps") else None
        return _view(self._desk.resume(request.run, total))

    @_answering
    def ListRuns(self, request: pb.ListRequest, context: Context) -> pb.ListReply:
        rows = self._records.index.listing(
            list(request.status),
            request.algo,
            request.env_id,
            request.group,
            list(request.tag),
            request.include_archived,
            limit=request.limit,
        )
        views = []
        for record, facts in rows:
            view = self._records.seen(record, facts)
            views.append(as_json({name: view[name] for name in view if name not in ("story", "attempts")}))
        return pb.ListReply(views_json=views)

    @_answering
    def GetRun(self, request: pb.RunRequest, context: Context) -> pb.RunReply:
        return _view(self._records.view(self._records.resolve(request.run)))

    @_answering
    def GetConfig(self, request: pb.RunRequest, context: Context) -> pb.JsonReply:
        folder = self._records.folder(self._records.resolve(request.run))
        return pb.JsonReply(json=as_json(json.loads(folder.config.read_text())))

    @_answering
    def AnnotateRun(self, request: pb.AnnotateRequest, context: Context) -> pb.RunReply:
        view = self._desk.annotate(
            request.run,
            list(request.add_tags),
            list(request.remove_tags),
            request.notes if request.HasField("notes") else None,
            request.is_archived if request.HasField("is_archived") else None,
            request.priority if request.HasField("priority") else None,
        )
        return _view(view)

    @_answering
    def DeleteRun(self, request: pb.RunRequest, context: Context) -> pb.RunReply:
        return _view(self._desk.delete(request.run))

    @_answering
    def ImportRun(self, request: pb.ImportRequest, context: Context) -> pb.RunReply:
        return _view(import_run(self._records, request.path))

    # --- what runs say

    @_streaming
    def WatchRuns(self, request: pb.WatchRequest, context: Context) -> Iterator[pb.EventBatch]:
        run_id = self._records.resolve(request.run) if request.run else ""
        yield from self._follow(context, request.after, run_id, list(request.kinds))

    @_streaming
    def StreamTelemetry(self, request: pb.TelemetryFilter, context: Context) -> Iterator[pb.EventBatch]:
        run_id = self._records.resolve(request.run)
        yield from self._follow(context, request.after, run_id, list(request.kinds) or list(TELEMETRY))

    def _follow(self, context: Context, after: int, run_id: str, kinds: Sequence[str]) -> Iterator[pb.EventBatch]:
        index = self._records.index
        cursor = index.last_cursor() if after < 0 else after
        # Who asks for nothing else wants them all, such as a chart of the hardware.
        is_thinned = not kinds or not set(kinds).issubset(REPLACEABLE)
        yield pb.EventBatch(cursor=cursor)
        while context.is_active() and not self.is_closing:
            events = index.events_after(cursor, run_id, kinds, BACKLOG)
            if not events:
                with self._records.changed:
                    self._records.changed.wait(0.5)
                continue
            kept = events
            if is_thinned and len(events) == BACKLOG:
                kept = [event for event in events if event.kind not in REPLACEABLE]
            for at in range(0, len(kept), BATCH):
                part = kept[at : at + BATCH]
                texts = [text for text in map(self._event, part) if text is not None]
                skipped = len(events) - len(kept) if at == 0 else 0
                yield pb.EventBatch(cursor=part[-1].cursor, events_json=texts, skipped=skipped)
            cursor = events[-1].cursor

    def _event(self, event: IndexedEvent) -> str | None:
        """The event's own line out of its file; none where the run has been deleted meanwhile."""
        if event.body is not None:
            body = {"seq": event.seq, "at": event.at, "kind": event.kind, **json.loads(event.body)}
            if event.kind == "record":
                try:
                    body["view"] = self._records.view(event.run_id)
                except UnknownName:
                    return None
        else:
            path = sources(self._records.folder(event.run_id)).get(event.source)
            try:
                assert path is not None
                with open(path, "rb") as file:
                    file.seek(event.begin or 0)
                    body = json.loads(file.read(event.length or 0).splitlines()[-1])
            except (OSError, ValueError, AssertionError, IndexError):
                return None
        return as_json({"run_id": event.run_id, "source": event.source, **body})

    @_streaming
    def ReadMetrics(self, request: pb.MetricsRequest, context: Context) -> Iterator[pb.MetricsReply]:
        run_id = self._records.resolve(request.run)
        for series in self._records.index.metrics(run_id, list(request.tags), request.last_only):
            yield pb.MetricsReply(tag=series.tag, steps=series.steps, at=series.at, values=series.values)

    @_streaming
    def ReadEpisodes(self, request: pb.RunRequest, context: Context) -> Iterator[pb.JsonReply]:
        for rows in self._records.index.episodes(self._records.resolve(request.run)):
            yield pb.JsonReply(json=as_json(rows))

    @_streaming
    def ReadEvaluations(self, request: pb.EvaluationsRequest, context: Context) -> Iterator[pb.JsonReply]:
        run_id = self._records.resolve(request.run) if request.run else ""
        for found in evaluations(self._records, run_id, request.env_id):
            yield pb.JsonReply(json=as_json(found))

    @_streaming
    def ReadWandb(self, request: pb.RunRequest, context: Context) -> Iterator[pb.JsonReply]:
        run_id = self._records.resolve(request.run) if request.run else ""
        for found in wandb_states(self._records, run_id):
            yield pb.JsonReply(json=as_json(found))

    @_streaming
    def ReadLog(self, request: pb.LogRequest, context: Context) -> Iterator[pb.LogReply]:
        run_id = self._records.resolve(request.run)
        folder = self._records.folder(run_id)
        log_name = worker_named(self._records.get(run_id).worker).log
        path = folder.stderr_log(log_name) if request.is_stderr else folder.stdout_log(log_name)
        offset = request.offset
        if offset < 0:
            offset = max(0, (path.stat().st_size if path.exists() else 0) + offset)
        while context.is_active() and not self.is_closing:
            # Asked before reading: what it wrote until its end is then still read.
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

    # --- workers

    @_answering
    def RegisterWorker(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterReply:
        is_known = request.run in self._records.active
        log.info("worker_registered", run_id=request.run, worker=request.worker, pid=request.pid, is_known=is_known)
        return pb.RegisterReply(is_known=is_known)

    @_answering
    def Heartbeat(self, request: pb.RunRequest, context: Context) -> pb.RegisterReply:
        is_known = request.run in self._records.active
        if is_known:
            self._records.index.note_progress(request.run, heard_at=time.time())
        return pb.RegisterReply(is_known=is_known)

    @_answering
    def PublishTelemetry(self, request: Iterator[pb.TelemetryRequest], context: Context) -> pb.TelemetryReply:
        """Into a journal of our own in the run's folder, from where it goes the way of all telemetry."""
        journals: dict[str, Journal] = {}
        accepted = 0
        try:
            for message in request:
                run_id = self._records.resolve(message.run)
                facts = json.loads(message.facts_json)
                if message.kind not in TELEMETRY or not isinstance(facts, dict):
                    raise BadInput(f"Telemetry of kind {message.kind!r} is not known. Known: {', '.join(TELEMETRY)}.")
                if run_id not in journals:
                    path = self._records.folder(run_id).path / f"journal.{os.getpid()}.jsonl"
                    journals[run_id] = Journal(path)
                facts = {name: value for name, value in facts.items() if name not in ("seq", "at", "kind")}
                journals[run_id].append(message.kind, **facts)
                accepted += 1
        finally:
            for journal in journals.values():
                journal.close()
        return pb.TelemetryReply(accepted=accepted)

    @_streaming
    def StreamFrames(self, request: Iterator[pb.FramesRequest], context: Context) -> Iterator[pb.FrameReply]:
        first = next(request)
        seen = Seen(more.seen for more in request)
        seen.start()
        run_id = self._records.resolve(first.run)

        def ending() -> str:
            return "" if self._records.get(run_id).is_active else "the run has ended"

        messages = relay(
            lanes_folder(self._records.folder(run_id).path),
            Wish(list(first.envs), first.rate_hz, first.max_side, first.budget),
            is_open=lambda: context.is_active() and not self.is_closing,
            ending=ending,
            seen=lambda: seen.count,
        )
        for message in messages:
            yield pb.FrameReply(
                state=message.state, reason=message.reason, image=message.image, hud_json=message.hud_json
            )

    @_answering
    def AskWorker(self, request: pb.AskRequest, context: Context) -> pb.JsonReply:
        question = json.loads(request.question_json)
        return pb.JsonReply(json=as_json(self._checkers.ask(worker_named(request.worker).id, question)))

    # --- the daemon itself

    @_answering
    def GetStatus(self, request: pb.StatusRequest, context: Context) -> pb.JsonReply:
        return pb.JsonReply(json=as_json(self._controls.status()))

    @_answering
    def SetCap(self, request: pb.CapRequest, context: Context) -> pb.JsonReply:
        self._controls.set_cap(request.runs)
        return pb.JsonReply(json=as_json(self._controls.status()))

    @_answering
    def ContinueQueue(self, request: pb.StatusRequest, context: Context) -> pb.JsonReply:
        self._controls.continue_queue()
        return pb.JsonReply(json=as_json(self._controls.status()))

    @_answering
    def StopDaemon(self, request: pb.StopRequest, context: Context) -> pb.JsonReply:
        status = self._controls.status()
        self._controls.end(request.cancel_runs, request.drain)
        return pb.JsonReply(json=as_json(status))


def _view(view: dict[str, Any]) -> pb.RunReply:
    return pb.RunReply(view_json=as_json(view))
