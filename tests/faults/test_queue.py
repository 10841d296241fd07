"""F31, F32, F49: many runs are queued, scripts wait with their environments, one config is submitted several times.

`make test` queues some. MOSAIC_FULL_SWEEP=1 queues 1,000.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from tests.helpers.commands import MOSAIC, mosaic
from tests.helpers.daemons import LiveDaemon, ended, scripted, wait_for
from tests.helpers.probe_scripts import start_script, write_script

from mosaic.base.files import config_folder
from mosaic.base.journal import read_all
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.states import Stage
from mosaic.trainer.caller_environments import CallerEnvironments
from mosaic.trainer.client.connect import connect
from mosaic.trainer.client.trainer_client import TrainerClient

QUEUED_RUNS = 1000 if os.environ.get("MOSAIC_FULL_SWEEP") else 60
ACTIVE_STAGES = [stage.value for stage in Stage if stage is not Stage.FINISHED]
TIMEOUT_S = 2.0 * QUEUED_RUNS
"""For half of the runs, on a machine that does other things too."""
CAP = 4
"""Of the daemon in these tests."""
WAITS = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]):\n    time.sleep(0.02)\n"
TELLS = "import os, sys\nopen(sys.argv[1], 'w').write(os.environ['MY_KEY'])\n"
CANARY = "canary0123456789"


@pytest.mark.timeout(2 * TIMEOUT_S + 60)
def test_a_long_queue_keeps_its_cap_and_its_order_across_a_kill(daemon: LiveDaemon, trainer: TrainerClient) -> None:
    """F31, R2.5: the daemon is killed half-way; every run is started once, in order, four at a time."""
    runs = [trainer.submit(scripted()).run_id for _ in range(QUEUED_RUNS)]
    most_busy = 0

    def has_at_most(count: int) -> bool:
        nonlocal most_busy
        most_busy = max(most_busy, trainer.get_status().slots.busy)
        time.sleep(0.1)
        return len(trainer.runs(status=ACTIVE_STAGES)) <= count

    wait_for(lambda: has_at_most(QUEUED_RUNS // 2), "half of the runs to end", TIMEOUT_S)
    trainer.close()
    daemon.kill()
    trainer = daemon.start()
    wait_for(lambda: has_at_most(0), "all runs to end", TIMEOUT_S)
    views = [trainer.get_run(run_id) for run_id in runs]
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


def queue_scripts(workspace: Workspace, folder: Path, count: int) -> list[str]:
    """Submit scripts, each with a variable of its own, that write it to a file; return the ids of the runs."""
    script = write_script(folder, TELLS, "tells.py")
    commands = [
        mosaic(workspace, "run", "--detach", "--json", "--", sys.executable, str(script), str(folder / f"{number}"),
               MY_KEY=f"{CANARY}{number}")
        for number in range(count)
    ]  # fmt: skip
    assert [command.code for command in commands] == [0] * count, commands[0].err
    return [command.json["run_id"] for command in commands]


def test_queued_scripts_keep_their_environments_when_the_daemon_is_killed(
    workspace: Workspace, plugins: Path, tmp_path: Path
) -> None:
    """F49, R2.8, R4.6: they are in files of the user's until the scripts start or are cancelled."""
    kept = config_folder() / "environments"
    daemon = LiveDaemon(workspace, plugins, "--max-runs", "1")
    with daemon.start() as trainer:
        active = start_script(trainer, tmp_path, WAITS, str(tmp_path / "go"))
        wait_for(lambda: trainer.get_run(active).stage == "running", "the script")
        assert list(kept.iterdir()) == []
        *runs, cancelled = queue_scripts(workspace, tmp_path, 3)
        assert {path.stem for path in kept.iterdir()} == {*runs, cancelled}
        assert [path.stat().st_mode & 0o777 for path in (kept, *kept.iterdir())] == [0o700, *[0o600] * 3]
        trainer.cancel_run(cancelled)
        assert {path.stem for path in kept.iterdir()} == {*runs}
    daemon.kill()
    stale, elsewhere, gone = kept / "STALE.json", kept / "ELSEWHERE.json", kept / "GONE.json"
    content = json.loads((kept / f"{runs[0]}.json").read_text())
    stale.write_text(json.dumps(content))
    elsewhere.write_text(json.dumps({**content, "workspace": str(tmp_path)}))
    gone.write_text(json.dumps({**content, "workspace": str(tmp_path / "gone")}))
    os.utime(gone, (0, 0))
    (tmp_path / "go").touch()
    assert mosaic(workspace, "runs").code == 0
    with connect(workspace, may_start=False) as trainer:
        assert [ended(trainer, run_id).outcome for run_id in runs] == ["succeeded"] * 2
    assert [(tmp_path / f"{number}").read_text() for number in range(2)] == [f"{CANARY}0", f"{CANARY}1"]
    assert list(kept.iterdir()) == [elsewhere]
    texts = [path.read_bytes() for path in workspace.root.rglob("*") if path.is_file()]
    assert not any(CANARY.encode() in text for text in texts)


def test_a_copy_of_a_workspace_does_not_get_the_environments_of_its_scripts(
    workspace: Workspace, tmp_path: Path
) -> None:
    """F49: a file is bound to its workspace, and a run of the same id elsewhere cannot read or remove it."""
    own, other = CallerEnvironments(workspace), CallerEnvironments(Workspace(tmp_path / "copy"))
    assert own.put("RUN", {"MY_KEY": CANARY}) == ()
    assert other.get("RUN") is None
    other.drop("RUN")
    other.remove_stale(())
    assert CallerEnvironments(workspace).get("RUN") == {"MY_KEY": CANARY}


def test_a_script_is_told_once_that_its_environment_is_in_memory_only(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F49: the folder of the user's settings cannot be written; the scripts run all the same."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/self")
    script = write_script(tmp_path, TELLS, "tells.py")
    told = []
    for number in range(2):
        output = tmp_path / f"{number}"
        done = mosaic(workspace, "run", "--", sys.executable, str(script), str(output), MY_KEY=CANARY)
        assert (done.code, output.read_text()) == (0, CANARY), done.err
        told.append((done.out + done.err).count("kept in memory only"))
    assert told == [1, 0]
