"""F30: a key submitted in a config is only in the secret store, however the run ends."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.commands import mosaic
from tests.helpers.daemons import LiveDaemon, ended, running_daemon, scripted, wait_for
from tests.helpers.wandb_server import WandbServer

from mosaic.base import secret_store as secrets
from mosaic.base.files import config_folder
from mosaic.base.secret_store import secrets_path as secret_file
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.events import RecordChanged
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.trainer_client import TrainerClient

CANARY = "canary0123456789abcdef0123456789abcdef01"
PASSWORD = "canaryproxypassword"
EXTRAS = {"wandb_api_key": CANARY, "wandb_http_proxy": f"http://me:{PASSWORD}@proxy.invalid:3128"}


def with_key(**config: Any) -> dict[str, Any]:
    return scripted(extras=EXTRAS, **config)


def leaks(workspace: Workspace, trainer: TrainerClient) -> list[str]:
    """Lists every place where the key or the password can be read."""
    canaries = (CANARY.encode(), PASSWORD.encode())
    found = [
        str(path)
        for path in (*workspace.root.rglob("*"), *workspace.root.parent.glob("*"))
        if path.is_file() and any(canary in path.read_bytes() for canary in canaries)
    ]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(canary in (process / "cmdline").read_bytes() for canary in canaries):
                found.append(str(process))
        except OSError:
            continue
    texts = [view.model_dump_json() for view in trainer.runs(include_archived=True)]
    texts += [json.dumps(trainer.config(view.run_id)) for view in trainer.runs(include_archived=True)]
    texts += [json.dumps(event) for event in all_events(trainer)]
    return found + [text for text in texts if any(canary.decode() in text for canary in canaries)]


def all_events(trainer: TrainerClient) -> list[dict[str, Any]]:
    last = trainer.get_run("last").run_id
    events: list[dict[str, Any]] = []
    for batch in trainer.watch(0):
        events += [event.model_dump(mode="json") for event in batch.events]
        if any(
            event.run_id == last and isinstance(event, RecordChanged) and event.stage == "finished"
            for event in batch.events
        ):
            return events
    return events


def wandb_section(trainer: TrainerClient, run_id: str) -> dict[str, str]:
    section: dict[str, str] = trainer.config(run_id)["artifacts"]["wandb"]
    return section


@pytest.mark.may_log("queue_paused")  # three quick ends in a row, where the machine is slow
def test_a_key_is_not_shown_after_a_run_a_failure_and_a_kill(
    daemon: LiveDaemon, trainer: TrainerClient, workspace: Workspace
) -> None:
    """R4.6: keys."""
    assert CANARY not in trainer.check(with_key()).model_dump_json()
    assert not secret_file().exists()
    done = trainer.submit(with_key(steps=3)).run_id
    failed = trainer.submit(with_key(exit=3, say="it broke")).run_id
    rejected = trainer.submit(with_key(reject="not today")).run_id
    long = trainer.submit(with_key(steps=1_000_000, dt=0.01)).run_id
    wait_for(lambda: (trainer.get_run(long).global_step or 0) > 2, "some steps")
    assert wandb_section(trainer, long)["api_key"] == "secret:wandb_api_key-2"
    assert secrets.find_secret("wandb_api_key") is None  # it is not the login of the user
    daemon.kill()
    trainer = daemon.start()
    os.kill(trainer.get_run(long).pid or 0, signal.SIGKILL)
    outcomes = [ended(trainer, run_id).outcome for run_id in (done, failed, rejected, long)]
    assert outcomes == ["succeeded", "failed", "rejected", "failed"]
    again = trainer.submit(trainer.config(done)).run_id
    ended(trainer, again)
    assert wandb_section(trainer, again) == wandb_section(trainer, done)
    assert leaks(workspace, trainer) == []
    assert secrets.resolve_reference(wandb_section(trainer, again)["api_key"]) == CANARY
    assert secrets.resolve_reference(wandb_section(trainer, again)["http_proxy"]) == EXTRAS["wandb_http_proxy"]
    trainer.close()


def test_a_refusal_neither_repeats_a_key_nor_stores_it(trainer: TrainerClient, workspace: Workspace) -> None:
    config = {"algo": "ppo", "env_id": "CartPole-v1"}
    payloads: list[dict[str, Any]] = [
        {**with_key(), "wandb_api_key": CANARY},
        {"metadata": {"worker": {"id": "scripted", "config": {}}, "password": CANARY}, "artifacts": {}},
        {"metadata": {"worker": {"id": "cleanrl", "config": {**config, "api_key": CANARY}}}, "artifacts": {}},
        {
            "metadata": {"worker": {"id": "cleanrl", "config": {**config, "extras": {**EXTRAS, "grid_limit": -1}}}},
            "artifacts": {},
        },
    ]
    for payload in payloads:
        for verb in (trainer.check, trainer.submit):
            with pytest.raises(MosaicError) as refused:
                verb(payload)
            assert CANARY not in str(refused.value)
            assert PASSWORD not in str(refused.value)
    ended(trainer, trainer.submit(scripted()).run_id)
    assert leaks(workspace, trainer) == []
    assert not secret_file().exists()


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_the_key_of_an_imported_run_is_moved_to_the_store(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path, form: str
) -> None:
    run_id = trainer.submit(scripted()).run_id
    folder = Path(ended(trainer, run_id).run_dir)
    trainer.delete_run(run_id)
    outside = tmp_path / "elsewhere" / run_id
    shutil.copytree(workspace.trash / run_id, outside, symlinks=True)
    data = json.loads((outside / "config.json").read_text())
    data["metadata"]["worker"]["config"]["extras"] = EXTRAS
    (outside / "config.json").write_text(json.dumps(data))
    source = outside
    if form == "zip":
        source = Path(shutil.make_archive(str(tmp_path / "moved"), "zip", outside.parent, run_id))
    trainer.import_run(str(source))
    assert folder.is_dir()
    assert leaks(workspace, trainer) == []
    assert secrets.resolve_reference(wandb_section(trainer, run_id)["api_key"]) == CANARY


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="the wandb extra is not installed")
def test_a_tracked_run_uses_its_key_and_shows_it_nowhere(
    workspace: Workspace, plugins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first upload fails, so that there is something to sync with the command line."""
    extras = {"wandb_api_key": CANARY, "track_wandb": True, "wandb_project_name": "p"}
    config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 2048, "extras": extras}
    with WandbServer(500) as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        with running_daemon(workspace, plugins) as (_, trainer):
            payload = {"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}}
            run_id = trainer.submit(payload).run_id
            assert ended(trainer, run_id).outcome == "succeeded"

            def failure() -> bool:
                return any(state.process is None and state.state == "failed" for state in trainer.read_wandb(run_id))

            wait_for(failure, "the sidecar to give up", 60)
            assert trainer.get_run(run_id).has_wandb
            server.mode = "ok"
            assert mosaic(workspace, "wandb", "probe", run_id, "--json").json["ok"]
            (synced,) = mosaic(workspace, "wandb", "sync", "--all", "--json").json
            assert (synced["state"], synced["error"]) == ("synced", None)
            assert server.history(run_id)
            (status,) = trainer.read_wandb(run_id)
            assert (status.state, status.url) == ("synced", synced["url"])
            assert leaks(workspace, trainer) == []
        assert server.keys == {"Basic " + base64.b64encode(f"api:{CANARY}".encode()).decode()}


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="the wandb extra is not installed")
def test_a_run_is_tracked_as_the_shell_says_that_submits_it(
    workspace: Workspace, plugins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.6: another shell started the daemon; the key of this one is in no file of the workspace."""
    config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 2048, "extras": {"track_wandb": True}}
    payload = {"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}}
    with WandbServer() as theirs, WandbServer() as ours:
        monkeypatch.setenv("WANDB_BASE_URL", theirs.url)
        with running_daemon(workspace, plugins) as (_, trainer):
            for name, value in {"BASE_URL": ours.url, "API_KEY": CANARY, "PROJECT": "mine", "RUN_ID": "else"}.items():
                monkeypatch.setenv(f"WANDB_{name}", value)
            run_id = trainer.submit(payload).run_id
            assert ended(trainer, run_id).outcome == "succeeded"
            wait_for(lambda: all(state.state == "synced" for state in trainer.read_wandb(run_id)), "the upload", 120)
            assert ours.history(run_id)
            assert leaks(workspace, trainer) == []
            monkeypatch.setenv("WANDB_MODE", "offline")
            later = trainer.submit(payload).run_id
            assert ended(trainer, later).outcome == "succeeded"

            def is_recorded() -> bool:
                return any(state.process is None and state.runs for state in trainer.read_wandb(later))

            wait_for(is_recorded, "the recording", 120)
            assert [state.state for state in trainer.read_wandb(later)] == ["offline"]
            assert later not in ours.runs
            (synced,) = mosaic(workspace, "wandb", "sync", later, "--json").json
            assert (synced["state"], bool(ours.history(later))) == ("synced", True)
        assert not theirs.history(run_id)
        assert ours.keys == {"Basic " + base64.b64encode(f"api:{CANARY}".encode()).decode()}
        kept = config_folder() / "tracking" / f"{run_id}.json"
        assert kept.stat().st_mode & 0o077 == 0
        assert set(json.loads(kept.read_text())["variables"]) == {"WANDB_BASE_URL", "WANDB_API_KEY", "WANDB_PROJECT"}
