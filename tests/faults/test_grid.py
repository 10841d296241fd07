"""M1: any process of any kind of run is killed at a random time.

Three cells of the grid are drawn at random; `make faults ARGS="--rows M1 --tries 2"` tries each of them, twice.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.daemons import LiveDaemon, ended, scripted, wait_for
from tests.helpers.fault_table import TRIES_VARIABLE
from tests.helpers.probe_scripts import CARTPOLE, start_script
from tests.helpers.run_folders import journal_points, make_run_folder
from tests.helpers.sidecar_runs import environment
from tests.helpers.wandb_server import WandbServer
from tests.helpers.worker_runs import small, train_here

from mosaic.base.journal import read_all
from mosaic.base.processes import is_alive
from mosaic.base.run_payloads import build_eval_payload
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.contracts.states import Attempt, Stage
from mosaic.contracts.views import RunView
from mosaic.features.tracking.sidecar import sync_state
from mosaic.features.tracking.sidecar.wandb_sync import sync_run
from mosaic.trainer.client.trainer_client import TrainerClient

ENDS = {
    "daemon": "cancelled",
    "checker": "cancelled",
    "sidecar": "cancelled",
    "worker": "failed",
    "keeper": "lost",
    "keeper and worker": "lost",
}
"""Whom to kill, and how the run ends: what is not part of a run does not end it, so the test cancels it."""
WORKLOADS = ("ppo", "dqn", "script", "evaluation", "tracked")
GRID = [(killed, workload) for killed in ENDS for workload in WORKLOADS if killed != "sidecar" or workload == "tracked"]
QUICK_GRID = [cell for cell in GRID if cell[1] != "tracked"]
"""A tracked run takes W&B's own time."""
SIDECAR_S = 300.0
"""It waits for 30 s before it records, and has the lowest priority of all processes."""
LONG = 50_000_000
"""Steps or episodes that no test waits for."""
SETTINGS = {
    "ppo": {"num_envs": 2, "num_steps": 32, "checkpoint_every": 512},
    "dqn": {"buffer_size": 400, "batch_size": 8, "learning_starts": 64, "checkpoint_every": 512},
}
MAX_DELAY_S = 1.5
CELLS = GRID if int(os.environ.get(TRIES_VARIABLE, 1)) > 1 else [None] * 3


def start_workload(trainer: TrainerClient, workload: str, tmp_path: Path) -> str:
    if workload == "script":
        return start_script(trainer, tmp_path / "script", CARTPOLE.format(episodes=LONG))
    if workload == "tracked":
        payload = {**scripted(steps=LONG, dt=0.01), "artifacts": {"wandb": {"enabled": True}}}
    elif workload == "evaluation":
        policy = train_here(make_run_folder(tmp_path), small()).last_checkpoint
        worker = {"id": "cleanrl", "config": {}}
        payload = build_eval_payload(worker, str(policy), {"eval_batch_size": 100_000})
    else:
        config = {"algo": workload, "env_id": "CartPole-v1", "seed": 1, "total_timesteps": LONG}
        payload = {
            "metadata": {"worker": {"id": "cleanrl", "config": {**config, "extras": SETTINGS[workload]}}},
            "artifacts": {},
        }
    return trainer.submit(payload).run_id


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: "random" if cell is None else "-".join(cell))
def test_a_kill_at_a_random_time_leaves_one_true_end_and_a_complete_record(
    cell: tuple[str, str] | None,
    workspace: Workspace,
    plugins: Path,
    tmp_path: Path,
    chance: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """M1: every run is listed, has one worker and one end, and its index equals its journal; no process is left."""
    killed, workload = cell or chance.choice(QUICK_GRID)
    print(f"{killed} of {workload}")
    with WandbServer() as server:
        for name, value in environment(server.url, tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        daemon = LiveDaemon(workspace, plugins, "--max-runs", "2")
        trainer = daemon.start()
        run_id = start_workload(trainer, workload, tmp_path)
        bystander = trainer.submit(scripted(steps=LONG, dt=0.01)).run_id
        victims = find_processes(trainer, daemon, run_id, killed)
        if killed == "sidecar":
            wait_for(lambda: server.history(run_id), "its first rows", SIDECAR_S)
        time.sleep(chance.uniform(0.0, MAX_DELAY_S))
        for victim in victims:
            os.kill(victim["pid"], signal.SIGKILL)
        killed_at = time.monotonic()
        if killed == "daemon":
            trainer.close()
            daemon.kill()
            trainer = daemon.start()
        if ENDS[killed] == "cancelled":
            assert_it_continues(trainer, run_id)
            trainer.cancel_run(run_id)
        view = ended(trainer, run_id)
        record_property("worst_s", time.monotonic() - killed_at)
        assert view.outcome == ENDS[killed], view.reason
        if view.checkpoint_step and workload != "evaluation":
            trainer.resume(run_id)
            assert_it_continues(trainer, run_id)
            trainer.cancel_run(run_id)
            view = ended(trainer, run_id)
            assert (view.outcome, len(view.attempts)) == ("cancelled", 2)
        assert_it_continues(trainer, bystander)
        trainer.cancel_run(bystander)
        assert {seen.run_id for seen in trainer.runs()} == {run_id, bystander}
        for seen in (view, ended(trainer, bystander)):
            assert_complete(trainer, seen)
        if workload == "tracked":
            assert_tracked(view, server, is_interrupted=killed == "sidecar")
        trainer.close()
        daemon.end()


def find_processes(trainer: TrainerClient, daemon: LiveDaemon, run_id: str, killed: str) -> list[ProcessIdentity]:
    """Wait until the processes exist; the daemon's own is killed by its object."""

    def started() -> Attempt | None:
        attempts = trainer.get_run(run_id).attempts
        # A script's first line may be read before its keeper's report.
        return attempts[-1] if attempts and attempts[-1].worker else None

    attempt = wait_for(started, "its worker")
    if killed == "checker":
        return [{"pid": checker_pid(daemon.workspace), "start": "", "boot_id": ""}]
    if killed == "sidecar":
        return find_sidecars(RunFolder(trainer.get_run(run_id).run_dir))
    named = {"keeper": attempt.keeper, "worker": attempt.worker}
    return [named[name] for name in killed.split(" and ") if name in named]


def find_sidecars(folder: RunFolder) -> list[ProcessIdentity]:
    return [event["process"] for event in read_all(folder.keeper) if event["kind"] == "sidecar_started"]


def assert_tracked(view: RunView, server: WandbServer, is_interrupted: bool) -> None:
    """The server has all points, by itself or, after a killed sidecar, once the user has synced the run."""
    folder = RunFolder(view.run_dir)
    wait_for(lambda: not any(map(is_alive, find_sidecars(folder))), "the sidecars' end", SIDECAR_S)
    state = sync_run(folder, dict(os.environ)) if is_interrupted else sync_state.read(folder)
    assert state is not None
    assert (state.state, state.error) == ("synced", None)
    written = [value for _, _, value in journal_points(folder)["scripted/step"]]
    rows = [row["scripted/step"] for row in server.history(view.run_id) if "scripted/step" in row]
    assert rows[-len(written) :] == written  # before them, the loopback server has those of interrupted uploads


def checker_pid(workspace: Workspace) -> int:
    """Wait for the checker, which a daemon starts some time after itself."""

    def started() -> list[int]:
        lines = [json.loads(line) for line in workspace.daemon_log.read_text().splitlines()]
        return [line["pid"] for line in lines if line["event"] == "checker_started"]

    return int(wait_for(started, "the checker")[-1])


def assert_it_continues(trainer: TrainerClient, run_id: str) -> None:
    """It has one worker, which writes on."""
    wait_for(lambda: trainer.get_run(run_id).stage == "running", "it to run")
    folder = RunFolder(trainer.get_run(run_id).run_dir)
    length = sum(path.stat().st_size for path in folder.journals())
    wait_for(lambda: sum(path.stat().st_size for path in folder.journals()) > length, "further lines")
    workers = [attempt.worker for attempt in trainer.get_run(run_id).attempts if attempt.worker]
    assert [is_alive(worker) for worker in workers] == [False] * (len(workers) - 1) + [True]


def assert_complete(trainer: TrainerClient, view: RunView) -> None:
    folder = RunFolder(view.run_dir)
    for path in (folder.keeper, *folder.journals()):
        seqs = [event["seq"] for event in read_all(path)]
        assert seqs == list(range(1, len(seqs) + 1)), path
    assert [entry.stage for entry in view.history].count(Stage.FINISHED) == len(view.attempts)
    processes = [process for attempt in view.attempts for process in (attempt.keeper, attempt.worker) if process]
    wait_for(lambda: not any(map(is_alive, processes)), "its processes to be gone")  # the keeper ends after its report
    assert indexed_points(trainer, view.run_id) == {
        tag: sorted((step, float(np.float32(value))) for step, _, value in rows)
        for tag, rows in journal_points(folder).items()
        if rows
    }


def indexed_points(trainer: TrainerClient, run_id: str) -> dict[str, list[tuple[int, float]]]:
    points: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for part in trainer.metrics(run_id):
        points[part.tag] += zip(part.steps, (float(np.float32(value)) for value in part.values), strict=True)
    return {tag: sorted(rows) for tag, rows in points.items()}
