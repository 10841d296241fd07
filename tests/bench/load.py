"""How fast the daemon answers under load, as a Markdown table.

make load [ARGS="--only finished queued --runs 100 1000"]

A row is a load; a cell is the median, the 95th percentile and the worst time of a call in milliseconds while the load
lasts, as a client in another process measures it. Wanted: no call above 200 ms, whatever the load.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import psutil
from tests.helpers.daemons import LiveDaemon, scripted, wait_for
from ulid import ULID

from mosaic.base.files import write_json, write_text
from mosaic.base.handshake import TOKEN_KEY
from mosaic.base.journal import MAX_LINE_BYTES, Journal
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import Workspace
from mosaic.contracts.states import HistoryEntry, Outcome, RunRecord, Stage
from mosaic.contracts.trainer_pb2_grpc import TrainerStub
from mosaic.contracts.views import MetricsCursor
from mosaic.trainer.client.connect import connect, read_daemon_address
from mosaic.trainer.client.trainer_client import TrainerClient

CALLS = ("list", "get", "submit", "cancel")
LISTED = 50
PAUSE_S = 0.02
FOREVER = 1_000_000_000
WATCHERS = 500
VIEWERS = 10
RUNS_WITH_METRICS, STEPS_PER_S, TAGS = 20, 20, 25
"""Together 10,000 points a second."""
LINES = 1_000_000
UNBROKEN_BYTES = 400 << 20


@dataclass
class Row:
    """The answers of a daemon under one load."""

    name: str
    start_s: float
    times_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    peak_mb: float = 0.0
    note: str = ""

    def format(self) -> str:
        cells = [_format_times(self.times_s[call]) for call in CALLS]
        return f"| {' | '.join([self.name, f'{self.start_s:.2f}', *cells, f'{self.peak_mb:.0f}', self.note])} |"


HEADER = f"| load | start, s | {' | '.join(CALLS)} | peak RSS, MB | |\n|{'---|' * (len(CALLS) + 4)}"


def _format_times(times_s: list[float]) -> str:
    ordered = [1000 * time_s for time_s in sorted(times_s)]
    if not ordered:
        return ""
    return f"{statistics.median(ordered):.0f} / {ordered[int(0.95 * (len(ordered) - 1))]:.0f} / {ordered[-1]:.0f}"


# --- the daemon and what is measured of it


class Bench:
    """A daemon with a load, and a client that measures it."""

    def __init__(self, name: str, workspace: Workspace, daemon: LiveDaemon) -> None:
        began = time.perf_counter()
        self.trainer = daemon.start()
        self.workspace = workspace
        self.row = Row(name, time.perf_counter() - began)
        assert daemon.process is not None
        self._pid = daemon.process.pid

    def measure(self, is_done: Callable[[], bool]) -> None:
        """Call until done. All slots are taken, so that what is submitted waits, and can be cancelled."""
        while not is_done():
            run_id = self._time("submit", lambda: self.trainer.submit(scripted(steps=1))).run_id
            self._time("list", lambda: self.trainer.runs(limit=LISTED))
            self._time("get", lambda: self.trainer.get_run(run_id))  # noqa: B023
            self._time("cancel", lambda: self.trainer.cancel_run(run_id))  # noqa: B023
            time.sleep(PAUSE_S)
        self.row.peak_mb = _peak_rss_mb(self._pid)

    def measure_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self.measure(lambda: time.monotonic() > deadline)

    def _time(self, name: str, call: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = call()
        self.row.times_s[name].append(time.perf_counter() - began)
        return result

    def take_slots(self, count: int, **config: Any) -> list[str]:
        """Start runs until they are active."""
        ids = [self.trainer.submit(scripted(steps=FOREVER, **config)).run_id for _ in range(count)]
        wait_for(lambda: all(self.trainer.get_run(run_id).stage == "running" for run_id in ids), "the runs to start")
        return ids


def _peak_rss_mb(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return psutil.Process(pid).memory_info().rss / 2**20


@contextmanager
def _bench(name: str, max_runs: int = 1, prepare: Callable[[Workspace], None] | None = None) -> Iterator[Bench]:
    """Starts a daemon in a new workspace; with `prepare`, it starts twice, and the second start counts."""
    print(f"{name} …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as place:
        workspace = Workspace(Path(place) / "workspace")
        daemon = LiveDaemon(workspace, Path(place) / "plugins", "--max-runs", str(max_runs))
        if prepare is not None:
            prepare(workspace)
            began = time.perf_counter()
            daemon.start().close()
            print(f"  first start, index built: {time.perf_counter() - began:.2f} s", file=sys.stderr, flush=True)
            _wait_until_indexed(workspace)
            daemon.stop()
        bench = Bench(name, workspace, daemon)
        try:
            yield bench
        finally:
            bench.trainer.close()
            daemon.end()


def _wait_until_indexed(workspace: Workspace) -> None:
    wait_for(lambda: not _query(workspace, "SELECT count(*) FROM run WHERE record_mtime = 0"), "the index", 600)


def _query(workspace: Workspace, sql: str) -> int:
    with closing(sqlite3.connect(f"{workspace.index.as_uri()}?mode=ro", uri=True)) as db:
        rows = db.execute(sql).fetchall()
    return int(rows[0][0]) if rows else 0


# --- loads


def finished_runs(count: int) -> Row:
    with _bench(f"{count:,} finished runs", prepare=lambda workspace: make_runs(workspace, count)) as bench:
        bench.take_slots(1, dt=0.5)
        bench.measure_for(10)
        began = time.perf_counter()
        listed = len(bench.trainer.runs())
        assert listed > count
        bench.row.note = f"all {listed:,} listed in {time.perf_counter() - began:.2f} s"
    return bench.row


def make_runs(workspace: Workspace, count: int) -> None:
    """Write the folders of finished runs, of 100 episodes each."""
    config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 50_000}
    payload = {"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}}
    for number in range(count):
        now = time.time() - count + number
        folder = workspace.run(str(ULID.from_timestamp(now)))
        folder.path.mkdir(parents=True)
        history = tuple(
            HistoryEntry(at=now, stage=stage, message="…") for stage in (Stage.QUEUED, Stage.RUNNING, Stage.FINISHED)
        )
        record = RunRecord(
            run_id=folder.run_id, worker="cleanrl", stage=Stage.FINISHED, outcome=Outcome.SUCCEEDED, submitted_at=now,
            queued_at=now, started_at=now, finished_at=now + 1, history=history, **config,  # type: ignore[arg-type]
        )  # fmt: skip
        write_json(folder.config, payload)
        write_text(folder.record, record.model_dump_json())
        journal = Journal(folder.journal)
        journal.append("hello", worker="cleanrl", version="1", pid=1)
        journal.append("episodes", rows=[[i, 0, i * 20, now, 20.0, 20] for i in range(1, 101)])
        journal.append("finished", outcome="succeeded", global_step=50_000)
        journal.close()


def queued_runs(count: int = 1000) -> Row:
    with _bench(f"{count:,} queued runs") as bench:
        bench.take_slots(1, dt=0.5)
        began = time.perf_counter()
        for _ in range(count):
            bench.trainer.submit(scripted(steps=1))
        submitted_s = time.perf_counter() - began
        bench.measure_for(10)
        began = time.perf_counter()
        for view in bench.trainer.runs(status=["queued"]):
            bench.trainer.cancel_run(view.run_id)
        cancelled_s = time.perf_counter() - began
        bench.row.note = f"all submitted in {submitted_s:.1f} s, cancelled in {cancelled_s:.1f} s"
    return bench.row


def metrics_and_viewers() -> Row:
    """20 runs that log 10,000 points a second together, and 10 viewers that read them all, one of them slowly."""
    name = f"{RUNS_WITH_METRICS} runs, 10,000 points/s, {VIEWERS} viewers"
    with _bench(name, RUNS_WITH_METRICS) as bench:
        bench.take_slots(RUNS_WITH_METRICS, dt=1 / STEPS_PER_S, tags=TAGS)
        with _in_process(_view_metrics, bench.workspace, VIEWERS) as reads:
            began, before = time.monotonic(), _query(bench.workspace, "SELECT count(*) FROM point")
            bench.measure_for(20)
            rate = (_query(bench.workspace, "SELECT count(*) FROM point") - before) / (time.monotonic() - began)
            seen = reads.value / (VIEWERS - 1) / (time.monotonic() - began)
        bench.row.note = f"{rate:,.0f} points/s indexed, {seen:,.0f} a viewer"
    return bench.row


def watchers() -> Row:
    """500 watchers of all events of two runs of 20 steps/s."""
    with _bench(f"{WATCHERS} watchers", 2) as bench:
        bench.take_slots(2, dt=0.05)
        with _in_process(_watch, bench.workspace, WATCHERS) as batches:
            bench.measure_for(20)
            bench.row.note = f"{batches.value / 20:,.0f} batches/s"
    return bench.row


def long_journal(watcher_count: int = 0) -> Row:
    lines = (
        f'{{"seq":{n},"at":1.0,"kind":"metrics","series":{{"many":[[{n},1.0,1.0]]}}}}\n' for n in range(1, LINES + 1)
    )
    return _read_journal(f"{LINES:,} journal lines", "".join(lines).encode(), watcher_count)


def unbroken_journal(watcher_count: int = 0) -> Row:
    # What is left may become a line.
    content = b"x" * (UNBROKEN_BYTES + MAX_LINE_BYTES)
    return _read_journal(f"{UNBROKEN_BYTES >> 20} MB without a newline", content, watcher_count, UNBROKEN_BYTES)


def _read_journal(name: str, content: bytes, watcher_count: int, wanted_bytes: int = 0) -> Row:
    """A file that appears at once in the folder of an active run, and is read from its beginning to its end."""
    with _bench(name + (f", {watcher_count} watchers" if watcher_count else "")) as bench:
        (run_id,) = bench.take_slots(1, dt=0.5)
        with _in_process(_watch, bench.workspace, watcher_count):
            hidden = bench.workspace.run(run_id).path / ".journal"
            hidden.write_bytes(content)
            hidden.rename(hidden.with_name("journal.77.jsonl"))
            sql = f"SELECT offset >= {wanted_bytes or len(content)} FROM source WHERE name = 'journal.77'"
            began = time.monotonic()
            bench.measure(lambda: bool(_query(bench.workspace, sql)))
            bench.row.note = f"read in {time.monotonic() - began:.0f} s"
    return bench.row


# --- clients in processes of their own, so that they do not take this one's time


@contextmanager
def _in_process(target: Callable[[str, int, Any, Any], None], workspace: Workspace, count: int) -> Iterator[Any]:
    """Runs `count` clients in another process; yields the number of replies that they have read."""
    spawn = multiprocessing.get_context("spawn")
    replies, ready = spawn.Value("q", 0), spawn.Event()
    process = spawn.Process(target=target, args=(str(workspace.root), count, replies, ready), daemon=True)
    if count:
        process.start()
        assert ready.wait(60), "The clients did not start."
    try:
        yield replies
    finally:
        if count:
            process.kill()
            process.join()


def _watch(root: str, count: int, batches: Any, ready: Any) -> None:
    asyncio.run(_watch_all(Workspace(root), count, batches, ready))


async def _watch_all(workspace: Workspace, count: int, batches: Any, ready: Any) -> None:
    address = read_daemon_address(workspace)
    assert address is not None
    metadata = ((TOKEN_KEY, address.token),)
    async with grpc.aio.insecure_channel(address.address) as channel:
        stub: Any = TrainerStub(channel)
        streams = [stub.WatchRuns(pb.WatchRequest(after=-1), metadata=metadata) for _ in range(count)]
        for stream in streams:
            await stream.read()
        ready.set()

        async def read(stream: Any) -> None:
            while await stream.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
                batches.value += 1

        await asyncio.gather(*map(read, streams))


def _view_metrics(root: str, count: int, points: Any, ready: Any) -> None:
    lock = threading.Lock()
    threads = [
        threading.Thread(target=_follow_metrics, args=(connect(Workspace(root), may_start=False), n == 0, points, lock))
        for n in range(count)
    ]
    for thread in threads:
        thread.start()
    ready.set()


def _follow_metrics(trainer: TrainerClient, is_slow: bool, points: Any, lock: threading.Lock) -> None:
    cursors: dict[str, MetricsCursor] = {}
    with suppress(MosaicError):
        for batch in trainer.watch(-1):
            for run_id in batch.runs_with_points:
                update = trainer.metrics_after(run_id, cursors.get(run_id, MetricsCursor()))
                cursors[run_id] = update.cursor
                with lock:
                    points.value += 0 if is_slow else sum(len(series.steps) for series in update.series)
            time.sleep(1.0 if is_slow else 0.1)


LOADS: dict[str, Callable[[], Row]] = {
    "queued": queued_runs,
    "metrics": metrics_and_viewers,
    "watchers": watchers,
    "lines": long_journal,
    "unbroken": unbroken_journal,
    "lines-watched": lambda: long_journal(WATCHERS),
    "unbroken-watched": lambda: unbroken_journal(WATCHERS),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=("finished", *LOADS), default=("finished", *LOADS))
    parser.add_argument("--runs", nargs="+", type=int, default=(100, 1000, 10_000), help="numbers of finished runs")
    options = parser.parse_args()
    loads: list[Callable[[], Row]] = [load for name, load in LOADS.items() if name in options.only]
    if "finished" in options.only:
        loads[:0] = [partial(finished_runs, count) for count in options.runs]
    print(HEADER, flush=True)
    for load in loads:
        print(load().format(), flush=True)


if __name__ == "__main__":
    main()
