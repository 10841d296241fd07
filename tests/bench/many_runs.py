"""How long `mosaic runs` takes over thousands of finished runs, and how long a daemon takes to find them again.

.venv/bin/python tests/bench/many_runs.py [--count 2000]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ulid import ULID

from mosaic.client import connect
from mosaic.common.files import write_json, write_text
from mosaic.contracts.folder import Workspace
from mosaic.contracts.states import HistoryEntry, Outcome, RunRecord, Stage
from mosaic.journal import Journal

MOSAIC_COMMAND = str(Path(sys.executable).with_name("mosaic"))


def make_runs(workspace: Workspace, count: int) -> None:
    config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 50_000}
    payload = {"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}}
    for number in range(count):
        now = time.time() - count + number
        folder = workspace.run(str(ULID.from_timestamp(now)))
        folder.path.mkdir(parents=True)
        story = tuple(
            HistoryEntry(at=now, stage=stage, message="…") for stage in (Stage.QUEUED, Stage.RUNNING, Stage.FINISHED)
        )
        record = RunRecord(
            run_id=folder.run_id, worker="cleanrl", stage=Stage.FINISHED, outcome=Outcome.SUCCEEDED, submitted_at=now,
            queued_at=now, started_at=now, finished_at=now + 1, history=story, **config,  # type: ignore[arg-type]
        )  # fmt: skip
        write_json(folder.config, payload)
        write_text(folder.record, record.model_dump_json())
        journal = Journal(folder.journal)
        journal.append("hello", worker="cleanrl", version="1", pid=1)
        journal.append("episodes", rows=[[i, 0, i * 20, now, 20.0, 20] for i in range(1, 101)])
        journal.append("finished", outcome="succeeded", global_step=50_000)
        journal.close()


def time_command(command: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory() as place:
        workspace = Workspace(place)
        make_runs(workspace, count)
        environment = {**os.environ, "MOSAIC_VAR": place}
        first = time_command([MOSAIC_COMMAND, "daemon", "start"], environment)
        time_command([MOSAIC_COMMAND, "daemon", "stop"], environment)
        again = time_command([MOSAIC_COMMAND, "daemon", "start"], environment)
        listed = json.loads(subprocess.check_output([MOSAIC_COMMAND, "runs", "--all", "--json"], env=environment))
        assert len(listed) == count
        with connect(workspace) as trainer:
            calls = []
            for _ in range(9):
                began = time.perf_counter()
                trainer.runs()
                calls.append(time.perf_counter() - began)
            helps = [time_command([MOSAIC_COMMAND, "--help"], environment) for _ in range(5)]
            rows = [time_command([MOSAIC_COMMAND, "runs"], environment) for _ in range(5)]
            everything = [time_command([MOSAIC_COMMAND, "runs", "--all", "--json"], environment) for _ in range(5)]
            trainer.stop_daemon()
    print(f"{count} finished runs")
    print(f"daemon start, index built from the folders  {first:6.2f} s")
    print(f"daemon start, index there                   {again:6.2f} s")
    for name, times in (
        ("trainer.runs(), all rows, one RPC", calls),
        ("mosaic runs (30 rows), whole process", rows),
        ("mosaic runs --all --json, whole process", everything),
        ("mosaic --help, whole process", helps),
    ):
        print(f"{name:43} {statistics.median(times):6.3f} s  ({min(times):.3f} to {max(times):.3f})")


if __name__ == "__main__":
    main()
