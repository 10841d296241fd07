"""What runs report: events, points and episodes; and workers that report by the network."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import structlog

from mosaic.base.journal import Journal
from mosaic.base.limited_json import decode_limited
from mosaic.base.store import BULK_KINDS
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadInput, NotAllowed
from mosaic.contracts.events import Hello
from mosaic.contracts.trainer_pb2_handlers import Handlers
from mosaic.contracts.views import MetricsCursor, MetricSeries
from mosaic.trainer.event_feed import POINT_KINDS
from mosaic.trainer.lifecycle import refuse_contract
from mosaic.trainer.records import Records
from mosaic.trainer.server import Context, run_in
from mosaic.trainer.services import Services

log = structlog.get_logger("mosaic.trainer.handlers.telemetry")

POINTS_PER_REPLY = 5000


# --- for readers


async def watch_runs(services: Services, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.EventBatch]:
    feed, pool = services.feed, services.threads.streams
    run_id = await run_in(pool, services.records.resolve, request.run) if request.run else ""
    async with aclosing(feed.follow(request.after, run_id, request.kinds, has_points=False)) as batches:
        async for cursor, events, skipped in batches:
            # A further attempt drops points of an earlier one.
            grown = {event.run_id for event in events if event.kind in POINT_KINDS or event.kind == Hello.KIND}
            texts = await feed.encode([event for event in events if event.kind not in POINT_KINDS])
            if texts or grown or skipped or not events:  # an empty one ends the earlier events
                yield pb.EventBatch(cursor=cursor, events_json=texts, skipped=skipped, runs_with_points=sorted(grown))


async def stream_telemetry(
    services: Services, request: pb.TelemetryFilter, context: Context
) -> AsyncIterator[pb.EventBatch]:
    run_id = await run_in(services.threads.streams, services.records.resolve, request.run)
    kinds = list(request.kinds) or list(BULK_KINDS)
    async with aclosing(services.feed.follow(request.after, run_id, kinds)) as batches:
        async for cursor, events, skipped in batches:
            texts = await services.feed.encode(events)
            yield pb.EventBatch(cursor=cursor, events_json=texts, skipped=skipped)


def read_metrics(services: Services, request: pb.MetricsRequest) -> Iterator[pb.MetricsReply]:
    run_id = services.records.resolve(request.run)
    after = MetricsCursor(request.generation, request.last_point)
    with services.records.index.read_metrics(run_id, list(request.tags), request.last_only, after) as (now, parts):
        for group in _group_parts(parts):
            series = [pb.MetricSeries(tag=part.tag, steps=part.steps, at=part.at, values=part.values) for part in group]
            yield pb.MetricsReply(series=series, generation=now.generation, last_point=now.last_point)


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


def read_episodes(services: Services, request: pb.RunRequest) -> Iterator[pb.JsonReply]:
    for rows in services.records.index.episodes(services.records.resolve(request.run)):
        yield pb.JsonReply(json=json.dumps(rows))


# --- from workers


def register_worker(services: Services, request: pb.RegisterRequest) -> pb.RegisterReply:
    """Stores what the worker states, as its handshake in the journal does."""
    records = services.records
    refusal = refuse_contract(request.worker, request.version, request.contract or 1)
    if refusal is not None:
        raise NotAllowed(refusal)
    with records.lock:
        record = records.active.get(request.run)
        stated = {"worker_version": request.version or None, "capabilities": tuple(request.capabilities)}
        if record is not None and record.holds_slot and any(dict(record)[key] != stated[key] for key in stated):
            records.put(record.model_copy(update=stated))
    is_known = record is not None
    log.info("worker_registered", run_id=request.run, pid=request.pid, is_known=is_known, **stated)
    return pb.RegisterReply(is_known=is_known)


def heartbeat(services: Services, request: pb.RunRequest) -> pb.RegisterReply:
    is_known = request.run in services.records.active
    if is_known:
        services.records.progress_times[request.run] = time.monotonic()
    return pb.RegisterReply(is_known=is_known)


async def publish_telemetry(
    services: Services, requests: AsyncIterator[pb.TelemetryRequest], context: Context
) -> pb.TelemetryReply:
    """Writes to another journal in the run's folder, which is ingested as the worker's own is."""
    journals: dict[str, Journal] = {}
    accepted = 0
    try:
        async for message in requests:
            await run_in(services.threads.streams, _append_telemetry, services.records, journals, message)
            accepted += 1
    finally:
        for journal in journals.values():
            journal.close()
    return pb.TelemetryReply(accepted=accepted)


def _append_telemetry(records: Records, journals: dict[str, Journal], message: pb.TelemetryRequest) -> None:
    run_id = records.resolve(message.run)
    if run_id not in records.active:
        raise NotAllowed(f"Run {run_id} has ended and accepts no more telemetry.")
    fields = decode_limited(message.fields_json, "The telemetry")
    if message.kind not in BULK_KINDS or not isinstance(fields, dict):
        raise BadInput(f"Telemetry of kind {message.kind!r} is not known. Known: {', '.join(BULK_KINDS)}.")
    if run_id not in journals:
        journals[run_id] = Journal(records.folder(run_id).path / f"journal.{os.getpid()}.jsonl")
    fields = {name: value for name, value in fields.items() if name not in ("seq", "at", "kind")}
    journals[run_id].append(message.kind, **fields)


HANDLERS: Handlers = {
    "Heartbeat": heartbeat,
    "PublishTelemetry": publish_telemetry,
    "ReadEpisodes": read_episodes,
    "ReadMetrics": read_metrics,
    "RegisterWorker": register_worker,
    "StreamTelemetry": stream_telemetry,
    "WatchRuns": watch_runs,
}
