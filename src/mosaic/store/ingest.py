"""Ingests the files of runs. A crash repeats work and changes nothing: offset and rows are one transaction."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mosaic.contracts.folder import RunFolder
from mosaic.journal import Follower
from mosaic.store.index import Index

KEEPER = "keeper"
SIDECAR = "sidecar"
JOURNAL = "journal"
EventBody = dict[str, Any]
Handler = Callable[[Index, str, EventBody], None]


def event_sources(folder: RunFolder) -> dict[str, Path]:
    """The files that are followed, by the name the index knows them under."""
    own = {KEEPER: folder.keeper, SIDECAR: folder.sidecar}
    return own | {path.name.removesuffix(".jsonl"): path for path in folder.journals()}


def ingest(index: Index, folder: RunFolder, source: str, path: Path) -> list[tuple[EventBody, int]]:
    """Ingests what is new in one file; returns each event with the offset of its line."""
    run_id = folder.run_id
    begin = index.get_offset(run_id, source)
    follower = Follower(path, begin)
    lines = follower.read()
    if follower.offset == begin:
        return []
    taken = []
    with index.transaction():
        for body, end in lines:
            if index.add_event(run_id, source, body, begin, end - begin):
                handler = _HANDLERS.get(body["kind"])
                if handler is not None:
                    _handle_safely(handler, index, run_id, body)
            taken.append((body, begin))
            begin = end
        index.set_offset(run_id, source, follower.offset, follower.malformed_count)
    return taken


def _handle_safely(handler: Handler, index: Index, run_id: str, body: EventBody) -> None:
    """Lines come from other people's programs: one that lacks fields is stored as an event and otherwise ignored."""
    try:
        handler(index, run_id, body)
    except (KeyError, TypeError, ValueError):
        index.add_daemon_event(run_id, "event_malformed", seq=body["seq"], of=body["kind"])


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _hello(index: Index, run_id: str, body: EventBody) -> None:
    if body.get("resumed_from") is not None:
        index.delete_above_step(run_id, int(body["resumed_from"]))
        index.update_progress(run_id, global_step=int(body["resumed_from"]))
    elif body.get("attempt", 1) > 1:
        index.delete_above_step(run_id, -1)
    index.update_progress(run_id, heard_at=body["at"])


def _progress(index: Index, run_id: str, body: EventBody) -> None:
    known = {name: body[name] for name in ("global_step", "sps", "total_timesteps") if body.get(name) is not None}
    index.update_progress(run_id, heard_at=body["at"], **known)


def _metrics(index: Index, run_id: str, body: EventBody) -> None:
    series = {
        str(tag): [(int(step), float(at), _number(value)) for step, at, value in points]
        for tag, points in body["series"].items()
    }
    index.add_points(run_id, series)
    index.update_progress(run_id, heard_at=body["at"])


def _episodes(index: Index, run_id: str, body: EventBody) -> None:
    rows = [
        (int(number), int(env), int(step), float(at), _number(episodic_return), int(length))
        for number, env, step, at, episodic_return, length in body["rows"]
    ]
    index.add_episodes(run_id, rows)


def _checkpoint(index: Index, run_id: str, body: EventBody) -> None:
    index.update_progress(run_id, checkpoint_step=int(body["step"]))


def _sample(index: Index, run_id: str, body: EventBody) -> None:
    if body["processes"]:  # the last sample may find no process
        sample = {name: value for name, value in body.items() if name not in ("seq", "kind")}
        index.update_progress(run_id, hardware=json.dumps(sample))


def _finished(index: Index, run_id: str, body: EventBody) -> None:
    if body.get("global_step") is not None and body["outcome"] != "rejected":
        index.update_progress(run_id, global_step=int(body["global_step"]))


_HANDLERS: dict[str, Handler] = {
    "hello": _hello,
    "progress": _progress,
    "metrics": _metrics,
    "episodes": _episodes,
    "checkpoint": _checkpoint,
    "sample": _sample,
    "finished": _finished,
}
