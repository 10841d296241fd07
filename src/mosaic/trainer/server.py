"""The gRPC servicer: decodes requests, calls the run service and the index, encodes replies and errors."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog
from pydantic import BaseModel

from mosaic import __version__
from mosaic.common.auth_proof import CERTIFICATE_KEY, NONCE_KEY
from mosaic.common.limited_json import decode_limited
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadInput, NotAllowed
from mosaic.contracts.events import Hello, decode_event
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.play import PLAY_WORKER
from mosaic.contracts.play_commands import MAX_COMMAND_BYTES, parse_command
from mosaic.contracts.states import Stage
from mosaic.contracts.trainer_pb2_grpc import TrainerServicer
from mosaic.contracts.views import MetricsCursor, MetricSeries, RunView
from mosaic.fastlane import lanes_folder
from mosaic.journal import Journal
from mosaic.store import BULK_KINDS
from mosaic.trainer.auth import Credentials
from mosaic.trainer.checkers import Checkers
from mosaic.trainer.disk_usage import read_disk_usage
from mosaic.trainer.event_feed import POINT_KINDS, EventFeed
from mosaic.trainer.folder_reader import list_files, read_evaluations, read_file, read_wandb_statuses
from mosaic.trainer.frame_relay import TICK_S, FrameCount, relay_frames
from mosaic.trainer.lifecycle import refuse_contract
from mosaic.trainer.pruning import PruneOptions, Pruner
from mosaic.trainer.records import Records
from mosaic.trainer.rpc_calls import CallCounter, CallThreads, Context, guard_calls, iterate_in, run_in
from mosaic.trainer.run_import import import_run
from mosaic.trainer.run_logs import LogPart, RunLogs, find_error, text_finder
from mosaic.trainer.run_service import RunService
from mosaic.trainer.run_settings import SETTINGS_KINDS, describe_settings, find_algorithm, worker_options
from mosaic.trainer.submissions import Caller, Submissions
from mosaic.trainer.trash import list_trash
from mosaic.workers import get_worker

if TYPE_CHECKING:
    from mosaic.trainer.daemon import Daemon

log = structlog.get_logger("mosaic.trainer.server")

POINTS_PER_REPLY = 5000
MAX_SETTINGS_EVENTS = 1000
LOG_POLL_S = 0.1


@guard_calls
class Servicer(TrainerServicer):
    def __init__(
        self,
        records: Records,
        submissions: Submissions,
        run_service: RunService,
        checkers: Checkers,
        feed: EventFeed,
        threads: CallThreads,
        credentials: Credentials,
        daemon: Daemon,
    ) -> None:
        self._records = records
        self._submissions = submissions
        self._run_service = run_service
        self._checkers = checkers
        self._credentials = credentials
        self._daemon = daemon
        self.require_writable = daemon.require_writable
        self._feed = feed
        self.threads = threads
        self.calls = CallCounter()
        self.is_closing = False

    def _folder(self, run: str) -> RunFolder:
        return self._records.folder(self._records.resolve(run))

    async def Identify(self, request: pb.IdentifyRequest, context: Context) -> pb.IdentifyReply:
        given = dict(context.invocation_metadata() or ())  # as the caller has proved it
        proof = self._credentials.prove("server", str(given[NONCE_KEY]), str(given.get(CERTIFICATE_KEY, "")))
        return pb.IdentifyReply(proof=proof or "", version=__version__)

    # --- runs

    def SubmitRun(self, request: pb.PayloadRequest, context: Context) -> pb.RunReply:
        return _run_reply(self._submissions.submit(request.payload_json, _caller(request, request.environment)))

    def CheckRun(self, request: pb.PayloadRequest, context: Context) -> pb.JsonReply:
        verdict = self._submissions.check(request.payload_json, _caller(request, request.environment))
        return _json_reply(verdict)

    def CancelRun(self, request: pb.RunRequest, context: Context) -> pb.RunReply:
        return _run_reply(self._run_service.cancel(request.run))

    def PauseRun(self, request: pb.RunRequest, context: Context) -> pb.RunReply:
        return _run_reply(self._run_service.pause(request.run))

    def ResumeRun(self, request: pb.ResumeRequest, context: Context) -> pb.RunReply:
        total = request.total_timesteps if request.HasField("total_timesteps") else None
        return _run_reply(self._run_service.resume(request.run, total, _caller(request)))

    def ListRuns(self, request: pb.ListRequest, context: Context) -> pb.ListReply:
        rows = self._records.index.list_runs(
            list(request.status),
            request.algo,
            request.env_id,
            request.group,
            list(request.tag),
            request.include_archived,
            before=request.before,
            limit=request.limit,
        )
        positions = self._records.queue_positions()
        views = (self._records.to_view(record, progress, positions) for record, progress in rows)
        return pb.ListReply(views_json=[view.model_dump_json(exclude={"history", "attempts"}) for view in views])

    def GetRun(self, request: pb.RunRequest, context: Context) -> pb.RunReply:
        return _run_reply(self._records.view(self._records.resolve(request.run)))

    def GetConfig(self, request: pb.RunRequest, context: Context) -> pb.JsonReply:
        payload = self._records.read_payload(self._records.resolve(request.run)).without_experiment()
        return pb.JsonReply(json=payload.model_dump_json(exclude_unset=True))

    def ReadSettings(self, request: pb.RunRequest, context: Context) -> pb.JsonReply:
        run_id = self._records.resolve(request.run)
        payload, problem = {}, None
        try:
            payload = self._records.read_payload(run_id).model_dump(mode="json", exclude_unset=True)
        except NotAllowed as error:
            problem = str(error)
        indexed = self._records.index.events_after(0, run_id, SETTINGS_KINDS, MAX_SETTINGS_EVENTS)
        events = [decode_event(json.loads(text)) for text in self._feed.encode_events(indexed)]
        settings = describe_settings(payload, find_algorithm(payload), worker_options(payload), events)
        return _json_reply(settings.model_copy(update={"problem": problem}))

    def AnnotateRun(self, request: pb.AnnotateRequest, context: Context) -> pb.RunReply:
        view = self._run_service.annotate(
            request.run,
            list(request.add_tags),
            list(request.remove_tags),
            request.notes if request.HasField("notes") else None,
            request.is_archived if request.HasField("is_archived") else None,
            request.priority if request.HasField("priority") else None,
            request.run_name if request.HasField("run_name") else None,
        )
        return _run_reply(view)

    def DeleteRun(self, request: pb.RunRequest, context: Context) -> pb.RunReply:
        return _run_reply(self._run_service.delete(request.run))

    def ImportRun(self, request: pb.ImportRequest, context: Context) -> pb.RunReply:
        return _run_reply(import_run(self._records, request.path))

    def ListTrash(self, request: pb.TrashRequest, context: Context) -> Iterator[pb.JsonReply]:
        yield from map(_json_reply, list_trash(self._records.workspace, request.has_sizes))

    def ReadDiskUsage(self, request: pb.DiskRequest, context: Context) -> Iterator[pb.JsonReply]:
        run_ids = [self._records.resolve(run) for run in request.runs]
        yield from map(_json_reply, read_disk_usage(self._records, run_ids, request.largest))

    def PruneRuns(self, request: pb.PruneRequest, context: Context) -> Iterator[pb.JsonReply]:
        options = PruneOptions(
            run_ids=tuple(map(self._records.resolve, request.runs)),
            has_checkpoints=request.checkpoints,
            keep=request.keep,
            has_replay=request.replay,
            has_videos=request.videos,
            has_trash=request.trash or bool(request.trashed),
            trashed_ids=tuple(request.trashed),
            older_than_s=request.older_than_s,
            is_dry_run=request.is_dry_run,
        )
        yield from map(_json_reply, Pruner(self._records, options).run())

    # --- telemetry

    async def WatchRuns(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.EventBatch]:
        run_id = await run_in(self.threads.streams, self._records.resolve, request.run) if request.run else ""
        async with aclosing(self._feed.follow(request.after, run_id, request.kinds, has_points=False)) as batches:
            async for cursor, events, skipped in batches:
                # A further attempt drops points of an earlier one.
                grown = {event.run_id for event in events if event.kind in POINT_KINDS or event.kind == Hello.KIND}
                texts = await self._feed.encode([event for event in events if event.kind not in POINT_KINDS])
                if texts or grown or skipped or not events:  # an empty one ends the earlier events
                    yield pb.EventBatch(
                        cursor=cursor, events_json=texts, skipped=skipped, runs_with_points=sorted(grown)
                    )

    async def StreamTelemetry(self, request: pb.TelemetryFilter, context: Context) -> AsyncIterator[pb.EventBatch]:
        run_id = await run_in(self.threads.streams, self._records.resolve, request.run)
        kinds = list(request.kinds) or list(BULK_KINDS)
        async with aclosing(self._feed.follow(request.after, run_id, kinds)) as batches:
            async for cursor, events, skipped in batches:
                yield pb.EventBatch(cursor=cursor, events_json=await self._feed.encode(events), skipped=skipped)

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
        yield from map(_json_reply, read_evaluations(self._records, run_id, request.env_id))

    def ReadWandb(self, request: pb.RunRequest, context: Context) -> Iterator[pb.JsonReply]:
        run_id = self._records.resolve(request.run) if request.run else ""
        yield from map(_json_reply, read_wandb_statuses(self._records, run_id))

    async def ReadLog(self, request: pb.LogRequest, context: Context) -> AsyncIterator[pb.LogReply]:
        pool = self.threads.streams
        run_id, logs = await run_in(pool, self._find_logs, request)
        offset = request.offset
        if offset < 0:
            offset = max(0, offset + await run_in(pool, lambda: logs.size(self._has_ended(run_id))))
        await context.send_initial_metadata(())  # the reader knows that it follows, though the log may be empty
        while not self.is_closing:
            parts, has_ended = await run_in(pool, self._read_log_parts, run_id, logs, offset)
            for part in parts:
                offset += len(part.data)
                yield pb.LogReply(data=part.data, offset=offset, is_stderr=part.is_stderr)
            if not parts:
                if not request.follow or has_ended:
                    return
                await asyncio.sleep(LOG_POLL_S)

    def SearchLog(self, request: pb.LogSearchRequest, context: Context) -> Iterator[pb.LogSearchReply]:
        run_id, logs = self._find_logs(request)
        find = find_error if request.is_errors else text_finder(request.text)
        yield from logs.search(find, self._has_ended(run_id))

    def _find_logs(self, request: pb.LogRequest | pb.LogSearchRequest) -> tuple[str, RunLogs]:
        run_id = self._records.resolve(request.run)
        folder = self._records.folder(run_id)
        name = get_worker(self._records.get(run_id).worker).log_prefix
        paths = folder.stdout_log(name), folder.stderr_log(name), folder.log_order(name)
        return run_id, RunLogs(*paths, request.is_stderr, request.is_both)

    def _has_ended(self, run_id: str) -> bool:
        return not self._records.get(run_id).is_active

    def _read_log_parts(self, run_id: str, logs: RunLogs, offset: int) -> tuple[list[LogPart], bool]:
        has_ended = self._has_ended(run_id)  # before reading, so that everything written until its end is still read
        return logs.read(offset, has_ended), has_ended

    def ListFiles(self, request: pb.FilesRequest, context: Context) -> pb.FilesReply:
        return pb.FilesReply(files=list_files(self._folder(request.run), request.pattern))

    def ReadFile(self, request: pb.FileRequest, context: Context) -> Iterator[pb.FileReply]:
        for data in read_file(self._folder(request.run), request.name, request.offset):
            yield pb.FileReply(data=data)

    # --- workers

    def RegisterWorker(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterReply:
        """Stores what the worker states, as its handshake in the journal does."""
        refusal = refuse_contract(request.worker, request.version, request.contract or 1)
        if refusal is not None:
            raise NotAllowed(refusal)
        with self._records.lock:
            record = self._records.active.get(request.run)
            stated = {"worker_version": request.version or None, "capabilities": tuple(request.capabilities)}
            if record is not None and record.holds_slot and any(dict(record)[key] != stated[key] for key in stated):
                self._records.put(record.model_copy(update=stated))
        is_known = record is not None
        log.info("worker_registered", run_id=request.run, pid=request.pid, is_known=is_known, **stated)
        return pb.RegisterReply(is_known=is_known)

    def Heartbeat(self, request: pb.RunRequest, context: Context) -> pb.RegisterReply:
        is_known = request.run in self._records.active
        if is_known:
            self._records.progress_times[request.run] = time.monotonic()
        return pb.RegisterReply(is_known=is_known)

    async def PublishTelemetry(
        self, request: AsyncIterator[pb.TelemetryRequest], context: Context
    ) -> pb.TelemetryReply:
        """Writes to another journal in the run's folder, which is ingested as the worker's own is."""
        journals: dict[str, Journal] = {}
        accepted = 0
        try:
            async for message in request:
                await run_in(self.threads.streams, self._append_telemetry, journals, message)
                accepted += 1
        finally:
            for journal in journals.values():
                journal.close()
        return pb.TelemetryReply(accepted=accepted)

    def _append_telemetry(self, journals: dict[str, Journal], message: pb.TelemetryRequest) -> None:
        run_id = self._records.resolve(message.run)
        if run_id not in self._records.active:
            raise NotAllowed(f"Run {run_id} has ended and accepts no more telemetry.")
        fields = decode_limited(message.fields_json, "The telemetry")
        if message.kind not in BULK_KINDS or not isinstance(fields, dict):
            raise BadInput(f"Telemetry of kind {message.kind!r} is not known. Known: {', '.join(BULK_KINDS)}.")
        if run_id not in journals:
            journals[run_id] = Journal(self._records.folder(run_id).path / f"journal.{os.getpid()}.jsonl")
        fields = {name: value for name, value in fields.items() if name not in ("seq", "at", "kind")}
        journals[run_id].append(message.kind, **fields)

    async def SendCommands(self, request: AsyncIterator[pb.CommandRequest], context: Context) -> pb.CommandReply:
        """Appends to the inbox of a session. Not in a thread: a key must not wait for one."""
        count = 0
        async for message in request:
            run_id = self._records.resolve(message.run)
            record = self._records.active.get(run_id)
            if record is None or record.worker != PLAY_WORKER:
                raise NotAllowed(f"Run {run_id} is not a play session that is running.")
            if record.stage is Stage.QUEUED:
                raise NotAllowed(f"The session {run_id} has not started yet.")
            if len(message.fields_json) > MAX_COMMAND_BYTES:
                raise BadInput(f"The command is longer than {MAX_COMMAND_BYTES:,} bytes.")
            fields = decode_limited(message.fields_json or "{}", "The command")
            command = parse_command(message.kind, fields if isinstance(fields, dict) else {"": fields})
            self._records.send_command(run_id, command.kind, **command.model_dump(exclude_none=True))
            count += 1
        return pb.CommandReply(count=count)

    async def StreamFrames(
        self, request: AsyncIterator[pb.FramesRequest], context: Context
    ) -> AsyncIterator[pb.FrameReply]:
        requests = aiter(request)
        first = await anext(requests, None)
        if first is None:
            raise BadInput("A stream of frames starts with a request that names its run; none came.")
        run_id = await run_in(self.threads.streams, self._records.resolve, first.run)
        acknowledged = FrameCount()
        replies = relay_frames(
            lanes_folder(self._records.folder(run_id).path),
            first,
            is_open=lambda: not self.is_closing,
            end_reason=lambda: "" if self._records.get(run_id).is_active else "the run has ended",
            acknowledged_count=lambda: acknowledged.seen,
        )
        listening = asyncio.create_task(acknowledged.listen(requests))
        try:
            async with aclosing(iterate_in(self.threads.frames, replies)) as parts:
                async for reply in parts:
                    if reply is None:
                        await asyncio.sleep(TICK_S)
                    else:
                        yield reply
        finally:
            listening.cancel()

    def AskWorker(self, request: pb.AskRequest, context: Context) -> pb.JsonReply:
        question = decode_limited(request.question_json, "The question")
        if not isinstance(question, dict):
            raise BadInput('The question is not a JSON object such as {"ask": "environments"}.')
        answer = self._checkers.ask(get_worker(request.worker).id, question)
        return pb.JsonReply(json=json.dumps(answer))

    # --- the daemon itself

    def GetStatus(self, request: pb.StatusRequest, context: Context) -> pb.JsonReply:
        return _json_reply(self._daemon.status())

    def SetCap(self, request: pb.CapRequest, context: Context) -> pb.JsonReply:
        self._daemon.set_cap(request.runs)
        return _json_reply(self._daemon.status())

    def ContinueQueue(self, request: pb.StatusRequest, context: Context) -> pb.JsonReply:
        self._daemon.supervisor.continue_queue()
        return _json_reply(self._daemon.status())

    def TrustWorkspace(self, request: pb.TrustRequest, context: Context) -> pb.JsonReply:
        self._daemon.set_trusted(request.is_trusted)
        return _json_reply(self._daemon.status())

    def StopDaemon(self, request: pb.StopRequest, context: Context) -> pb.JsonReply:
        self._daemon.shut_down(request.cancel_runs, request.drain)
        try:
            return _json_reply(self._daemon.status())
        except Exception:  # It ends nevertheless.
            log.exception("status_failed")
            return pb.JsonReply(json="{}")


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


def _caller(
    request: pb.PayloadRequest | pb.ResumeRequest, environment: Mapping[str, str] = MappingProxyType({})
) -> Caller:
    if isinstance(request, pb.ResumeRequest):
        return Caller(environment, tuple(request.import_folders), request.is_trusted)
    return Caller(
        environment,
        is_trusted=request.is_trusted,
        submission_key=request.submission_key,
        submitted_by=request.submitted_by,
        tracking=request.tracking,
    )


def _json_reply(model: BaseModel) -> pb.JsonReply:
    return pb.JsonReply(json=model.model_dump_json())


def _run_reply(view: RunView) -> pb.RunReply:
    return pb.RunReply(view_json=view.model_dump_json())
