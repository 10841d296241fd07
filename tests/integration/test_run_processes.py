"""Producers of runs in their own processes: signaled, out of disk space."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.daemons import wait_for
from tests.helpers.run_folders import events, journal_points, make_run_folder, tensorboard_points

from mosaic.contracts.folder import RunFolder

CHILD = Path(__file__).parents[1] / "helpers" / "run_child.py"


@contextmanager
def child(behavior: str, folder: RunFolder) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(CHILD), behavior, str(folder.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_the_event_file_of_a_killed_run_has_every_point_of_its_journal(tmp_path: Path) -> None:
    """F3: killed as soon as the journal has grown."""
    folder = make_run_folder(tmp_path)
    with child("log_forever", folder) as process:
        for count in range(1, 6):
            wait_for(lambda: folder.journal.exists() and len(events(folder, "metrics")) >= count, "points")  # noqa: B023
        process.kill()
    points = journal_points(folder)
    shown = tensorboard_points(folder.tensorboard)
    assert points["losses/value_loss"]
    assert {tag: shown[tag][: len(rows)] for tag, rows in points.items()} == points


def test_sigterm_requests_a_stop(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path)
    with child("step_until_stopped", folder) as process:
        assert first_line(process) == "ready"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert events(folder, "finished")[0]["outcome"] == "stopped"


def test_a_second_ctrl_c_interrupts(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path)
    with child("ignore_interrupt", folder) as process:
        assert first_line(process) == "ready"
        process.send_signal(signal.SIGINT)
        assert first_line(process) == "requested"
        process.send_signal(signal.SIGINT)
        process.wait(30)
        assert process.stderr is not None
        assert "KeyboardInterrupt" in process.stderr.read()


def test_a_forked_child_dies_of_sigterm_and_leaves_ctrl_c_to_its_parent(tmp_path: Path) -> None:
    with child("fork_child", make_run_folder(tmp_path)) as process:
        assert int(first_line(process)) == -signal.SIGTERM
        assert process.wait(30) == 0


def test_a_full_disk_does_not_stop_the_run_or_lose_points(tmp_path: Path) -> None:
    """F9: journal and TensorBoard are complete afterwards."""
    folder = make_run_folder(tmp_path)
    with child("fill_disk", folder) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.split() == ["1000", "None", "3000"]
    assert err.count("The journal cannot be written") == 1
    assert err.count("The TensorBoard event file cannot be written") == 1
    assert [event["code"] for event in events(folder, "warning")] == ["checkpoint_failed"]
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["1000", "3000", "best", "last"]
    points = journal_points(folder)
    assert [row[0] for row in points["losses/value_loss"]] == list(range(1, 4001))
    assert tensorboard_points(folder.tensorboard) == points


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = ("pydantic", "torch", "gymnasium", "grpc", "tensorboard", "safetensors", "google_crc32c")
    program = f"import sys, mosaic.worker.run; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
