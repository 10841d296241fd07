"""Lanes between real processes: at full speed, killed, and cleaned up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.helpers.daemons import wait_for
from tests.helpers.fault_table import count_kills
from tests.helpers.lane_writer import COLORS

from mosaic.base.fastlane import LaneReader, lane_indices, lanes_folder, reap, reap_all
from mosaic.base.fastlane.lane_files import lanes_root

WRITER = Path(__file__).parents[1] / "helpers" / "lane_writer.py"
READS = 300_000
READER = """
import sys
from mosaic.base.fastlane import LaneReader
reader = LaneReader(sys.argv[1])
while True:
    if reader.read_newest() is not None:
        print("seen", flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return lanes_folder(tmp_path / "it's a run")


@contextmanager
def writer(folder: str, lanes: int = 1, side: int = 64) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(WRITER), folder, str(lanes), str(side)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("side", [16, 256])
def test_no_torn_frame_is_read_from_a_writer_at_full_speed(folder: str, side: int) -> None:
    """F37, R5.3: solid colors as fast as they can be written."""
    reader = LaneReader(folder)
    frames = reads = 0
    with writer(folder, side=side):
        while reads < READS or frames < 100:
            reads += 1
            frame = reader.read_newest()
            if frame is not None:
                frames += 1
                color = frame.step % COLORS
                assert int(frame.image[0, 0, 0]) == color
                assert int(frame.image.min()) == int(frame.image.max()) == color
                assert frame.episode == frame.step
    assert reap(folder) == 1


def test_a_killed_reader_does_not_block_the_writer(folder: str) -> None:
    """F35: killed in the middle of a read."""
    with writer(folder) as process:
        for _ in range(3):
            reader = subprocess.Popen([sys.executable, "-c", READER, folder], stdout=subprocess.PIPE, text=True)
            assert reader.stdout is not None
            assert reader.stdout.readline() == "seen\n"
            reader.kill()
            reader.wait()
            reader.stdout.close()
        own = LaneReader(folder)
        first = wait_for(own.read_newest, "a frame")
        assert wait_for(lambda: (frame := own.read_newest()) and frame.number > first.number, "more frames")
        assert process.poll() is None
    reap(folder)


def test_nothing_is_left_of_killed_writers(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """F36: the process group of each is killed."""
    kills = count_kills(8)
    record_property("tries", kills)
    for attempt in range(kills):
        folder = lanes_folder(tmp_path / f"run {attempt}")
        with writer(folder, lanes=3) as process:
            assert lane_indices(folder) == [0, 1, 2]
            assert reap(folder) == 0
            os.killpg(process.pid, signal.SIGKILL)
    assert reap_all() == 3 * kills
    assert not os.path.exists(lanes_root())


def test_each_process_writes_the_lane_of_its_environment(folder: str) -> None:
    """As with AsyncVectorEnv, each environment lives in its own process."""
    code = """
import sys, numpy, time
from mosaic.base.fastlane import LaneWriter
lane = LaneWriter(sys.argv[1], int(sys.argv[2]), lane_count=3)
while True:
    if lane.is_due():
        lane.publish(numpy.full((4, 4, 3), int(sys.argv[2]), numpy.uint8),
                     episode=1, step=1, reward=0.0, episodic_return=0.0, render_s=0.0)
    time.sleep(0.001)
"""
    children = [subprocess.Popen([sys.executable, "-c", code, folder, str(index)]) for index in range(3)]
    try:
        wait_for(lambda: lane_indices(folder) == [0, 1, 2], "three lanes")
        for index in range(3):
            reader = LaneReader(folder, index)
            assert (wait_for(reader.read_newest, "a frame").image == index).all()
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert reap(folder) == 3


def test_a_forked_child_neither_writes_nor_removes_its_parents_lane(folder: str) -> None:
    code = """
import os, sys
from mosaic.base.fastlane import LaneReader, LaneWriter
lane = LaneWriter(sys.argv[1], 0)
LaneReader(sys.argv[1]).read_newest()
child = os.fork()
if child == 0:
    is_due = lane.is_due()
    lane.close()
    os._exit(is_due)
status = os.waitpid(child, 0)[1]
assert status == 0 and lane.is_due() and os.path.exists(sys.argv[1]), status
lane.close()
"""
    assert subprocess.run([sys.executable, "-c", code, folder], check=False).returncode == 0
