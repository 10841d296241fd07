"""Producers of runs in processes of their own: killed, signalled, out of disk."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.run_folders import a_folder, events, journal_points, tensorboard_points

from mosaic.contracts.folder import RunFolder
from mosaic.journal import read_all
from mosaic.run import last_good_checkpoint
from mosaic.run.checkpoints import is_intact, list_steps, recover_interrupted_writes

CHILD = Path(__file__).parents[1] / "helpers" / "run_child.py"


@contextmanager
def child(how: str, folder: RunFolder) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(CHILD), how, str(folder.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_kill_at_any_moment_of_saving_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    chance = random.Random(7)
    for _ in range(30):
        with child("saving", folder) as process:
            said = [first_line(process)]
            time.sleep(chance.uniform(0, 0.03))
            process.kill()
            assert process.stdout is not None
            said += process.stdout.read().split()
        for step in list_steps(folder):
            assert is_intact(folder.checkpoint(step))
        recover_interrupted_writes(folder)
        found = last_good_checkpoint(folder)
        assert found is not None
        assert found.step >= int(said[-1])
        assert found.weights["w"][0] == found.arrays["a"][0] == found.step
        assert found.skipped == ()
    assert [event["seq"] for event in read_all(folder.journal)] == list(range(1, 1 + len(read_all(folder.journal))))


def test_sigterm_asks_for_a_stop(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    with child("stepping", folder) as process:
        assert first_line(process) == "ready"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert events(folder, "finished")[0]["outcome"] == "stopped"


def test_a_second_ctrl_c_interrupts(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    with child("stubborn", folder) as process:
        assert first_line(process) == "ready"
        process.send_signal(signal.SIGINT)
        assert first_line(process) == "heard"
        process.send_signal(signal.SIGINT)
        process.wait(30)
        assert process.stderr is not None
        assert "KeyboardInterrupt" in process.stderr.read()


def test_a_forked_child_dies_of_sigterm_and_leaves_ctrl_c_to_its_parent(tmp_path: Path) -> None:
    with child("forking", a_folder(tmp_path)) as process:
        assert int(first_line(process)) == -signal.SIGTERM
        assert process.wait(30) == 0


def test_a_full_disk_stops_nothing_and_loses_no_point(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    with child("full_disk", folder) as process:
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


def test_importing_the_room_imports_nothing_heavy() -> None:
    heavy = ("pydantic", "torch", "gymnasium", "grpc", "tensorboard", "safetensors", "google_crc32c")
    program = f"import sys, mosaic.run; print([name for name in {heavy} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
