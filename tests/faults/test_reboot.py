"""F38: after a reboot a run is lost with that reason, and continues from its last checkpoint on request."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.helpers.daemons import LiveDaemon, ended, wait_for
from tests.helpers.worker_runs import small

from mosaic.base.processes import boot_id, is_alive
from mosaic.base.workspace_trust import mark_own
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.trainer_client import TrainerClient

OTHER_BOOT = "00000000-1111-2222-3333-444444444444"


def test_a_run_that_was_active_before_a_reboot_is_lost_and_can_be_resumed(
    trainer: TrainerClient, workspace: Workspace, plugins: Path, tmp_path: Path
) -> None:
    """F38: a copy of the workspace of an active run, with the id of another boot; the original is not touched."""
    config = small(total_timesteps=100_000_000, extras={"checkpoint_every": 512})
    run_id = trainer.submit({"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}}).run_id
    wait_for(lambda: trainer.get_run(run_id).checkpoint_step, "its first checkpoint")
    attempt = trainer.get_run(run_id).attempts[-1]
    copy = Workspace(tmp_path / "after the reboot" / "var")
    trainer.pause_run(run_id)  # so that no file changes while it is copied
    wait_for(lambda: trainer.get_run(run_id).stage == "paused", "the pause")
    shutil.copytree(workspace.root, copy.root, symlinks=True, ignore=shutil.ignore_patterns("daemon.*"))
    folder = copy.run(run_id)
    for file in (folder.record, folder.keeper):
        text = file.read_text().replace(boot_id(), OTHER_BOOT)
        file.write_text(text.replace(str(workspace.root), str(copy.root)))  # the same folder, after the reboot
    mark_own(copy)
    rebooted = LiveDaemon(copy, plugins)
    with rebooted.start() as after:
        view = ended(after, run_id)
        assert view.outcome == "lost"
        assert (view.reason or "").startswith("The machine was restarted while it ran.")
        assert f"mosaic resume {run_id}" in (view.reason or "")
        assert all(process is not None and is_alive(process) for process in (attempt.keeper, attempt.worker))
        after.resume(run_id)
        wait_for(lambda: after.get_run(run_id).stage == "running", "the second attempt")
        messages = [entry.message for entry in after.get_run(run_id).history]
        assert len([message for message in messages if message.startswith("Resumed from step")]) == 1
        after.cancel_run(run_id)
        assert ended(after, run_id).outcome == "cancelled"
    rebooted.end()
    trainer.resume(run_id)
    trainer.cancel_run(run_id)
    assert ended(trainer, run_id).outcome == "cancelled"
