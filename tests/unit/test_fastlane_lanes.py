"""One lane: what a writer puts in and what a reader gets out, whatever happens to the file."""

from __future__ import annotations

import errno
import gc
import json
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mosaic.fastlane import (
    BGRX32,
    RGB24,
    LaneReader,
    LaneView,
    LaneWriter,
    lane_indices,
    lanes_folder,
    layout,
    reap,
    reap_all,
)
from mosaic.fastlane import reader as reading
from mosaic.fastlane import writer as writing
from mosaic.fastlane.lane_files import heartbeat_path, lane_path, lanes_root


class Clock:
    """Stands in for the time module."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.perf_counter = time.perf_counter

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return lanes_folder(tmp_path / "it's a run")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(writing, "time", made)
    monkeypatch.setattr(reading, "time", made)
    return made


@pytest.fixture
def lane(folder: str, clock: Clock) -> Iterator[LaneWriter]:
    made = LaneWriter(folder, 0)
    yield made
    made.close()


def solid(value: int, height: int = 4, width: int = 6, channels: int = 3) -> Any:
    return np.full((height, width, channels), value, np.uint8)


def publish(lane: LaneWriter, frame: Any, **facts: Any) -> None:
    lane.publish(frame, **{"episode": 1, "step": 1, "reward": 0.0, "episodic_return": 0.0, "render_s": 0.001, **facts})


def test_a_frame_arrives_with_what_is_told_of_it(lane: LaneWriter, folder: str) -> None:
    reader = LaneReader(folder)
    publish(lane, solid(7), episode=3, step=41, reward=-1.5, episodic_return=12.25)
    frame = reader.read_newest()
    assert frame is not None
    assert (frame.image == 7).all()
    assert (frame.format, frame.episode, frame.step, frame.reward, frame.episodic_return) == (RGB24, 3, 41, -1.5, 12.25)
    assert (frame.rate_hz, frame.pace, frame.render_s) == (30.0, "30 Hz", 0.001)
    assert abs(frame.rendered_at - time.time()) < 60
    assert reader.state == "connected"


def test_the_same_frame_is_given_once_and_only_the_newest(lane: LaneWriter, folder: str) -> None:
    reader = LaneReader(folder)
    for value in range(1, 12):
        publish(lane, solid(value))
    frame = reader.read_newest()
    assert frame is not None
    assert (frame.image == 11).all()
    assert reader.read_newest() is None


def test_four_channels_are_told_apart_from_three(lane: LaneWriter, folder: str) -> None:
    publish(lane, solid(1, channels=4))
    frame = LaneReader(folder).read_newest()
    assert frame is not None
    assert (frame.format, frame.image.shape) == (BGRX32, (4, 6, 4))


def test_a_new_size_is_a_new_generation_that_readers_follow_at_once(lane: LaneWriter, folder: str) -> None:
    reader = LaneReader(folder)
    publish(lane, solid(1))
    first = reader.read_newest()
    publish(lane, solid(2, 10, 20))
    second = reader.read_newest()
    assert first is not None
    assert second is not None
    assert (second.image.shape, second.generation) == ((10, 20, 3), first.generation + 1)


def test_a_reader_follows_a_writer_that_was_started_again(folder: str, clock: Clock) -> None:
    first = LaneWriter(folder, 0)
    reader = LaneReader(folder)
    publish(first, solid(1))
    assert reader.read_newest() is not None
    second = LaneWriter(folder, 0)
    publish(second, solid(2))
    clock.now += 1
    frame = reader.read_newest()
    second.close()
    assert frame is not None
    assert (frame.image == 2).all()


def test_only_the_owner_may_look(lane: LaneWriter, folder: str) -> None:
    publish(lane, solid(1))
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert {os.stat(Path(folder, name)).st_mode & 0o777 for name in os.listdir(folder)} == {0o600}


def test_a_folder_that_others_may_read_is_refused(folder: str) -> None:
    os.makedirs(folder)
    os.chmod(folder, 0o755)
    with pytest.raises(OSError, match="somebody else"):
        LaneWriter(folder, 0)
    os.rmdir(folder)
    os.rmdir(lanes_root())


def test_closing_leaves_nothing(folder: str) -> None:
    lanes = [LaneWriter(folder, index) for index in range(3)]
    assert lane_indices(folder) == [0, 1, 2]
    for lane in lanes:
        lane.close()
    assert not os.path.exists(lanes_root())


# --- only on demand


def test_nobody_watching_means_no_frame_is_due(lane: LaneWriter, clock: Clock) -> None:
    for _ in range(20):
        assert not lane.is_due()
        clock.now += 0.05


def test_a_reader_makes_frames_due_and_its_absence_ends_them(lane: LaneWriter, folder: str, clock: Clock) -> None:
    reader = LaneReader(folder)
    assert reader.read_newest() is None
    assert lane.is_due()
    old = time.time() - 3.5
    os.utime(heartbeat_path(folder, 0), (old, old))
    clock.now += 0.2
    assert not lane.is_due()


def test_frames_are_due_at_the_wanted_rate(lane: LaneWriter, folder: str, clock: Clock) -> None:
    reader = LaneReader(folder)
    published = 0
    for _ in range(1000):
        reader.read_newest()
        if lane.is_due():
            publish(lane, solid(1), render_s=0.0001)
            published += 1
        clock.now += 0.001
    assert 28 <= published <= 31


def test_pictures_missed_in_a_pause_are_not_made_up_for(lane: LaneWriter, folder: str, clock: Clock) -> None:
    reader = LaneReader(folder)
    published = 0
    for pause_s in (0.0, 600.0):
        clock.now += pause_s
        published = 0
        for _ in range(1000):
            os.utime(heartbeat_path(folder, 0))
            reader.read_newest()
            if lane.is_due():
                publish(lane, solid(1), render_s=0.0001)
                published += 1
            clock.now += 0.001
    assert 28 <= published <= 40


def test_the_beat_is_looked_at_ten_times_a_second(
    lane: LaneWriter, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    stat = os.stat

    def counted(path: str) -> os.stat_result:
        looks.append(path)
        return stat(path)

    monkeypatch.setattr(os, "stat", counted)
    for _ in range(1000):
        lane.is_due()
        clock.now += 0.001
    assert 9 <= len(looks) <= 11


def test_environments_that_are_watched_share_the_rate(folder: str, clock: Clock) -> None:
    lanes = [LaneWriter(folder, index, lane_count=4) for index in range(4)]
    readers = [LaneReader(folder, index) for index in range(2)]
    for reader in readers:
        reader.read_newest()
    clock.now += 1
    assert [lane.is_due() for lane in lanes] == [True, True, False, False]
    publish(lanes[0], solid(1))
    frame = readers[0].read_newest()
    for lane in lanes:
        lane.close()
    assert frame is not None
    assert (frame.rate_hz, frame.pace) == (15.0, "30 Hz, 2 share it")


def test_a_viewer_may_ask_for_more_within_bounds(folder: str, clock: Clock) -> None:
    lane = LaneWriter(folder, 0)
    LaneReader(folder, rate_hz=60, budget=0.1).read_newest()
    assert lane.is_due()
    publish(lane, solid(1))
    first = LaneReader(folder).read_newest()
    os.utime(heartbeat_path(folder, 0), (1, 1))
    Path(heartbeat_path(folder, 0)).write_text(json.dumps({"rate_hz": 1e9, "budget": "all", "at": time.time()}))
    clock.now += 1
    lane.is_due()
    publish(lane, solid(1))
    second = LaneReader(folder).read_newest()
    lane.close()
    assert first is not None
    assert second is not None
    assert (first.rate_hz, second.rate_hz) == (60.0, 120.0)


def test_wishes_go_with_the_viewer_who_had_them(folder: str, clock: Clock) -> None:
    lane = LaneWriter(folder, 0)
    modest = LaneReader(folder)
    Path(heartbeat_path(folder, 0)).write_text(json.dumps({"rate_hz": 60, "at": time.time() - 10}))
    modest.read_newest()
    assert Path(heartbeat_path(folder, 0)).read_text() == ""
    LaneReader(folder, rate_hz=60).read_newest()
    clock.now += 1
    modest.read_newest()
    LaneReader(folder, rate_hz=40).read_newest()
    said = Path(heartbeat_path(folder, 0)).read_text()
    lane.close()
    assert json.loads(said)["rate_hz"] == 60


def test_rubbish_in_the_beat_changes_nothing(lane: LaneWriter, folder: str, clock: Clock) -> None:
    for rubbish in (b"{", b"[1]", b"\xff\xfe", b'{"rate_hz": true}', b"null"):
        Path(heartbeat_path(folder, 0)).write_bytes(rubbish)
        clock.now += 1
        assert lane.is_due()


# --- what must never be shown


def corrupt(path: str, change: Callable[[bytearray], object]) -> None:
    """Puts another file in its place: cutting one that is mapped would end this process."""
    data = bytearray(Path(path).read_bytes())
    change(data)
    Path(path + ".new").write_bytes(data)
    os.rename(path + ".new", path)


def slot_at(number: int) -> int:
    return layout.HEADER_BYTES + number % layout.SLOTS * layout.make_geometry(6, 4, 3, 1, 0, False).slot_bytes


@pytest.mark.parametrize("word", [layout.BEGIN_WORD, layout.END_WORD])
def test_a_frame_that_is_being_written_is_not_taken(lane: LaneWriter, folder: str, word: int) -> None:
    publish(lane, solid(1))
    corrupt(lane_path(folder, 0), lambda data: struct.pack_into("=Q", data, slot_at(1) + 8 * word, 5))
    reader = LaneReader(folder)
    assert reader.read_newest() is None
    assert (reader.torn_reads, reader.failed_reads, reader.state) == (reading.MAX_READ_ATTEMPTS, 1, "waiting")


def test_a_checksum_finds_what_the_counters_cannot(folder: str) -> None:
    lane = LaneWriter(folder, 0, has_checksum=True)
    publish(lane, solid(1))
    good = LaneReader(folder).read_newest()
    corrupt(lane_path(folder, 0), lambda data: data.__setitem__(slot_at(1) + 300, 9))
    reader = LaneReader(folder)
    bad = reader.read_newest()
    lane.close()
    assert good is not None
    assert bad is None
    assert reader.torn_reads == reading.MAX_READ_ATTEMPTS


RUBBISH: dict[str, Callable[[bytearray], object]] = {
    "empty": lambda data: data.clear(),
    "cut": lambda data: data.__delitem__(slice(100, None)),
    "shorter than it says": lambda data: data.__delitem__(slice(layout.HEADER_BYTES + 10, None)),
    "another beginning": lambda data: data.__setitem__(slice(0, 8), b"NOTALANE"),
    "another version": lambda data: struct.pack_into("=Q", data, 8, 99),
    "a width that does not fit": lambda data: struct.pack_into("=Q", data, 16, 7),
    "a bit that fell over": lambda data: struct.pack_into("=Q", data, 64, 77),
    "zeros": lambda data: data.__setitem__(slice(0, 4096), bytes(4096)),
}


@pytest.mark.parametrize("kind", RUBBISH)
def test_a_header_that_is_rubbish_is_counted_and_refused(
    lane: LaneWriter, folder: str, clock: Clock, kind: str
) -> None:
    publish(lane, solid(1))
    corrupt(lane_path(folder, 0), RUBBISH[kind])
    reader = LaneReader(folder)
    for _ in range(5):
        assert reader.read_newest() is None
        clock.now += 1
    assert (reader.invalid_files, reader.state) == (1, "waiting")
    assert reader.problem.startswith("env-0000.lane: ")


def test_a_geometry_that_is_signed_but_absurd_is_refused() -> None:
    made = layout.make_geometry(100_000, 100_000, 3, 1, 0, False)
    with pytest.raises(layout.HeaderInvalid, match="makes no sense"):
        layout.parse_header(layout.pack_header(made).ljust(layout.HEADER_BYTES, b"\0"), 1 << 60)


# --- no room, no picture


def test_no_room_turns_frames_off_and_says_so_until_there_is_some(
    lane: LaneWriter, folder: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = LaneReader(folder)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(writing, "_allocate", full)
        publish(lane, solid(1))
    assert lane.problem is not None
    assert "No space left" in lane.problem
    assert reader.read_newest() is None
    assert (reader.state, reader.reason) == ("unavailable", lane.problem)
    clock.now += 5
    assert not lane.is_due()
    clock.now += 6
    reader.read_newest()
    assert lane.is_due()
    publish(lane, solid(1))
    assert reader.read_newest() is not None
    assert reader.state == "connected"
    assert sorted(os.listdir(folder)) == ["env-0000.beat", "env-0000.lane"]


def test_where_no_lane_can_be_made_the_maker_is_told(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writing, "_allocate", full)
    with pytest.raises(OSError, match="No space left"):
        LaneWriter(folder, 0)
    assert os.listdir(folder) == []
    assert reap_all() == 0


def test_a_lane_without_a_picture_says_why(lane: LaneWriter, folder: str, clock: Clock) -> None:
    lane.mark_unavailable("this environment has no picture")
    reader = LaneReader(folder)
    assert reader.read_newest() is None
    assert (reader.state, reader.reason) == ("unavailable", "this environment has no picture")
    clock.now += 1000
    reader.read_newest()
    assert not lane.is_due()


@pytest.mark.parametrize("frame", [np.zeros((4, 4, 3)), np.zeros((4, 4, 2), np.uint8), np.zeros(4, np.uint8), None])
def test_what_is_no_picture_is_refused_without_an_exception(lane: LaneWriter, frame: Any) -> None:
    publish(lane, frame)
    assert lane.problem is not None
    assert "cannot be shown" in lane.problem


def test_large_pictures_are_made_smaller_and_grey_ones_coloured(folder: str) -> None:
    lane = LaneWriter(folder, 0, max_side_px=100)
    reader = LaneReader(folder)
    publish(lane, np.zeros((50, 250, 3), np.uint8))
    wide = reader.read_newest()
    publish(lane, np.full((5, 6), 9, np.uint8))
    grey = reader.read_newest()
    lane.close()
    assert wide is not None
    assert grey is not None
    assert wide.image.shape == (17, 84, 3)
    assert grey.image.shape == (5, 6, 3)
    assert (grey.image == 9).all()


# --- tidying up


def abandon(lane: LaneWriter) -> None:
    """What the kernel does for a process that was killed."""
    lane._words = lane._memory = None
    lane._pixels.clear()
    gc.collect()


def test_lanes_of_the_dead_are_reaped_and_those_of_the_living_stay(folder: str) -> None:
    dead, living = LaneWriter(folder, 0), LaneWriter(folder, 1)
    publish(dead, solid(1))
    publish(living, solid(1))
    abandon(dead)
    assert reap(folder) == 1
    assert sorted(os.listdir(folder)) == ["env-0001.beat", "env-0001.lane"]
    abandon(living)
    assert reap_all() == 1
    assert not os.path.exists(lanes_root())


def test_a_half_made_file_is_reaped_too(folder: str) -> None:
    lane = LaneWriter(folder, 0)
    Path(lane_path(folder, 3) + ".4711").write_bytes(b"half")
    reap(folder)
    left = sorted(os.listdir(folder))
    lane.close()
    assert left == ["env-0000.beat", "env-0000.lane"]


def test_a_reader_makes_no_file_where_a_lane_was(folder: str, clock: Clock) -> None:
    lane = LaneWriter(folder, 0)
    reader = LaneReader(folder)
    publish(lane, solid(1))
    assert reader.read_newest() is not None
    lane.close()
    clock.now += 1
    assert reader.read_newest() is None
    assert reader.state == "waiting"
    assert not os.path.exists(folder)


# --- several at once


def test_a_view_tells_each_thing_once(folder: str, clock: Clock) -> None:
    told: list[str] = []
    lanes = [LaneWriter(folder, index) for index in range(2)]
    view = LaneView(folder, log_event=lambda event, **_: told.append(event))
    view.poll()
    assert (view.state, view.reason) == ("waiting", "no frame has come yet")
    for lane in lanes:
        publish(lane, solid(1))
    assert view.poll()
    assert not view.poll()
    corrupt(lane_path(folder, 1), RUBBISH["zeros"])
    other = LaneView(folder, log_event=lambda event, **_: told.append(event))
    other.poll()
    other.poll()
    for lane in lanes:
        lane.close()
    assert (view.state, other.state, other.invalid_files) == ("connected", "connected", 1)
    assert told == ["fastlane_connected", "fastlane_connected", "fastlane_header_invalid"]


def test_a_view_says_which_environments_there_are(folder: str) -> None:
    view = LaneView(folder, [9])
    view.poll()
    nothing = view.reason
    lane = LaneWriter(folder, 0)
    wrong = view.reason
    lane.close()
    assert nothing == "this run publishes no frames yet"
    assert wrong == "environment 9 cannot be watched; these can: 0"
