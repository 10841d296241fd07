"""F52: a workspace that somebody else made, as in a cloned repository, is read, and nothing of it is executed."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.commands import mosaic
from tests.helpers.daemons import LiveDaemon, ended, scripted, wait_for
from tests.helpers.probe_scripts import script_payload
from tests.helpers.recordings import record_episodes
from tests.helpers.worker_runs import small

from mosaic.base.workspace_trust import MARK_PREFIX, has_mark, mark_own
from mosaic.contracts.errors import BadInput, ConfigRefused, NotAllowed, ReadOnlyWorkspace
from mosaic.contracts.folder import RECORDING_NAME, TRUST_VARIABLE, Workspace
from mosaic.contracts.payload import Imports
from mosaic.features.replay.api import replay_episodes
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.worker.envs import user_modules

pytestmark = pytest.mark.may_log("index_rebuilt", "run_not_started")
MODULE = "canary_env"
ENV_ID = f"{MODULE}:CartPole-v1"
PLANTED, SCRIPT, BY_PROC = "01M7Q9CB78W16EBXNDKCEV1LX1", "01M7Q9CB78W16EBXNDKCEV1LX2", "01M7Q9CB78W16EBXNDKCEV1LX3"


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """Written by whatever is executed of the workspace; a module of that effect is in the folder `modules`."""
    path = tmp_path / "canary"
    (tmp_path / "modules").mkdir()
    write_module(tmp_path / "modules", path)
    return path


def write_module(folder: Path, canary: Path) -> None:
    code = f"import pathlib\nimport gymnasium\npathlib.Path({str(canary)!r}).touch()\n"
    (folder / f"{MODULE}.py").write_text(code)


def plant(workspace: Workspace, run_id: str, payload: dict[str, Any], **record: Any) -> Path:
    """A run as anybody can write it, without MOSAIC."""
    folder = workspace.run(run_id)
    folder.path.mkdir(parents=True)
    worker = payload["metadata"]["worker"]
    fields = {"run_id": run_id, "worker": worker["id"], "stage": "queued", "submitted_at": 1.0, "queued_at": 1.0}
    folder.record.write_text(json.dumps({**fields, **record}))
    folder.config.write_text(json.dumps(payload))
    return folder.path


def importing(folder: str) -> dict[str, Any]:
    """A payload that imports the module from this folder."""
    imports = {"modules": [MODULE], "folders": [folder]}
    worker = {"id": "cleanrl", "config": small(env_id=ENV_ID), "imports": imports}
    return {"metadata": {"worker": worker}, "artifacts": {}}


@contextmanager
def opened(workspace: Workspace, plugins: Path, *options: str, **variables: str) -> Iterator[TrainerClient]:
    """A daemon that is ended without its runs: in a workspace of others it cancels none."""
    daemon = LiveDaemon(workspace, plugins, *options, **variables)
    with daemon.start() as trainer:
        yield trainer
    daemon.stop()


def test_a_cloned_workspace_is_read_and_nothing_is_executed_until_it_is_trusted(
    workspace: Workspace, plugins: Path, canary: Path, tmp_path: Path
) -> None:
    """F52: R2.9: queued modules and scripts, and a finished script that is resubmitted."""
    workspace.configs.mkdir(parents=True)
    (workspace.configs / ".gitkeep").touch()
    plant(workspace, PLANTED, importing(str(tmp_path / "modules")))
    of_run = tmp_path / "canary of the run"
    write_module(plant(workspace, BY_PROC, importing("/proc/self/cwd")), of_run)
    script = script_payload(["touch", str(canary)], tmp_path)
    plant(workspace, SCRIPT, script, stage="finished", outcome="succeeded")
    before = {path: path.read_bytes() for path in workspace.runs.rglob("*.*")}
    with opened(workspace, plugins) as trainer:
        done = mosaic(workspace, "runs")
        assert done.code == 0, done.err
        assert "This workspace was not created by you, so it is read-only. 2 queued runs will not start." in done.err
        assert [mosaic(workspace, *words).code for words in (("show", SCRIPT), ("config", PLANTED))] == [0, 0]
        for words in (
            *(("resubmit", SCRIPT), ("resume", SCRIPT, "--trust"), ("cancel", PLANTED), ("archive", SCRIPT)),
            *(("delete", SCRIPT, "--yes"), ("run", "--detach", "--", "true"), ("daemon", "stop", "--runs")),
        ):
            refused = mosaic(workspace, "--json", *words)
            assert refused.code == 2, (words, refused)
            assert refused.json["error"].endswith("If you trust what is in it: mosaic workspace trust"), words
        with pytest.raises(ReadOnlyWorkspace):
            trainer.submit(trainer.config(SCRIPT), dict(os.environ), is_trusted=True)
        assert all(view.is_imported for view in trainer.runs())
        assert [view.wait_reason for view in trainer.runs(status=("queued",))] == [
            "this workspace is read-only, place 2",
            "this workspace is read-only, place 1",
        ]
        asked = mosaic(workspace, "workspace", "trust")
        assert (asked.code, asked.err.splitlines()[-1]) == (
            2,
            "The workspace was not trusted: there is no terminal to confirm in. Use --yes.",
        )
        assert mosaic(workspace, "--json", "workspace").json["is_read_only"]
        assert {path: path.read_bytes() for path in workspace.runs.rglob("*.*")} == before
        assert not any(path.exists() for path in (canary, of_run))

        trusted = mosaic(workspace, "--json", "workspace", "trust", "--yes")
        assert (trusted.code, trusted.json["is_read_only"]) == (0, False)
        assert ended(trainer, PLANTED).outcome == "succeeded"
        assert canary.exists()
        canary.unlink()
        view = ended(trainer, BY_PROC)
        assert (view.outcome, of_run.exists()) == ("failed", False)
        assert "'/proc/self/cwd' is in /proc, where no modules are" in (view.reason or "")
        assert ended(trainer, trainer.submit(script, dict(os.environ)).run_id).outcome == "succeeded"
        assert canary.exists()
    with opened(workspace, plugins) as trainer:
        assert not trainer.get_status().is_read_only
        assert mosaic(workspace, "--json", "workspace", "untrust").json["is_read_only"]
        with pytest.raises(ReadOnlyWorkspace):
            trainer.submit(scripted())
    assert not has_mark(workspace)


def test_a_daemon_of_a_foreign_workspace_ends_though_runs_wait(workspace: Workspace, plugins: Path) -> None:
    """F52: the queue of somebody else keeps no process."""
    plant(workspace, PLANTED, scripted(steps=3))
    daemon = LiveDaemon(workspace, plugins, "--idle-s", "0.2")
    daemon.launch()
    assert daemon.process is not None
    assert daemon.process.wait(timeout=90) == 0


def test_processes_that_a_foreign_record_names_are_left_alone(workspace: Workspace, plugins: Path) -> None:
    """F52: an identity without a start matches any process with that number, which here is this test's."""
    keeper = {"pid": os.getpid(), "start": "", "boot_id": ""}
    attempt = {"number": 1, "slot": 1, "started_at": 1.0, "keeper": keeper, "worker": keeper}
    folder = plant(workspace, PLANTED, scripted(), stage="running", attempts=[attempt])
    (folder / "inbox.jsonl").symlink_to(folder.parents[3] / "outside")
    with opened(workspace, plugins) as trainer:
        assert trainer.get_run(PLANTED).stage == "running"
        for change in (trainer.cancel_run, trainer.pause_run, trainer.delete_run):
            with pytest.raises(ReadOnlyWorkspace):
                change(PLANTED)
    assert not (folder.parents[3] / "outside").exists()


def test_a_mark_is_worth_something_in_its_own_folder_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F52: it moves with its workspace, and not with a copy, a clone at the same place, or another user's key."""
    workspace = Workspace(tmp_path / "var")
    mark_own(workspace)
    (mark,) = workspace.trainer.glob(f"{MARK_PREFIX}*")
    assert mark.stat().st_mode & 0o777 == 0o600
    shutil.copytree(workspace.root, tmp_path / "copy")
    assert not has_mark(Workspace(tmp_path / "copy"))
    moved = Workspace(workspace.root.rename(tmp_path / "moved"))
    assert has_mark(moved)
    mark = moved.trainer / mark.name
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other user"))
        assert not has_mark(moved)
        mark_own(moved)  # as on another machine that shares the folder
        assert has_mark(moved)
    assert has_mark(moved)
    now = int(time.time()) + 10
    os.utime(mark, (now, now))  # what git makes is new, also where it gets the same inode
    assert not has_mark(moved)
    mark.unlink()
    mark.symlink_to(moved.trainer / "elsewhere")
    assert not has_mark(moved)


def test_a_workspace_is_ones_own_where_no_key_can_be_kept(workspace: Workspace, plugins: Path, tmp_path: Path) -> None:
    """F52: in a container without a home, the daemon that made it works, and says what a later one needs."""
    (tmp_path / "a file").touch()
    without_home = {"XDG_CONFIG_HOME": str(tmp_path / "a file")}
    with opened(workspace, plugins, **without_home) as trainer:
        ended(trainer, trainer.submit(scripted(steps=2)).run_id)
        assert f"Set {TRUST_VARIABLE}={workspace.root}" in (trainer.get_status().trust_problem or "")
    with opened(workspace, plugins, **without_home) as trainer:
        assert trainer.get_status().is_read_only
        assert not trainer.trust_workspace(True).is_read_only
        assert TRUST_VARIABLE in (trainer.get_status().trust_problem or "")
    with opened(workspace, plugins, **without_home, **{TRUST_VARIABLE: str(workspace.root)}) as trainer:
        status = trainer.get_status()
        assert (status.is_read_only, status.trust_problem) == (False, None)
        ended(trainer, trainer.submit(scripted(steps=2)).run_id)
        with pytest.raises(NotAllowed, match=TRUST_VARIABLE):
            trainer.trust_workspace(False)


def test_an_index_alone_brings_no_runs_into_a_new_workspace(
    workspace: Workspace, plugins: Path, tmp_path: Path
) -> None:
    """F52: an empty workspace becomes the user's own, and what an index in it lists is dropped."""
    source = Workspace(tmp_path / "source")
    with opened(source, plugins) as trainer:
        ended(trainer, trainer.submit(scripted(steps=2)).run_id)
    workspace.runs.mkdir(parents=True)
    shutil.copy(source.index, workspace.index)
    with opened(workspace, plugins) as trainer:
        assert (trainer.get_status().is_read_only, trainer.runs()) == (False, [])


@pytest.mark.parametrize("kind", ["/proc/self/cwd", "/dev/fd/../shm", "link", "run", "run elsewhere", "trainer"])
def test_no_module_is_imported_from_a_process_or_a_run(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path, kind: str
) -> None:
    """F52: by name, also through a link, at a submission and at a resume."""
    run_id = trainer.submit(scripted(steps=2)).run_id
    folder = Path(ended(trainer, run_id).run_dir)
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "link").symlink_to("/proc/self")
    places = {"link": tmp_path / "link" / "cwd", "run": folder / "logs", "run elsewhere": tmp_path / "run" / "logs"}
    place = str(places.get(kind, workspace.probe if kind == "trainer" else kind))
    with pytest.raises(ConfigRefused, match=r"LOG705 metadata\.worker\.imports\.folders: .* is in"):
        trainer.submit(importing(place))


def test_a_replay_imports_no_module_for_a_foreign_workspace(
    tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F52: the process that simulates the episodes is the client's, without a daemon."""
    folder = plant(Workspace(tmp_path / "var"), PLANTED, importing(str(tmp_path / "modules")), stage="finished")
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.setattr(user_modules, "_allowed", Imports(modules=(MODULE,)))
    record_episodes(folder / RECORDING_NAME, ENV_ID, [1], steps=5)
    canary.unlink()
    with pytest.raises(BadInput, match=f"the module '{MODULE}' is not allowed"):
        list(replay_episodes(folder / RECORDING_NAME))
    assert not canary.exists()
    mark_own(Workspace(tmp_path / "var"))
    (report,) = replay_episodes(folder / RECORDING_NAME)
    assert report.is_identical
    assert canary.exists()


def test_a_running_daemon_keeps_a_workspace_that_was_moved(workspace: Workspace, plugins: Path, tmp_path: Path) -> None:
    """F52: the user's own stays the user's own on its disk; its copy has to be trusted."""
    with opened(workspace, plugins) as trainer:
        ended(trainer, trainer.submit(scripted(steps=2)).run_id)
    moved = Workspace(tmp_path / "moved")
    workspace.root.rename(moved.root)
    shutil.copytree(moved.root, tmp_path / "copy", symlinks=True)
    with opened(moved, plugins) as trainer:
        assert not trainer.get_status().is_read_only
    with opened(Workspace(tmp_path / "copy"), plugins) as trainer:
        assert trainer.get_status().is_read_only
        assert len(trainer.runs()) == 1
    wait_for(lambda: not moved.daemon_file.exists(), "the daemon to end")
