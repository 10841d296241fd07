"""Ingests the files of runs. A crash repeats work and changes nothing: offset and rows are one transaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mosaic.base.journal import Follower
from mosaic.base.store.index import Index
from mosaic.contracts.events import (
    CheckpointSaved,
    Episodes,
    EpisodesRevoked,
    Event,
    Finished,
    Hello,
    Metrics,
    ProgressReported,
    Sample,
    decode_event,
)
from mosaic.contracts.folder import RunFolder

KEEPER = "keeper"
SIDECAR = "sidecar"
JOURNAL = "journal"
BATCH_BYTES = 1 << 14
"""How much of a file is read at a time: other users of the index wait that long."""


class IngestedEvent(NamedTuple):
    event: Event
    begin: int
    """The offset of its line."""


class Batch(NamedTuple):
    """What was new in a file."""

    events: list[IngestedEvent]
    has_more: bool
    """Whether there may be more: read again until there is not."""


def event_sources(folder: RunFolder) -> dict[str, Path]:
    """The files that are followed, by the name the index knows them under."""
    own = {KEEPER: folder.keeper, SIDECAR: folder.sidecar}
    return own | {path.name.removesuffix(".jsonl"): path for path in folder.journals()}


def ingest(index: Index, folder: RunFolder, source: str, path: Path) -> Batch:
    """Add the next events of one file to the index."""
    run_id = folder.run_id
    begin = index.get_offset(run_id, source)
    follower = Follower(path, begin)
    lines = follower.read(BATCH_BYTES)
    if follower.offset == begin:
        return Batch([], False)
    events, begin = [], follower.begin
    with index.transaction():
        for body, end in lines:
            event = decode_event(body)
            if index.add_event(run_id, source, body, begin, end - begin):
                _store(index, run_id, event)
            events.append(IngestedEvent(event, begin))
            begin = end
        index.set_offset(run_id, source, follower.offset, follower.malformed_count)
    return Batch(events, True)


def _store(index: Index, run_id: str, event: Event) -> None:
    """Add what the event reports. Lines come from other people's programs: one that does not fit stays an event."""
    store = _STORES.get(type(event))
    if store is not None:
        store(index, run_id, event)
    elif event.kind in _STORED_KINDS:
        index.add_daemon_event(run_id, "event_malformed", seq=event.seq, of=event.kind)


def _hello(index: Index, run_id: str, event: Hello) -> None:
    if event.resumed_from is not None:
        index.delete_above_step(run_id, event.resumed_from)
        index.update_progress(run_id, global_step=event.resumed_from)
    elif event.attempt > 1:
        index.delete_above_step(run_id, -1)
        index.update_progress(run_id, global_step=None)


_ESTIMATES = {"total_timesteps", "fraction"}
"""Null if they are no longer known, absent if nothing is reported about them."""


def _progress(index: Index, run_id: str, event: ProgressReported) -> None:
    known: dict[str, float | None] = {name: getattr(event, name) for name in _ESTIMATES & event.model_fields_set}
    if event.sps is not None:
        known["sps"] = event.sps
    if event.global_step is not None:
        # Each process of a script reports the sum of all; those lines are not read in the order of their writing.
        known["global_step"] = max(event.global_step, index.get_progress(run_id).global_step or 0)
    if known:
        index.update_progress(run_id, **known)


def _metrics(index: Index, run_id: str, event: Metrics) -> None:
    index.add_points(run_id, event.series)


def _episodes(index: Index, run_id: str, event: Episodes) -> None:
    index.add_episodes(run_id, event.rows, len(event.cut))


def _episodes_revoked(index: Index, run_id: str, event: EpisodesRevoked) -> None:
    index.revoke_episodes(run_id, event.numbers, event.cut)
    if event.global_step is not None:
        index.update_progress(run_id, global_step=event.global_step)


def _checkpoint(index: Index, run_id: str, event: CheckpointSaved) -> None:
    index.update_progress(run_id, checkpoint_step=event.step)


def _sample(index: Index, run_id: str, event: Sample) -> None:
    if event.processes:  # the last sample may find no process
        index.update_progress(run_id, hardware=event.model_dump_json(exclude={"seq", "kind", "run_id", "source"}))


def _finished(index: Index, run_id: str, event: Finished) -> None:
    if event.global_step is not None and event.outcome != "rejected":
        step = max(event.global_step, index.get_progress(run_id).global_step or 0)
        index.update_progress(run_id, global_step=step)


_STORES: dict[type[Event], Callable[[Index, str, Any], None]] = {
    Hello: _hello,
    ProgressReported: _progress,
    Metrics: _metrics,
    Episodes: _episodes,
    EpisodesRevoked: _episodes_revoked,
    CheckpointSaved: _checkpoint,
    Sample: _sample,
    Finished: _finished,
}
_STORED_KINDS = frozenset(event_type.KIND for event_type in _STORES)
