"""What W&B gets of a run: the real client, an offline file that is read back, and a server on loopback."""

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
from tests.helpers.sidecar_runs import RUN_ID, a_run, environment, payload, recorded_run, said
from tests.helpers.wandb_files import points, records
from tests.helpers.wandb_server import KEY, WandbServer

from mosaic.contracts.errors import BadInput, NotAllowed
from mosaic.contracts.folder import RunFolder
from mosaic.sidecar import sync_state
from mosaic.sidecar.sync import sync_run
from mosaic.sidecar.sync_state import SyncState

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
    with WandbServer() as made:
        yield made


def offline_folder(folder: RunFolder) -> Path:
    (found,) = sync_state.wandb_folders(folder)
    return found


def state_of(folder: RunFolder) -> SyncState:
    state = sync_state.read(folder)
    assert state is not None
    return state


def numbers(told: dict[str, Any]) -> Numbers:
    """Values by tag in the order of their steps: what is not finite has no order of its own."""
    shown = {
        tag: sorted((step, value if math.isfinite(value) else math.inf) for step, _, value in rows)
        for tag, rows in told.items()
    }
    return dict(sorted(shown.items()))


def test_wandbs_own_file_has_every_scalar_that_tensorboard_has(folder: RunFolder) -> None:
    in_tensorboard = tensorboard_points(folder.tensorboard)
    in_wandb = points(offline_folder(folder))
    assert numbers(in_wandb) == numbers(in_tensorboard)
    assert len(in_tensorboard["charts/episodic_return"]) > 3
    times = {at for rows in in_tensorboard.values() for _, at, _ in rows}
    assert {at for rows in in_wandb.values() for _, at, _ in rows} <= times, "they keep the time at which they happened"


def test_a_recording_has_its_config_tags_notes_group_axis_and_hardware(folder: RunFolder) -> None:
    found = {kind: record for record in records(offline_folder(folder)) for kind in [record.WhichOneof("record_type")]}
    first = next(record.run for record in records(offline_folder(folder)) if record.WhichOneof("record_type") == "run")
    assert (first.run_id, first.project, first.run_group) == (RUN_ID, "a project", "seeds")
    assert (list(first.tags), first.notes, first.job_type) == (["one", "two"], "It's a note.", "train")
    stats = {item.key: float(item.value_json) for item in found["stats"].stats.item}
    assert stats == {"cpu": 81.5, "proc.memory.rssMB": 64.0}
    assert found["metric"].metric.step_metric == "global_step" or found["metric"].metric.glob_name == "*"
    assert "exit" in found
    entry = state_of(folder).entries[offline_folder(folder).name]
    assert (entry.state, entry.is_whole) == ("offline", True)
    assert entry.records == len([1 for record in records(offline_folder(folder)) if record.HasField("history")]) - 1


def test_everything_of_a_run_gets_to_the_server(folder: RunFolder, server: WandbServer, tmp_path: Path) -> None:
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
    assert config["gamma"]["value"] == 0.99, "a default, which nobody gave"
    assert config["num_envs"]["value"] == 2
    assert not [name for name in config if "wandb_" in name]
    assert server.events[RUN_ID][0]["system.cpu"] == 81.5
    aliases = {alias["alias"] for artifact in server.artifacts for alias in artifact["aliases"]}
    assert {"last", "best"} <= aliases
    assert {"weights.safetensors", "manifest.json"} <= set(server.files)
    assert [name for name in server.files if name.endswith(".mp4")]


def test_a_run_that_is_synced_is_not_sent_again_and_no_key_is_left_in_it(
    folder: RunFolder, server: WandbServer, tmp_path: Path
) -> None:
    env = environment(server.url, tmp_path / "home")
    assert sync_run(folder, env).state == "synced"
    calls = len(server.calls)
    assert sync_run(folder, env).state == "synced"
    assert len(server.calls) == calls
    holding = [path for path in folder.path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert holding == []
    assert KEY not in json.dumps(server.runs)


def test_a_recording_that_broke_off_is_made_again_before_it_is_uploaded(
    folder: RunFolder, server: WandbServer, tmp_path: Path
) -> None:
    torn = offline_folder(folder)
    state = state_of(folder)
    state.entries[torn.name].is_whole = False
    sync_state.write(folder, state)
    (data,) = torn.glob("*.wandb")
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    state = sync_run(folder, environment(server.url, tmp_path / "home", WANDB_INIT_TIMEOUT="60"))
    assert state.state == "synced"
    assert state.entries[torn.name].state == "superseded"
    (made,) = (path for path in sync_state.wandb_folders(folder) if path != torn)
    assert numbers(points(made)) == numbers(tensorboard_points(folder.tensorboard))
    assert len(server.history(RUN_ID)) == (state.entries[made.name].records or 0) + 1


def test_what_cannot_be_uploaded_is_refused_in_a_sentence(folder: RunFolder, tmp_path: Path) -> None:
    untracked = a_run(tmp_path / "other", payload({"algo": "ppo", "env_id": "CartPole-v1"}), run_id="R2")
    with pytest.raises(BadInput, match="was not tracked"):
        sync_run(untracked, {})
    with sync_state.acquire_lock(folder), pytest.raises(NotAllowed, match="being uploaded already"):
        sync_run(folder, {})


def test_without_wandb_a_sync_names_the_extra(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mosaic.sidecar.sync.is_wandb_installed", lambda: False)
    state = sync_run(folder, {})
    assert "pip install 'mosaic-rl[wandb]'" in str(state.error)
    assert state.pending_folders


def test_trackio_gets_the_same_points(recorded: RunFolder, tmp_path: Path) -> None:
    folder = a_run(tmp_path, payload({"algo": "ppo", "env_id": "CartPole-v1", "seed": 1}, trackio={"enabled": True}))
    for name in ("journal.jsonl", "keeper.jsonl"):
        shutil.copy(recorded.path / name, folder.path / name)
    resumed = folder.journal.read_bytes().index(b'"kind":"hello"', 500)
    command = [sys.executable, "-m", "mosaic.sidecar", "go", str(folder.path), "--journal-from", str(resumed - 100)]
    subprocess.run(command, env=environment("http://127.0.0.1:1", tmp_path / "home"), timeout=100, check=True)
    assert [line["kind"] for line in said(folder)] == ["tracking_started", "tracking_ended"]
    rows = said(folder)[-1]["rows"]
    assert rows == state_of(recorded).entries[offline_folder(recorded).name].records
    workspace = tmp_path / "it's a workspace" / "var"
    assert list((workspace / "trackio").glob("mosaic*.db"))
    assert not folder.wandb.exists()
