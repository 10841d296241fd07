"""Shares new events among all watchers: each is read from the index and encoded once, then filtered in memory."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import BinaryIO

import structlog

from mosaic.base.journal import parse_event
from mosaic.base.store import IndexedEvent, encode_event
from mosaic.base.store.ingest import event_sources
from mosaic.contracts.errors import UnknownName
from mosaic.trainer.records import Records
from mosaic.trainer.server import CallThreads, run_in

log = structlog.get_logger("mosaic.trainer.event_feed")

EVENTS_PER_BATCH = 500
MAX_BACKLOG_EVENTS = 4000
"""A reader that is this many events behind skips those that later ones replace."""
REPLACEABLE_KINDS = ("progress", "sample")
POINT_KINDS = ("metrics", "episodes")
POLL_S = 0.5
"""How often the index is read when no change is reported."""
WATCHERS_PER_TURN = 20
TURN_S = 0.01
MAX_PAUSE_S = 0.1
"""Watchers get new events in turns, so that other calls are answered in between, however many watch."""


class EventFeed:
    """Used on the event loop only, except for `encode_events`."""

    def __init__(self, records: Records, threads: CallThreads) -> None:
        self._records = records
        self._pool = threads.streams
        self._newest = self._before = records.index.last_cursor()
        """Cursors: of the newest event read, and of the last one that is older than all in memory."""
        self._events: deque[IndexedEvent] = deque(maxlen=MAX_BACKLOG_EVENTS)
        self._has_news = asyncio.Event()
        self._selections: dict[tuple[int, str, tuple[str, ...], bool], list[IndexedEvent]] = {}
        """What was selected of the events in memory: most watchers ask for the same."""
        self._waiting: list[asyncio.Future[None]] = []
        """Of the watchers that have sent all events so far."""
        self.is_closed = False

    async def run(self) -> None:
        """Reads events as they come, until closed."""
        self._records.on_change = partial(asyncio.get_running_loop().call_soon_threadsafe, self._has_news.set)
        try:
            while not self.is_closed:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._has_news.wait(), POLL_S)
                self._has_news.clear()
                newest = self._newest
                try:
                    self._append(await run_in(self._pool, self._read_next, newest))
                except Exception:  # such as a full disk: the watchers wait, and the next turn tries again
                    log.exception("events_not_read")
                if self._newest == newest:
                    await asyncio.sleep(TURN_S)
                else:
                    await self._wake_watchers()
        finally:
            self._records.on_change = lambda: None
            await self._wake_watchers()

    async def _wake_watchers(self) -> None:
        """Let the watchers send what is new, some at a time. Those that start to wait meanwhile have sent it."""
        waiting, self._waiting = self._waiting, []
        for at in range(0, max(1, len(waiting)), WATCHERS_PER_TURN):
            for future in waiting[at : at + WATCHERS_PER_TURN]:
                if not future.done():  # else its call was cancelled
                    future.set_result(None)
            await self._pause()

    async def _pause(self) -> None:
        """Wait for the next turn; twice as long as the loop was late, so that a busy machine answers calls first."""
        if not self.is_closed:
            due_at = asyncio.get_running_loop().time() + TURN_S
            await asyncio.sleep(TURN_S)
            await asyncio.sleep(min(2 * (asyncio.get_running_loop().time() - due_at), MAX_PAUSE_S))

    def close(self) -> None:
        """Ends all watches."""
        self.is_closed = True
        self._has_news.set()

    def _read_next(self, cursor: int) -> list[IndexedEvent]:
        events = self._records.index.events_after(cursor, "", (), MAX_BACKLOG_EVENTS)
        return [self._with_text(event) for event in events]

    def _with_text(self, event: IndexedEvent) -> IndexedEvent:
        if event.json_text is not None or event.body is None:
            return event
        try:
            return event._replace(json_text=self._daemon_event_json(event))
        except UnknownName:
            return event

    def _append(self, events: Sequence[IndexedEvent]) -> None:
        if not events:
            return
        self._events.extend(events)
        self._selections.clear()
        if len(self._events) == MAX_BACKLOG_EVENTS:
            self._before = self._events[0].cursor - 1
        self._newest = events[-1].cursor
        if len(events) == MAX_BACKLOG_EVENTS:
            self._has_news.set()  # there may be more

    async def follow(
        self, after: int, run_id: str, kinds: Sequence[str], has_points: bool = True
    ) -> AsyncGenerator[tuple[int, Sequence[IndexedEvent], int], None]:
        """Yields the cursor, the events up to it and how many were skipped, until the feed is closed.

        No events come first, and again when all earlier ones have been yielded.
        Without `has_points`, one event with points stands for all of its run and kind: their content is not needed.
        """
        cursor = await run_in(self._pool, self._records.index.last_cursor) if after < 0 else after
        # A watcher that asks for nothing else needs them all, such as a chart of the hardware.
        is_thinned = not kinds or not set(kinds).issubset(REPLACEABLE_KINDS)
        # History comes from the index, where a deleted run has none.
        is_live = after < 0
        yield cursor, (), 0
        while not self.is_closed:
            newest, was_live = self._newest, is_live
            if is_live and cursor >= self._before:
                events = self._recent_after(cursor, run_id, tuple(kinds), has_points)
            else:
                read = self._records.index.events_after
                events = await run_in(self._pool, read, cursor, run_id, kinds, MAX_BACKLOG_EVENTS)
                is_live = len(events) < MAX_BACKLOG_EVENTS
            if events:
                cursor = events[-1].cursor
            if is_live:
                cursor = max(cursor, newest)  # events that do not match are not read again
            sent = _without_replaced(events) if is_thinned and len(events) == MAX_BACKLOG_EVENTS else events
            skipped = len(events) - len(sent)
            sent = sent if has_points else _without_replaced(sent, POINT_KINDS)
            for at in range(0, len(sent), EVENTS_PER_BATCH):
                part = sent[at : at + EVENTS_PER_BATCH]
                yield part[-1].cursor, part, skipped if at == 0 else 0
            if is_live and not was_live:
                yield cursor, (), 0
            if newest == self._newest and not self.is_closed and is_live:
                self._waiting.append(asyncio.get_running_loop().create_future())
                await self._waiting[-1]

    def _recent_after(
        self, cursor: int, run_id: str, kinds: tuple[str, ...], has_points: bool
    ) -> Sequence[IndexedEvent]:
        key = cursor, run_id, kinds, has_points
        if key not in self._selections:
            events = []
            for event in reversed(self._events):
                if event.cursor <= cursor:
                    break
                if (not run_id or event.run_id == run_id) and (not kinds or event.kind in kinds):
                    events.append(event)
            events.reverse()
            self._selections[key] = events if has_points else _without_replaced(events, POINT_KINDS)
        return self._selections[key]

    async def encode(self, events: Sequence[IndexedEvent]) -> list[str]:
        texts = [event.json_text for event in events if event.json_text is not None]
        return texts if len(texts) == len(events) else await run_in(self._pool, self.encode_events, events)

    def encode_events(self, events: Sequence[IndexedEvent]) -> list[str]:
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


def _without_replaced(events: Sequence[IndexedEvent], kinds: Sequence[str] = REPLACEABLE_KINDS) -> list[IndexedEvent]:
    """The events without those that a later one of the same run and kind replaces; never empty if `events` is not."""
    newest = {(event.run_id, event.kind): event.cursor for event in events}
    return [event for event in events if event.kind not in kinds or event.cursor == newest[event.run_id, event.kind]]


def _read_event(file: BinaryIO, event: IndexedEvent) -> str:
    """An event that is no longer in memory, from its line in the run's file."""
    file.seek(event.begin or 0)
    body = parse_event(file.read(event.length or 0).splitlines()[-1])
    if body is None:
        raise ValueError("The line has been overwritten.")
    return encode_event(event.run_id, event.source, body)
