"""What W&B receives of a run: the real client, an offline file that is read back, and a server on loopback."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.run_folders import tensorboard_points
from tests.helpers.sidecar_runs import RUN_ID, create_run, environment, payload, read_events, recorded_run
from tests.helpers.wandb_files import points, records
from tests.helpers.wandb_server import KEY, WandbServer, files_with

from mosaic.contracts.errors import BadInput, NotAllowed
from mosaic.contracts.folder import RunFolder
from mosaic.features.tracking.sidecar import sync_state
from mosaic.features.tracking.sidecar.sync_state import SyncState
from mosaic.features.tracking.sidecar.wandb_sync import sync_run

Numbers = dict[str, list[tuple[int, float]]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return recorded_run(tmp_path_factory)


@pytest.fixture
def folder(recorded: RunFolder, tmp_path: Path) -> RunFolder:
    copied = tmp_path / "it's a workspace" / "var" / "trainer" / "runs" / RUN_ID
    shutil.copytree(recorded.path, copied, symlinks=True)
    return RunFolder(copied)


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with WandbServer() as running:
        yield running


def offline_folder(folder: RunFolder) -> Path:
    (path,) = sync_state.wandb_folders(folder)
    return path


def read_state(folder: RunFolder) -> SyncState:
    state = sync_state.read(folder)
    assert state is not None
    return state


def numbers(series: dict[str, Any]) -> Numbers:
    """Returns values by tag in the order of their steps; values that are not finite are equal."""
    values = {
        tag: sorted((step, value if math.isfinite(value) else math.inf) for step, _, value in rows)
        for tag, rows in series.items()
    }
    return dict(sorted(values.items()))


def test_wandbs_own_file_has_every_scalar_that_tensorboard_has(folder: RunFolder) -> None:
    in_tensorboard = tensorboard_points(folder.tensorboard)
    in_wandb = points(offline_folder(folder))
    assert numbers(in_wandb) == numbers(in_tensorboard)
    assert len(in_tensorboard["charts/episodic_return"]) > 3
    times = {at for rows in in_tensorboard.values() for _, at, _ in rows}
    assert {at for rows in in_wandb.values() for _, at, _ in rows} <= times, "they keep their original times"


def test_a_recording_has_its_config_tags_notes_group_axis_and_hardware(folder: RunFolder) -> None:
    by_kind = {
        kind: record for record in records(offline_folder(folder)) for kind in [record.WhichOneof("record_type")]
    }
    first = next(record.run for record in records(offline_folder(folder)) if record.WhichOneof("record_type") == "run")
    assert (first.run_id, first.project, first.run_group) == (RUN_ID, "a project", "seeds")
    assert (list(first.tags), first.notes, first.job_type) == (["one", "two"], "It's a note.", "train")
    stats = {item.key: float(item.value_json) for item in by_kind["stats"].stats.item}
    assert stats == {"cpu": 81.5, "proc.memory.rssMB": 64.0}
    assert by_kind["metric"].metric.step_metric == "global_step" or by_kind["metric"].metric.glob_name == "*"
    assert "exit" in by_kind
    entry = read_state(folder).entries[offline_folder(folder).name]
    assert (entry.state, entry.is_whole) == ("offline", True)
    assert entry.records == len([1 for record in records(offline_folder(folder)) if record.HasField("history")]) - 1


def test_the_complete_run_is_uploaded(folder: RunFolder, server: WandbServer, tmp_path: Path) -> None:
    seen: list[str] = []
    state = sync_run(folder, environment(server.url, tmp_path / "home"), lambda state: seen.append(state.state))
    assert (state.state, state.error) == ("synced", None)
    assert seen[0] == "syncing"
    assert seen[-1] == "synced"
    assert state.url == f"{server.url}/loopback/a%20project/runs/{RUN_ID}"
    rows = server.history(RUN_ID)
    assert len(rows) == (state.entries[offline_folder(folder).name].records or 0) + 1, "and one for the video"
    assert RUN_ID in server.finished
    config = json.loads(server.runs[RUN_ID]["config"])
    assert config["gamma"]["value"] == 0.99, "a default"
    assert config["num_envs"]["value"] == 2
    assert not [name for name in config if "wandb_" in name]
    assert server.events[RUN_ID][0]["system.cpu"] == 81.5
    aliases = {alias["alias"] for artifact in server.artifacts for alias in artifact["aliases"]}
    assert {"last", "best"} <= aliases
    assert {"weights.safetensors", "manifest.json"} <= set(server.files)
    assert [name for name in server.files if name.endswith(".mp4")]


def test_a_synced_run_is_not_uploaded_again_and_contains_no_key(
    folder: RunFolder, server: WandbServer, tmp_path: Path
) -> None:
    env = environment(server.url, tmp_path / "home")
    assert sync_run(folder, env).state == "synced"
    calls = len(server.calls)
    assert sync_run(folder, env).state == "synced"
    assert len(server.calls) == calls
    assert files_with(folder.path, KEY) == []
    assert KEY not in json.dumps(server.runs)


def test_an_incomplete_recording_is_recorded_again_before_it_is_uploaded(
    folder: RunFolder, server: WandbServer, tmp_path: Path
) -> None:
    incomplete = offline_folder(folder)
    state = read_state(folder)
    state.entries[incomplete.name].is_whole = False
    sync_state.write(folder, state)
    (data,) = incomplete.glob("*.wandb")
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    state = sync_run(folder, environment(server.url, tmp_path / "home", WANDB_INIT_TIMEOUT="60"))
    assert state.state == "synced"
    assert state.entries[incomplete.name].state == "superseded"
    (complete,) = (path for path in sync_state.wandb_folders(folder) if path != incomplete)
    assert numbers(points(complete)) == numbers(tensorboard_points(folder.tensorboard))
    assert len(server.history(RUN_ID)) == (state.entries[complete.name].records or 0) + 1


def test_an_interrupted_sync_ends_the_upload(folder: RunFolder, server: WandbServer, tmp_path: Path) -> None:
    def interrupt(state: SyncState) -> None:
        if state.state == "syncing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sync_run(folder, environment(server.url, tmp_path / "home"), interrupt)
    state = read_state(folder)  # the leak check would detect a remaining process
    assert (state.state, state.error, state.process) == ("failed", sync_state.INTERRUPTED_MESSAGE, None)


def test_a_run_that_cannot_be_uploaded_is_refused(folder: RunFolder, tmp_path: Path) -> None:
    untracked = create_run(tmp_path / "other", payload({"algo": "ppo", "env_id": "CartPole-v1"}), run_id="R2")
    with pytest.raises(BadInput, match="was not tracked"):
        sync_run(untracked, {})
    with sync_state.acquire_lock(folder), pytest.raises(NotAllowed, match="being uploaded already"):
        sync_run(folder, {})


def test_without_wandb_a_sync_names_the_extra(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mosaic.features.tracking.sidecar.wandb_sync.is_wandb_installed", lambda: False)
    state = sync_run(folder, {})
    assert "pip install 'mosaic-rl[wandb]'" in str(state.error)
    assert state.pending_folders


def test_trackio_receives_the_same_points(recorded: RunFolder, tmp_path: Path) -> None:
    folder = create_run(
        tmp_path, payload({"algo": "ppo", "env_id": "CartPole-v1", "seed": 1}, trackio={"enabled": True})
    )
    for name in ("journal.jsonl", "keeper.jsonl"):
        shutil.copy(recorded.path / name, folder.path / name)
    resumed = folder.journal.read_bytes().index(b'"kind":"hello"', 500)
    command = [
        sys.executable,
        "-m",
        "mosaic.features.tracking.sidecar",
        "go",
        str(folder.path),
        "--journal-from",
        str(resumed - 100),
    ]
    subprocess.run(command, env=environment("http://127.0.0.1:1", tmp_path / "home"), timeout=100, check=True)
    assert [line["kind"] for line in read_events(folder)] == ["tracking_started", "tracking_ended"]
    rows = read_events(folder)[-1]["rows"]
    assert rows == read_state(recorded).entries[offline_folder(recorded).name].records
    workspace = tmp_path / "it's a workspace" / "var"
    assert list((workspace / "trackio").glob("mosaic*.db"))
    assert not folder.wandb.exists()
