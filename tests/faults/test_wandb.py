"""F20 and F21: a W&B server that is missing, slow or faulty neither affects a run nor loses data."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers.daemons import ended, running_daemon, scripted, wait_for
from tests.helpers.keeper_runs import SLEEPER, KeeperRun, until
from tests.helpers.sidecar_runs import RUN_ID, environment, payload, read_events, recorded_run
from tests.helpers.wandb_server import WandbServer, refusing_url

from mosaic.base.files import write_json
from mosaic.base.journal import read_all
from mosaic.base.processes import is_alive
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.features.tracking.sidecar import sync_state, wandb_sync
from mosaic.features.tracking.sidecar.wandb_sync import sync_run

FAULTS: dict[str | int, tuple[str, str]] = {
    "refuse": ("offline", "W&B cannot be reached (connection refused)."),
    "hang": ("offline", "W&B cannot be reached (no answer)."),
    401: ("failed", "W&B does not accept the API key (401). Store another one: mosaic wandb login."),
    403: ("failed", "W&B denies access (403). Check the key, the entity and the project."),
    429: ("failed", "W&B received too many requests (429)."),
    500: ("failed", "W&B has an internal error (500)."),
    "drop": ("failed", "The upload to W&B was interrupted."),
}
SIDECAR_S = 90.0
"""It has the lowest priority of all processes."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return recorded_run(tmp_path_factory)


@pytest.fixture
def folder(recorded: RunFolder, tmp_path: Path) -> RunFolder:
    copied = tmp_path / "it's a workspace" / "var" / "trainer" / "runs" / RUN_ID
    shutil.copytree(recorded.path, copied, symlinks=True)
    return RunFolder(copied)


@pytest.mark.parametrize("mode", FAULTS)
def test_a_failed_sync_reports_why_and_keeps_everything_for_the_next_one(
    folder: RunFolder, tmp_path: Path, mode: str | int
) -> None:
    state, error = FAULTS[mode]
    (offline,) = sync_state.wandb_folders(folder)
    (data,) = offline.glob("*.wandb")
    before = data.read_bytes()
    with ExitStack() as stack:
        url = stack.enter_context(refusing_url()) if mode == "refuse" else ""
        server = None if url else stack.enter_context(WandbServer(mode))
        result = sync_run(folder, environment(url or server.url, tmp_path / "home"))  # type: ignore[union-attr]
        assert (result.state, result.error) == (state, error)
        assert server is None or len(server.calls) < 80, "no endless retries"
    assert data.read_bytes() == before
    assert sync_state.read(folder) == result
    if mode == "drop":  # W&B's client itself reports this one as synced
        with WandbServer() as server:
            assert sync_run(folder, environment(server.url, tmp_path / "home")).state == "synced"
            assert len(server.history(RUN_ID)) == (result.entries[offline.name].records or 0) + 1


def test_a_sync_with_a_slow_server_succeeds(folder: RunFolder, tmp_path: Path) -> None:
    with WandbServer("delay") as server:
        result = sync_run(folder, environment(server.url, tmp_path / "home", WANDB_INIT_TIMEOUT="10"))
        assert (result.state, result.error) == ("synced", None)


def test_an_upload_that_takes_too_long_is_killed_with_its_children(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WandbServer() as server:
        answer = server.answer

        def hang_after_the_first(operation: str, query: str, variables: dict[str, Any]) -> dict[str, Any]:
            if operation != "Viewer":
                server.mode = "hang"
            return answer(operation, query, variables)

        server.answer = hang_after_the_first  # type: ignore[method-assign]

        def monotonic() -> float:
            """Let the time limit pass once the client waits for an answer, however long it took to start."""
            return time.monotonic() + (wandb_sync.SYNC_TIMEOUT_S if server.mode == "hang" else 0.0)

        clock = SimpleNamespace(monotonic=monotonic, time=time.time, sleep=time.sleep)
        monkeypatch.setattr(wandb_sync, "time", clock)
        result = sync_run(folder, environment(server.url, tmp_path / "home"))
        assert server.mode == "hang"
    assert (result.state, result.error) == ("failed", "The upload to W&B took too long.")


# --- next to a run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[KeeperRun]:
    keeper_run = KeeperRun(Workspace(tmp_path / "it's a workspace" / "var").runs / RUN_ID)
    write_json(keeper_run.folder.config, payload({"algo": "x", "env_id": "y"}, "scripted", wandb={"enabled": True}))
    yield keeper_run
    assert keeper_run.close() == [], "processes were left running"


def sidecar_spec(run: KeeperRun, url: str, home: Path, *options: str) -> dict[str, Any]:
    env = environment(url, home) | {key: run.launch([""])["env"][key] for key in ("RUN", "MOSAIC_TEST_MARK")}
    argv = [
        sys.executable,
        "-m",
        "mosaic.features.tracking.sidecar",
        "go",
        str(run.folder.path),
        "--after",
        "0",
        *options,
    ]
    return {"argv": argv, "cwd": str(run.folder.path), "env": env, "log_name": "sidecar"}


WRITES = """
import json
def line(seq, kind, **fields):
    with open(os.path.join(RUN, 'journal.jsonl'), 'a') as file:
        file.write(json.dumps({'seq': seq, 'at': time.time(), 'kind': kind, **fields}) + '\\n')
line(1, 'hello', worker='w', version='1', pid=os.getpid())
for seq in range(2, 2000):
    line(seq, 'metrics', series={'a': [[seq, time.time(), float(seq)]]})
    announce('step')
    time.sleep(0.05)
    if os.path.exists(os.path.join(RUN, 'enough')):
        line(seq + 1, 'finished', outcome='succeeded')
        break
"""


def test_a_run_is_uploaded_while_it_is_active_and_up_to_its_last_point(run: KeeperRun, tmp_path: Path) -> None:
    with WandbServer() as server:
        run.start(WRITES, sidecar=sidecar_spec(run, server.url, tmp_path / "home"))
        sidecar = run.wait_event("sidecar_started")["process"]
        wait_for(lambda: server.history(RUN_ID), "the first rows on the server", SIDECAR_S)
        assert run.events("exited") == [], "the run is still active"
        live = sync_state.read(run.folder)
        assert live is not None
        assert live.state == "syncing"
        (run.folder.path / "enough").touch()
        run.wait_end()
        wait_for(lambda: not is_alive(sidecar), "the sidecar's end", SIDECAR_S)
        written = [body for body in read_all(run.folder.journal) if body["kind"] == "metrics"]
        assert [row["a"] for row in server.history(RUN_ID)] == [body["series"]["a"][0][2] for body in written]
        assert RUN_ID in server.finished
    state = sync_state.read(run.folder)
    assert state is not None
    assert (state.state, state.process, state.error) == ("synced", None, None)
    assert read_events(run.folder)[-1]["kind"] == "wandb_synced"


def test_a_sidecar_whose_keeper_and_worker_are_killed_finishes_and_exits(run: KeeperRun, tmp_path: Path) -> None:
    with refusing_url() as url:
        keeper = run.start(WRITES, sidecar=sidecar_spec(run, url, tmp_path / "home"))
        sidecar, worker = (run.wait_event(f"{who}_started")["process"] for who in ("sidecar", "worker"))
        run.wait_file("step")
        keeper.kill()
        keeper.wait()
        os.kill(worker["pid"], signal.SIGKILL)
        wait_for(lambda: not is_alive(sidecar), "the sidecar's end", SIDECAR_S)
    state = sync_state.read(run.folder)
    assert state is not None
    (entry,) = state.entries.values()
    assert (entry.state, entry.is_whole) == ("offline", True)
    warnings = [line["text"] for line in read_events(run.folder) if line["kind"] == "warning"]
    hint = f"The run is stored offline; sync it later with: mosaic wandb sync {RUN_ID}"
    assert warnings == [f"W&B cannot be reached (connection refused). {hint}"], "once"


def test_a_killed_sidecar_leaves_no_process_and_an_interrupted_upload(run: KeeperRun, tmp_path: Path) -> None:
    """M1: killed during a live upload; the program that uploads ends with it, and the run continues."""
    with WandbServer() as server:
        run.start(WRITES, sidecar=sidecar_spec(run, server.url, tmp_path / "home"))
        sidecar, worker = (run.wait_event(f"{who}_started")["process"] for who in ("sidecar", "worker"))
        wait_for(lambda: server.history(RUN_ID), "the first rows on the server", SIDECAR_S)
        os.kill(sidecar["pid"], signal.SIGKILL)
        others = {worker["pid"], run.keepers[-1].pid}
        wait_for(lambda: set(run.members()) <= others, "the end of the upload")
        (run.folder.path / "enough").touch()
        run.wait_end()
        interrupted = sync_state.read(run.folder)
        assert interrupted is not None
        assert (interrupted.state, interrupted.error) == ("failed", "The upload was interrupted.")


def test_a_sidecar_of_a_script_that_never_uses_wandb_writes_nothing(run: KeeperRun, tmp_path: Path) -> None:
    run.start(SLEEPER, sidecar=sidecar_spec(run, "http://127.0.0.1:1", tmp_path / "home", "--upload-only"))
    sidecar = run.wait_event("sidecar_started")["process"]
    os.kill(int(run.wait_file("ready")), signal.SIGKILL)
    keeper = run.keepers[-1]
    until(lambda: keeper.poll() is not None, "the keeper's end")
    wait_for(lambda: not is_alive(sidecar), "the sidecar's end", SIDECAR_S)
    assert not run.folder.wandb.exists()
    assert not run.folder.sidecar.exists()
    assert (run.folder.logs / "sidecar.log").read_text() == ""


def test_a_run_with_an_unresponsive_wandb_succeeds_and_warns_once(
    workspace: Workspace, plugins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.4: W&B cannot be reached."""
    with WandbServer("hang") as server:
        for name, value in environment(server.url, tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        with running_daemon(workspace, plugins, "--max-runs", "1") as (_, trainer):
            submission = {**scripted(steps=20, dt=0.02), "artifacts": {"wandb": {"enabled": True}}}
            run_id = trainer.submit(submission).run_id
            view = ended(trainer, run_id)
            assert view.outcome == "succeeded"
            folder = workspace.run(run_id)
            process = next(body["process"] for body in read_all(folder.keeper) if body["kind"] == "sidecar_started")
            assert is_alive(process), "the run did not wait for it"
            # Its slot is free: with room for one run, the next one starts.
            assert ended(trainer, trainer.submit(scripted(steps=1)).run_id).outcome == "succeeded"
            wait_for(lambda: not is_alive(process), "the sidecar's end", SIDECAR_S)
            warnings = next(batch.events for batch in trainer.watch(run=run_id, kinds=("warning",)) if batch.events)
            assert [getattr(event, "code", None) for event in warnings] == ["wandb_offline"], "watchers get it, once"
            assert trainer.get_run(run_id).outcome == "succeeded"


def test_a_resumed_attempt_takes_over_from_the_sidecar_of_the_earlier_one(run: KeeperRun, tmp_path: Path) -> None:
    with WandbServer("hang") as server:
        first = sidecar_spec(run, server.url, tmp_path / "home")
        first["env"]["WANDB_INIT_TIMEOUT"] = "4"
        run.start(WRITES, sidecar=first)
        earlier = run.wait_event("sidecar_started")["process"]
        wait_for(lambda: server.calls, "the first sidecar to reach the server", SIDECAR_S)
        (run.folder.path / "enough").touch()
        run.wait_end()
        assert is_alive(earlier)
        start = run.folder.journal.stat().st_size
        again = f"""
            import json, time
            seq = {len(run.folder.journal.read_text().splitlines()) + 1}
            with open(os.path.join(RUN, 'journal.jsonl'), 'a') as file:
                series = {{'a': [[4, 1.0, 7.0]]}}
                for line in ({{'kind': 'hello', 'resumed_from': 3}}, {{'kind': 'metrics', 'series': series}}):
                    file.write(json.dumps({{'seq': seq, 'at': time.time(), **line}}) + chr(10))
                    seq += 1
        """
        server.mode = "ok"
        offsets = ("--journal-from", str(start), "--keeper-from", str(run.folder.keeper.stat().st_size))
        run.start(again, sidecar=sidecar_spec(run, server.url, tmp_path / "home", *offsets))
        run.wait_end()
        later = run.wait_event("sidecar_started", 2)["process"]
        wait_for(lambda: not is_alive(later) and not is_alive(earlier), "both sidecars' end", SIDECAR_S)
        assert [row["a"] for row in server.history(RUN_ID)] == [2.0, 3.0, 7.0]
    state = sync_state.read(run.folder)
    assert state is not None
    *earlier_states, last = [entry.state for entry in state.entries.values()]
    assert last == "synced"
    assert set(earlier_states) <= {"superseded"}
