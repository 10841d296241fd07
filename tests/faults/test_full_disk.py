"""F9: a full disk is shown, refuses new runs, and loses nothing of the active ones."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.helpers.daemons import LiveDaemon, ended, scripted, wait_for
from tests.helpers.run_folders import events, make_run_folder
from tests.helpers.worker_runs import small, train_here

from mosaic.contracts.errors import DiskFull
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.worker.checkpoints import last_good_checkpoint

CHILD = Path(__file__).parents[1] / "helpers" / "run_child.py"


@pytest.fixture
def small_disk(workspace: Workspace) -> Iterator[Path]:
    """The workspace on a disk of 16 MB of its own."""
    workspace.root.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(workspace.root)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("This user may not mount a file system.")
    yield workspace.root
    subprocess.run(["umount", "-l", str(workspace.root)], check=True)


def fill(folder: Path) -> Path:
    path = folder / "filler"
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
    return path


@pytest.mark.may_log("disk_full", "run_not_started")
def test_a_full_disk_is_shown_and_nothing_is_lost(small_disk: Path, workspace: Workspace, plugins: Path) -> None:
    """F9: the bytes free are shown, a submission is refused with that reason, and a new daemon starts and answers."""
    daemon = LiveDaemon(workspace, plugins)
    trainer = daemon.start()
    run_id = trainer.submit(scripted(steps=1_000_000, dt=0.01)).run_id
    wait_for(lambda: (trainer.get_run(run_id).global_step or 0) > 3, "its first steps")
    pid = trainer.get_run(run_id).pid
    filler = fill(small_disk)
    assert "bytes are free" in (trainer.get_status().full_disk or "")
    with pytest.raises(DiskFull, match=r"is full: [0-9,]+ bytes are free"):
        trainer.submit(scripted(steps=3))
    trainer.close()
    daemon.kill()
    trainer = daemon.start()
    assert [(view.run_id, view.stage, view.pid) for view in trainer.runs()] == [(run_id, "running", pid)]
    program = "import sys; from mosaic.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "runs", "--var", str(workspace.root)]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert listed.returncode == 0, listed.stderr
    assert "bytes are free" in listed.stderr
    filler.unlink()
    wait_for(lambda: trainer.get_status().full_disk is None, "the space to be seen")
    reached = trainer.get_run(run_id).global_step or 0
    wait_for(lambda: (trainer.get_run(run_id).global_step or 0) > reached, "further steps")
    trainer.cancel_run(run_id)
    view = ended(trainer, run_id)
    assert view.outcome == "cancelled"
    (series,) = trainer.metrics(run_id, ["scripted/step"])
    assert list(series.steps) == list(range(1, (view.global_step or 0) + 1))
    trainer.close()
    daemon.end()


@pytest.mark.may_log("disk_full", "run_not_started")
def test_a_run_can_be_cancelled_on_a_full_disk(small_disk: Path, workspace: Workspace, plugins: Path) -> None:
    """F9: its processes end, and its end is recorded when there is space."""
    daemon = LiveDaemon(workspace, plugins)
    trainer: TrainerClient = daemon.start()
    run_id = trainer.submit(scripted(steps=1_000_000, dt=0.01)).run_id
    pid = wait_for(lambda: trainer.get_run(run_id).pid, "its worker")
    filler = fill(small_disk)
    with suppress(DiskFull):  # the stop is sent even if it cannot be recorded
        trainer.cancel_run(run_id)
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "its worker to end")
    filler.unlink()
    assert ended(trainer, run_id).outcome == "cancelled"
    trainer.close()
    daemon.end()


def test_a_run_that_ends_on_a_full_disk_waits_and_saves_everything(tmp_path: Path) -> None:
    """F9: the last checkpoint and the journal are written when there is space."""
    folder = make_run_folder(tmp_path)
    command = [sys.executable, str(CHILD), "finish_on_full_disk", str(folder.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "full\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        out, _ = process.communicate("free\n", timeout=60)
    assert (process.returncode, out) == (0, "10\n")
    checkpoint = last_good_checkpoint(folder)
    assert checkpoint is not None
    assert checkpoint.step == 10
    assert [event["outcome"] for event in events(folder, "finished")] == ["succeeded"]
    assert [event["code"] for event in events(folder, "warning")] == ["checkpoint_failed"]


def test_the_model_file_of_a_finished_training_waits_for_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F9: a training that is done is not lost because its last file does not fit."""
    errors = [OSError(errno.ENOSPC, "No space left on device")] * 2

    def save_when_there_is_space(path: Path, *_: object) -> None:
        if errors:
            raise errors.pop()
        path.write_text("model", encoding="utf-8")

    monkeypatch.setattr("mosaic.worker.torch_files.save_state_dict", save_when_there_is_space)
    folder = train_here(make_run_folder(tmp_path), small(total_timesteps=64))
    assert [event["code"] for event in events(folder, "warning")] == ["model_failed"]
    assert [event["outcome"] for event in events(folder, "finished")] == ["succeeded"]
    (model,) = folder.models.rglob("*.cleanrl_model")
    assert json.loads(folder.analytics.read_text())["model"] == str(model.relative_to(folder.path))
