"""The state of a run's uploads to W&B."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.helpers.run_folders import make_run_folder

from mosaic.contracts.errors import NotAllowed
from mosaic.contracts.folder import RunFolder
from mosaic.features.tracking.sidecar import sync_state
from mosaic.features.tracking.sidecar.sync_state import SyncEntry, SyncState
from mosaic.features.tracking.sidecar.wandb_connection import WandbProblem
from mosaic.features.tracking.sidecar.wandb_sync import offline_warning


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = make_run_folder(tmp_path)
    folder.path.mkdir(parents=True)
    return folder


def offline_run(folder: RunFolder, name: str = "offline-run-20260101_000000-a", size: int = 10) -> str:
    path = folder.wandb / name
    path.mkdir(parents=True)
    (path / "run-a.wandb").write_bytes(b"x" * size)
    return name


def test_a_run_without_wandb_data_has_no_state(folder: RunFolder) -> None:
    assert sync_state.read(folder) is None


def test_a_folder_without_an_entry_is_added(folder: RunFolder) -> None:
    offline = offline_run(folder)
    synced = offline_run(folder, "offline-run-20260102_000000-b")
    (folder.wandb / synced / "run-a.wandb.synced").touch()
    online = offline_run(folder, "run-20260103_000000-c")
    (folder.wandb / "latest-run").symlink_to(online)
    state = sync_state.read(folder)
    assert state is not None
    assert {name: entry.state for name, entry in state.entries.items()} == {
        offline: "offline", synced: "synced", online: "online",
    }  # fmt: skip
    assert state.entries[offline].size_bytes == 10
    assert state.pending_folders == [offline]
    assert state.state == "offline"


def test_a_recording_that_was_killed_before_it_was_listed_is_not_complete(folder: RunFolder) -> None:
    """It would be uploaded as it is, and what it lacks would be lost."""
    name = offline_run(folder)
    sync_state.write(folder, SyncState(folder.run_id, project="p"))
    state = sync_state.read(folder)
    assert state is not None
    assert (state.pending_folders, state.has_complete_recording) == ([name], False)


def test_what_is_written_is_read_back(folder: RunFolder) -> None:
    name = offline_run(folder)
    state = SyncState(
        folder.run_id, {name: SyncEntry("failed", 10, 0, 5, True, "W&B is down.", "http://w/r")}, "p", "e"
    )
    sync_state.write(folder, state)
    assert sync_state.read(folder) == state
    data = json.loads(folder.wandb_ledger.read_text())
    assert (data["state"], data["url"], data["error"]) == ("failed", "http://w/r", "W&B is down.")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"runs": 3}', '{"runs": {"a": {"unknown": 1}}}'])
def test_a_damaged_file_is_rebuilt_from_the_folders(folder: RunFolder, text: str) -> None:
    name = offline_run(folder)
    folder.wandb_ledger.write_text(text)
    state = sync_state.read(folder)
    assert state is not None
    assert state.pending_folders == [name]


def test_an_upload_whose_process_is_gone_was_interrupted(folder: RunFolder) -> None:
    name = offline_run(folder)
    sync_state.write(folder, SyncState(folder.run_id, {name: SyncEntry("syncing", size_bytes=10)}))
    state = sync_state.claim(folder)
    sync_state.write(folder, state)
    assert sync_state.read(folder) == state, "it is still alive"
    assert state.process is not None
    state.process["start"] = "0"
    sync_state.write(folder, state)
    after = sync_state.read(folder)
    assert after is not None
    assert (after.state, after.error, after.process) == (
        "failed",
        sync_state.INTERRUPTED_MESSAGE,
        None,
    )


def test_the_worst_entry_is_the_state_of_the_run_and_a_superseded_one_is_ignored() -> None:
    def state(*states: str) -> str:
        return SyncState("r", {str(i): SyncEntry(state) for i, state in enumerate(states)}).state

    assert state("synced", "failed", "syncing") == "syncing"
    assert state("synced", "offline", "failed") == "failed"
    assert state("superseded", "synced") == "synced"
    assert state("superseded") == "offline"


def test_one_process_at_a_time_may_upload_a_run(folder: RunFolder) -> None:
    with sync_state.acquire_lock(folder), pytest.raises(BlockingIOError), sync_state.acquire_lock(folder):
        pass
    with sync_state.acquire_lock(folder):
        pass


def test_a_sidecar_that_waited_until_its_run_was_deleted_is_not_admitted(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "mosaic.features.tracking.sidecar.sync_state.fcntl.flock",
        lambda *_: folder.path.rename(folder.path.with_name("trash")),
    )
    with pytest.raises(FileNotFoundError), sync_state.acquire_lock(folder):
        pytest.fail("it would record into the trash")
    assert not folder.path.exists()


def test_an_upload_of_the_users_is_not_ended_by_a_move(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_state, "END_TIMEOUT_S", 0.0)
    folder.wandb.mkdir()
    with (
        sync_state.acquire_lock(folder),
        pytest.raises(NotAllowed, match="is being uploaded to W&B"),
        sync_state.hold_for_move(folder),
    ):
        pytest.fail("the folder would be moved")
    with sync_state.hold_for_move(folder) as has_ended_one:
        assert has_ended_one is False


def test_a_run_that_was_deleted_meanwhile_does_not_reappear(folder: RunFolder) -> None:
    shutil.rmtree(folder.path)
    with pytest.raises(FileNotFoundError):
        sync_state.write(folder, SyncState(folder.run_id))
    assert not folder.path.exists()


def test_a_failed_upload_has_an_error_and_a_successful_one_clears_it() -> None:
    entry = SyncEntry()
    entry.apply_result(WandbProblem("W&B cannot be reached (connection refused)"), 7)
    assert (entry.state, entry.error, entry.sent_bytes) == ("failed", "W&B cannot be reached (connection refused).", 0)
    entry.apply_result(None, 9)
    assert (entry.state, entry.error, entry.sent_bytes) == ("synced", None, 9)


def test_the_warning_ends_with_the_command_to_sync() -> None:
    assert offline_warning(WandbProblem("W&B cannot be reached"), "01K") == (
        "W&B cannot be reached. The run is stored offline; sync it later with: mosaic wandb sync 01K"
    )


def test_a_superseded_recording_has_no_error_to_report() -> None:
    """The upload of a resumed run succeeded; that of its first attempt had been interrupted."""
    interrupted = SyncEntry("superseded", error="The upload was interrupted.")
    assert SyncState("R", {"a": interrupted, "b": SyncEntry("synced")}).error is None
    assert SyncState("R", {"a": interrupted, "b": SyncEntry("failed", error="W&B is down.")}).error == "W&B is down."
