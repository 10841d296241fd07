"""F31, F32: many runs are queued, and the same config is submitted several times at once.

`make test` queues some. MOSAIC_FULL_SWEEP=1 queues 1,000.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from tests.helpers.commands import MOSAIC
from tests.helpers.daemons import LiveDaemon, ended, scripted, wait_for

from mosaic.client import TrainerClient
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.states import Stage
from mosaic.journal import read_all

QUEUED_RUNS = 1000 if os.environ.get("MOSAIC_FULL_SWEEP") else 60
ACTIVE_STAGES = [stage.value for stage in Stage if stage is not Stage.FINISHED]
TIMEOUT_S = 2.0 * QUEUED_RUNS
"""For half of the runs, on a machine that does other things too."""
CAP = 4
"""Of the daemon in these tests."""


@pytest.mark.timeout(2 * TIMEOUT_S + 60)
def test_a_long_queue_keeps_its_cap_and_its_order_across_a_kill(daemon: LiveDaemon, trainer: TrainerClient) -> None:
    """F31, R2.5: the daemon is killed half-way; every run is started once, in order, four at a time."""
    runs = [trainer.submit(scripted()).run_id for _ in range(QUEUED_RUNS)]
    most_busy = 0

    def has_at_most(count: int) -> bool:
        nonlocal most_busy
        most_busy = max(most_busy, trainer.status().slots.busy)
        time.sleep(0.1)
        return len(trainer.runs(status=ACTIVE_STAGES)) <= count

    wait_for(lambda: has_at_most(QUEUED_RUNS // 2), "half of the runs to end", TIMEOUT_S)
    trainer.close()
    daemon.kill()
    trainer = daemon.start()
    wait_for(lambda: has_at_most(0), "all runs to end", TIMEOUT_S)
    views = [trainer.get(run_id) for run_id in runs]
    trainer.close()
    assert [view.outcome for view in views] == ["succeeded"] * QUEUED_RUNS
    assert [len(view.attempts) for view in views] == [1] * QUEUED_RUNS
    journals = [[event["kind"] for event in read_all(RunFolder(view.run_dir).journal)] for view in views]
    assert [kinds.count("hello") for kinds in journals] == [1] * QUEUED_RUNS
    started = [view.started_at or 0.0 for view in views]
    assert started == sorted(started)
    assert 0 < most_busy <= CAP
    spans = sorted([(view.started_at or 0.0, 1) for view in views] + [(view.finished_at or 0.0, -1) for view in views])
    busy = 0
    for _, change in spans:
        busy += change
        assert busy <= CAP


def test_the_same_config_submitted_at_once_makes_a_run_each(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path
) -> None:
    """F32: by eight threads, and by two commands."""
    barrier = Barrier(8)

    def submit() -> str:
        barrier.wait()
        return trainer.submit(scripted(steps=2)).run_id

    with ThreadPoolExecutor(8) as threads:
        runs = [call.result() for call in [threads.submit(submit) for _ in range(8)]]
    config = tmp_path / "config.json"
    config.write_text(json.dumps(scripted(steps=2)))
    command = [MOSAIC, "submit", str(config), "--json"]
    variables = {**os.environ, "MOSAIC_VAR": str(workspace.root)}
    commands = [subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    runs += [json.loads(process.communicate(timeout=60)[0])["run_id"] for process in commands]
    assert len(set(runs)) == 10
    assert {view.run_id for view in trainer.runs()} == set(runs)
    assert [ended(trainer, run_id).outcome for run_id in runs] == ["succeeded"] * 10
