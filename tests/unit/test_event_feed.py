"""How the daemon shares its events among watchers."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from mosaic.base.store import Index
from mosaic.contracts.folder import Workspace
from mosaic.contracts.states import RunRecord
from mosaic.trainer.event_feed import WATCHERS_PER_TURN, EventFeed
from mosaic.trainer.records import Records
from mosaic.trainer.server import CallThreads

WATCHERS = 5 * WATCHERS_PER_TURN


def test_events_with_points_are_one_for_those_who_need_no_points(tmp_path: Path) -> None:
    """F44: a long journal does not become a long list of events for each of many watchers."""
    index = Index(tmp_path / "index.sqlite")
    index.save(RunRecord(run_id="R1", worker="w", submitted_at=1.0, queued_at=1.0), 1)
    threads = CallThreads()

    async def follow(has_points: bool, after: int) -> list[int]:
        feed = EventFeed(Records(Workspace(tmp_path), index), threads)
        feed._newest = feed._before = 0
        feeding = asyncio.create_task(feed.run())
        seqs: list[int] = []
        async for _, events, _ in feed.follow(after, "", (), has_points):
            seqs += [event.seq for event in events]
            if seqs and seqs[-1] == 300:
                break
            if not events and after < 0:
                write_metrics(index)
        feed.close()
        await feeding
        return seqs

    try:
        assert asyncio.run(follow(False, -1)) == [300]
        for has_points, count in ((True, 300), (False, 1)):
            assert len(asyncio.run(follow(has_points, 0))) == count
    finally:
        threads.close()
        index.close()


def write_metrics(index: Index) -> None:
    with index.transaction():
        for seq in range(1, 301):
            index.add_event("R1", "journal", {"seq": seq, "at": 1.0, "kind": "metrics"}, 0, 1)


def test_many_watchers_take_turns_so_that_other_calls_come_in_between(tmp_path: Path) -> None:
    """F44: the event loop never serves all watchers at once."""
    index = Index(tmp_path / "index.sqlite")
    index.save(RunRecord(run_id="R1", worker="w", submitted_at=1.0, queued_at=1.0), 1)
    records = Records(Workspace(tmp_path), index)
    threads = CallThreads()
    try:
        deliveries = asyncio.run(asyncio.wait_for(deliver_to_all(records, threads), 60))
    finally:
        threads.close()
        index.close()
    assert sum(deliveries.values()) == WATCHERS
    assert max(deliveries.values()) <= WATCHERS_PER_TURN


async def deliver_to_all(records: Records, threads: CallThreads) -> Counter[int]:
    """Return how many watchers got the event in each pass of the event loop."""
    feed = EventFeed(records, threads)
    feeding = asyncio.create_task(feed.run())
    deliveries: Counter[int] = Counter()
    passes = 0
    waiting = 0

    async def watch() -> None:
        nonlocal waiting
        async for _, events, _ in feed.follow(-1, "", ()):
            waiting += 1
            if events:
                deliveries[passes] += 1
                return

    watches = [asyncio.create_task(watch()) for _ in range(WATCHERS)]
    while waiting < WATCHERS:
        await asyncio.sleep(0.01)
    records.index.add_daemon_event("R1", "warning", text="One event.", code="test")
    records.notify_watchers()
    while not all(task.done() for task in watches):
        await asyncio.sleep(0)
        passes += 1
    feed.close()
    await feeding
    return deliveries
