"""Uses a daemon at random for a long time, and judges whether anything of it grows.

make soak [ARGS="--minutes 5 --seed 7"]

Runs are submitted, cancelled, paused, resumed, deleted, followed and produced by this process, and workers and keepers
are killed. Then every run must have one end, and no process, shared memory, thread, file or memory may be left over.
At last the daemon itself is killed, and the next one must find the same runs.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from tests.helpers.daemons import LiveDaemon, scripted, wait_for

import mosaic
from mosaic.base.fastlane.lane_files import LANES_VARIABLE
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import RUN_DIR_VARIABLE, Workspace
from mosaic.contracts.states import Stage
from mosaic.contracts.views import RunView
from mosaic.trainer.client.trainer_client import TrainerClient

ACTIVE_STAGES = [stage for stage in Stage if stage is not Stage.FINISHED]
SAMPLE_S = 5.0
MAX_ACTIVE = 12
MAX_FINISHED = 100
WARM_UP = 0.25
"""Share of the time in which caches and pools fill."""
CONFIGS = (
    {"steps": 5},
    {"steps": 200, "dt": 0.01},
    {"steps": 10_000, "dt": 0.005},
    {"steps": 1000, "dt": 0.01, "tags": 20},
    {"steps": 20, "dt": 0.05, "exit": 3},
    {"steps": 20, "dt": 0.05, "kill": signal.SIGSEGV},
    {"steps": 50, "dt": 0.02, "child": True},
)


class Sample(NamedTuple):
    """What a daemon holds."""

    memory_mb: float
    files: int
    threads: int


MAX_GROWTH = Sample(memory_mb=16.0, files=8, threads=16)
"""Between the means of the second and of the last quarter. Threads are those of pools, which start them on demand."""


class Soak:
    def __init__(self, daemon: LiveDaemon, trainer: TrainerClient, seed: int) -> None:
        assert daemon.process is not None
        self._daemon = psutil.Process(daemon.process.pid)
        self._trainer = trainer
        self._client = mosaic.connect(daemon.workspace.root)
        self._random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.samples: list[Sample] = []
        self._actions: dict[Callable[[], object], int] = {
            self.submit: 30,
            self.cancel: 8,
            self.pause: 3,
            self.resume: 5,
            self.delete: 10,
            self.kill_worker: 4,
            self.kill_keeper: 4,
            self.watch: 10,
            self.read: 10,
            self.list_runs: 10,
            self.produce: 2,
        }

    def run(self, seconds: float) -> None:
        deadline, sampled_at = time.monotonic() + seconds, 0.0
        while time.monotonic() < deadline:
            (action,) = self._random.choices(list(self._actions), list(self._actions.values()))
            try:
                action()
                self.done[action.__name__] += 1
            except MosaicError:  # such as a run that has just ended
                self.refused[action.__name__] += 1
            if time.monotonic() - sampled_at > SAMPLE_S:
                sampled_at = time.monotonic()
                self.samples.append(self._sample())
                print(f"{deadline - sampled_at:6.0f} s left: {self.samples[-1]}", file=sys.stderr, flush=True)
            time.sleep(self._random.expovariate(1 / 0.05))

    def _sample(self) -> Sample:
        return Sample(self._daemon.memory_info().rss / 2**20, self._daemon.num_fds(), self._daemon.num_threads())

    def _pick(self, is_active: bool) -> RunView:
        views = self._trainer.runs(status=ACTIVE_STAGES if is_active else [Stage.FINISHED])
        if not views:
            raise MosaicError("There is none.")
        return self._trainer.get_run(self._random.choice(views).run_id)

    def submit(self) -> None:
        if len(self._trainer.runs(status=ACTIVE_STAGES)) < MAX_ACTIVE:
            self._trainer.submit(scripted(**self._random.choice(CONFIGS)))
        else:
            self.cancel()

    def cancel(self) -> None:
        self._trainer.cancel_run(self._pick(is_active=True).run_id)

    def pause(self) -> None:
        self._trainer.pause_run(self._pick(is_active=True).run_id)

    def resume(self) -> None:
        self._trainer.resume(self._pick(is_active=self._random.random() < 0.5).run_id)

    def delete(self) -> None:
        for view in self._trainer.runs(status=[Stage.FINISHED])[MAX_FINISHED:]:
            self._trainer.delete_run(view.run_id)
        self._trainer.delete_run(self._pick(is_active=False).run_id)

    def kill_worker(self) -> None:
        self._kill(self._pick(is_active=True).pid)

    def kill_keeper(self) -> None:
        attempts = self._pick(is_active=True).attempts
        keeper = attempts[-1].keeper if attempts else None
        self._kill(keeper["pid"] if keeper else None)

    def _kill(self, pid: int | None) -> None:
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def watch(self) -> None:
        """Follow all events in another thread, and leave after some replies."""
        after, count = self._random.choice((-1, 0)), self._random.randint(1, 20)

        def read() -> None:
            with suppress(MosaicError):
                for _ in islice(self._trainer.watch(after), count):
                    pass

        threading.Thread(target=read, name="watcher", daemon=True).start()

    def read(self) -> None:
        run_id = self._pick(is_active=self._random.random() < 0.5).run_id
        for part in (self._trainer.metrics(run_id), self._trainer.log(run_id), self._trainer.episodes(run_id)):
            for _ in islice(part, self._random.randint(0, 3)):
                pass

    def list_runs(self) -> None:
        self._trainer.runs(limit=self._random.choice((0, 50)))
        if self._trainer.get_status().paused:  # after three fast failures in a row
            self._trainer.continue_queue()

    def produce(self) -> None:
        """A run of this process, with frames."""
        with self._client.start_run("soak") as run:
            for step in range(1, 20):
                run.log({"loss": 1 / step}, step=step)
                run.show_frame(np.zeros((64, 64, 3), np.uint8))

    def end_all(self) -> list[RunView]:
        """Cancel what is active, wait for all ends, and return all runs."""
        for view in self._trainer.runs(status=ACTIVE_STAGES):
            with suppress(MosaicError):
                self._trainer.cancel_run(view.run_id)
        wait_for(lambda: not self._trainer.runs(status=ACTIVE_STAGES), "all runs to end")
        self._client.close()
        return self._trainer.runs()


def find_processes(workspace: Workspace) -> list[int]:
    """Return the processes of this workspace's runs."""
    mark = f"{RUN_DIR_VARIABLE}={workspace.runs}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def judge(samples: list[Sample]) -> bool:
    """Print the growth after the warm-up, and return whether it is small."""
    used = samples[int(WARM_UP * len(samples)) :]
    third = max(1, len(used) // 3)
    is_good = True
    for name, limit in MAX_GROWTH._asdict().items():
        first, last = (
            statistics.mean(getattr(sample, name) for sample in part) for part in (used[:third], used[-third:])
        )
        is_flat = last - first <= limit
        is_good = is_good and is_flat
        print(f"| {name} | {first:.1f} | {last:.1f} | {last - first:+.1f} | {'flat' if is_flat else 'GROWS'} |")
    return is_good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        lanes = Path(place) / "lanes"
        os.environ[LANES_VARIABLE] = str(lanes)
        daemon = LiveDaemon(Workspace(Path(place) / "workspace"), Path(place) / "plugins", "--max-runs", "4")
        trainer = daemon.start()
        print(f"Seed {options.seed}, {options.minutes:g} minutes", flush=True)
        soak = Soak(daemon, trainer, options.seed)
        soak.run(60 * options.minutes)
        views = soak.end_all()
        wait_for(lambda: not find_processes(daemon.workspace), "the processes to end")
        wait_for(lambda: not list(lanes.rglob("*.lane")), "the lanes to be removed")
        actions = ", ".join(f"{name} {count:,}" for name, count in soak.done.most_common())
        print(f"\nDone: {actions}. Refused, as they came too late or too early: {soak.refused.total():,}.")
        print(
            f"Ends: {', '.join(f'{status} {count:,}' for status, count in Counter(v.status for v in views).items())}."
        )
        print("\n| | after the warm-up | at the end | growth | |\n|---|---|---|---|---|")
        is_good = judge(soak.samples)
        print(f"| processes left | | {len(find_processes(daemon.workspace))} | | |")
        print(f"| lanes left | | {len(list(lanes.rglob('*.lane')))} | | |")
        trainer.close()
        daemon.kill()
        with daemon.start() as again:
            has_same = {view.run_id: view.status for view in again.runs()} == {v.run_id: v.status for v in views}
        print(f"| runs after kill -9 of the daemon | {len(views)} | {'the same' if has_same else 'DIFFERENT'} | | |")
        daemon.end()
    return 0 if is_good and has_same else 1


if __name__ == "__main__":
    sys.exit(main())
