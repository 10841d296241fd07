"""One lane: a reader gets what a writer publishes, whatever happens to the file."""

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

from mosaic.base.fastlane import (
    BGRX32,
    RGB24,
    FrameRequest,
    LaneReader,
    LaneView,
    LaneWriter,
    lane_indices,
    lanes_folder,
    layout,
    reap,
    reap_all,
)
from mosaic.base.fastlane import reader as reading
from mosaic.base.fastlane import writer as writing
from mosaic.base.fastlane.lane_files import heartbeat_path, lane_path, lanes_root


class Clock:
    """Replaces the time module."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        """What the writer measures takes no time, however busy the machine is."""
        return self.now

    def time(self) -> float:
        return time.time()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return lanes_folder(tmp_path / "it's a run")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake_clock = Clock()
    monkeypatch.setattr(writing, "time", fake_clock)
    monkeypatch.setattr(reading, "time", fake_clock)
    return fake_clock


@pytest.fixture
def lane(folder: str, clock: Clock) -> Iterator[LaneWriter]:
    writer = LaneWriter(folder, 0)
    yield writer
    writer.close()


def solid(value: int, height: int = 4, width: int = 6, channels: int = 3) -> Any:
    return np.full((height, width, channels), value, np.uint8)


def publish(lane: LaneWriter, frame: Any, **fields: Any) -> None:
    lane.publish(frame, **{"episode": 1, "step": 1, "reward": 0.0, "episodic_return": 0.0, "render_s": 0.001, **fields})


def test_a_frame_arrives_with_its_info(lane: LaneWriter, folder: str) -> None:
    reader = LaneReader(folder)
    publish(lane, solid(7), episode=3, step=41, reward=-1.5, episodic_return=12.25)
    frame = reader.read_newest()
    assert frame is not None
    assert (frame.image == 7).all()
    assert (frame.format, frame.episode, frame.step, frame.reward, frame.episodic_return) == (RGB24, 3, 41, -1.5, 12.25)
    assert (frame.rate_hz, frame.is_limited, frame.render_s) == (30.0, False, 0.001)
    assert abs(frame.rendered_at - time.time()) < 60
    assert reader.state == "connected"


def test_a_frame_is_returned_once_and_only_the_newest(lane: LaneWriter, folder: str) -> None:
    reader = LaneReader(folder)
    for value in range(1, 12):
        publish(lane, solid(value))
    frame = reader.read_newest()
    assert frame is not None
    assert (frame.image == 11).all()
    assert reader.read_newest() is None


def test_four_channels_are_distinguished_from_three(lane: LaneWriter, folder: str) -> None:
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


def test_only_the_owner_has_access(lane: LaneWriter, folder: str) -> None:
    publish(lane, solid(1))
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert {os.stat(Path(folder, name)).st_mode & 0o777 for name in os.listdir(folder)} == {0o600}


def test_a_folder_that_others_may_read_is_rejected(folder: str) -> None:
    os.makedirs(folder)
    os.chmod(folder, 0o755)
    with pytest.raises(OSError, match="another user"):
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


def test_no_frame_is_due_without_a_reader(lane: LaneWriter, clock: Clock) -> None:
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


def test_frames_are_due_at_the_requested_rate(lane: LaneWriter, folder: str, clock: Clock) -> None:
    reader = LaneReader(folder)
    published = 0
    for _ in range(1000):
        reader.read_newest()
        if lane.is_due():
            publish(lane, solid(1), render_s=0.0001)
            published += 1
        clock.now += 0.001
    assert 28 <= published <= 31


def test_frames_missed_in_a_pause_are_not_made_up_for(lane: LaneWriter, folder: str, clock: Clock) -> None:
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


def test_the_heartbeat_is_checked_ten_times_a_second(
    lane: LaneWriter, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    stat = os.stat

    def counting_stat(path: str) -> os.stat_result:
        checked.append(path)
        return stat(path)

    monkeypatch.setattr(os, "stat", counting_stat)
    for _ in range(1000):
        lane.is_due()
        clock.now += 0.001
    assert 9 <= len(checked) <= 11


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
    assert (frame.rate_hz, frame.is_limited) == (15.0, False)


def test_a_viewer_may_request_more_within_bounds(folder: str, clock: Clock) -> None:
    lane = LaneWriter(folder, 0)
    LaneReader(folder, 0, FrameRequest(60, 0.1)).read_newest()
    assert lane.is_due()
    publish(lane, solid(1))
    first = LaneReader(folder).read_newest()
    os.utime(heartbeat_path(folder, 0), (1, 1))
    Path(heartbeat_path(folder, 0)).write_text(
        json.dumps({"rate_hz": 1e9, "budget": "all", "at": time.time()}), encoding="utf-8"
    )
    clock.now += 1
    lane.is_due()
    publish(lane, solid(1))
    second = LaneReader(folder).read_newest()
    lane.close()
    assert first is not None
    assert second is not None
    assert (first.rate_hz, second.rate_hz) == (60.0, 120.0)


def test_requests_expire_with_their_viewer(folder: str, clock: Clock) -> None:
    lane = LaneWriter(folder, 0)
    plain_reader = LaneReader(folder)
    Path(heartbeat_path(folder, 0)).write_text(json.dumps({"rate_hz": 60, "at": time.time() - 10}), encoding="utf-8")
    plain_reader.read_newest()
    assert Path(heartbeat_path(folder, 0)).read_text(encoding="utf-8") == ""
    LaneReader(folder, 0, FrameRequest(60)).read_newest()
    clock.now += 1
    plain_reader.read_newest()
    LaneReader(folder, 0, FrameRequest(40)).read_newest()
    request = Path(heartbeat_path(folder, 0)).read_text(encoding="utf-8")
    lane.close()
    assert json.loads(request)["rate_hz"] == 60


def test_a_reader_lowers_its_own_request_at_once(folder: str, clock: Clock) -> None:
    lane = LaneWriter(folder, 0)
    reader = LaneReader(folder, 0, FrameRequest(60, 0.25))
    reader.read_newest()
    clock.now += 1
    assert lane.is_due()
    assert lane.request.budget == 0.25
    reader.ask(FrameRequest(60, 0.05))
    reader.read_newest()
    clock.now += 1
    lane.is_due()
    assert lane.request.budget == 0.05
    lane.close()


def test_a_reader_that_closes_withdraws_its_request_and_leaves_soon(
    folder: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = LaneWriter(folder, 0)
    reader = LaneReader(folder, 0, FrameRequest(60, 0.25))
    reader.read_newest()
    reader.close()
    clock.now += 1
    assert lane.is_due()  # another reader may be about to touch the heartbeat
    assert lane.request == FrameRequest()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + reading.LEAVE_S)
    clock.now += 1
    assert not lane.is_due()
    lane.close()


def test_a_lane_notices_a_higher_request_before_its_next_frame_is_due(folder: str, clock: Clock) -> None:
    lane = LaneWriter(folder, 0)
    reader = LaneReader(folder, 0, FrameRequest(0.5))
    reader.read_newest()
    assert lane.is_due()
    publish(lane, solid(1))
    clock.now += 0.2
    assert not lane.is_due()
    reader.ask(FrameRequest(30))
    reader.read_newest()
    clock.now += 0.15
    assert lane.is_due()
    lane.close()


def test_garbage_in_the_heartbeat_changes_nothing(lane: LaneWriter, folder: str, clock: Clock) -> None:
    for garbage in (b"{", b"[1]", b"\xff\xfe", b'{"rate_hz": true}', b"null"):
        Path(heartbeat_path(folder, 0)).write_bytes(garbage)
        clock.now += 1
        assert lane.is_due()


# --- what must never be shown


def corrupt(path: str, change: Callable[[bytearray], object]) -> None:
    """Replace the file: truncating one that is mapped would kill this process."""
    data = bytearray(Path(path).read_bytes())
    change(data)
    Path(path + ".new").write_bytes(data)
    os.rename(path + ".new", path)


def slot_at(number: int) -> int:
    return layout.HEADER_BYTES + number % layout.SLOTS * layout.make_geometry(6, 4, 3, 1, 0, False).slot_bytes


@pytest.mark.parametrize("word", [layout.BEGIN_WORD, layout.END_WORD])
def test_a_frame_that_is_being_written_is_not_returned(lane: LaneWriter, folder: str, word: int) -> None:
    """F37: either counter of its slot differs."""
    publish(lane, solid(1))
    corrupt(lane_path(folder, 0), lambda data: struct.pack_into("=Q", data, slot_at(1) + 8 * word, 5))
    reader = LaneReader(folder)
    assert reader.read_newest() is None
    assert (reader.torn_reads, reader.failed_reads, reader.state) == (reading.MAX_READ_ATTEMPTS, 1, "waiting")


def test_a_checksum_detects_what_the_counters_cannot(folder: str) -> None:
    """F37: on a machine that reorders writes."""
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


CORRUPTIONS: dict[str, Callable[[bytearray], object]] = {
    "empty": lambda data: data.clear(),
    "truncated": lambda data: data.__delitem__(slice(100, None)),
    "shorter than it says": lambda data: data.__delitem__(slice(layout.HEADER_BYTES + 10, None)),
    "another magic number": lambda data: data.__setitem__(slice(0, 8), b"NOTALANE"),
    "another version": lambda data: struct.pack_into("=Q", data, 8, 99),
    "a width that does not fit": lambda data: struct.pack_into("=Q", data, 16, 7),
    "a flipped bit": lambda data: struct.pack_into("=Q", data, 64, 77),
    "zeros": lambda data: data.__setitem__(slice(0, 4096), bytes(4096)),
}


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_corrupt_header_is_counted_and_rejected(lane: LaneWriter, folder: str, clock: Clock, kind: str) -> None:
    publish(lane, solid(1))
    corrupt(lane_path(folder, 0), CORRUPTIONS[kind])
    reader = LaneReader(folder)
    for _ in range(5):
        assert reader.read_newest() is None
        clock.now += 1
    assert (reader.invalid_files, reader.state) == (1, "waiting")
    assert reader.problem.startswith("env-0000.lane: ")


def test_an_absurd_geometry_with_a_valid_checksum_is_rejected() -> None:
    geometry = layout.make_geometry(100_000, 100_000, 3, 1, 0, False)
    with pytest.raises(layout.HeaderInvalid, match="geometry is invalid"):
        layout.parse_header(layout.pack_header(geometry).ljust(layout.HEADER_BYTES, b"\0"), 1 << 60)


# --- no room, no frames


def test_no_room_disables_frames_with_a_reason_until_there_is_some(
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


def test_a_lane_that_cannot_be_created_raises(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writing, "_allocate", full)
    with pytest.raises(OSError, match="No space left"):
        LaneWriter(folder, 0)
    assert os.listdir(folder) == []
    assert reap_all() == 0


def test_a_lane_without_frames_has_a_reason(lane: LaneWriter, folder: str, clock: Clock) -> None:
    lane.mark_unavailable("this environment cannot be rendered")
    reader = LaneReader(folder)
    assert reader.read_newest() is None
    assert (reader.state, reader.reason) == ("unavailable", "this environment cannot be rendered")
    clock.now += 1000
    reader.read_newest()
    assert not lane.is_due()


@pytest.mark.parametrize("frame", [np.zeros((4, 4, 3)), np.zeros((4, 4, 2), np.uint8), np.zeros(4, np.uint8), None])
def test_an_invalid_frame_is_rejected_without_an_exception(lane: LaneWriter, frame: Any) -> None:
    publish(lane, frame)
    assert lane.problem is not None
    assert "cannot be shown" in lane.problem


def test_large_frames_are_downsampled_and_gray_ones_become_rgb(folder: str) -> None:
    lane = LaneWriter(folder, 0, max_side_px=100)
    reader = LaneReader(folder)
    publish(lane, np.zeros((50, 250, 3), np.uint8))
    wide = reader.read_newest()
    publish(lane, np.full((5, 6), 9, np.uint8))
    gray = reader.read_newest()
    lane.close()
    assert wide is not None
    assert gray is not None
    assert wide.image.shape == (17, 84, 3)
    assert gray.image.shape == (5, 6, 3)
    assert (gray.image == 9).all()


# --- cleanup


def abandon(lane: LaneWriter) -> None:
    """Do what the kernel does for a killed process."""
    lane._words = lane._memory = None
    lane._pixels.clear()
    gc.collect()


def test_lanes_of_dead_writers_are_reaped_and_others_stay(folder: str) -> None:
    dead, living = LaneWriter(folder, 0), LaneWriter(folder, 1)
    publish(dead, solid(1))
    publish(living, solid(1))
    abandon(dead)
    assert reap(folder) == 1
    assert sorted(os.listdir(folder)) == ["env-0001.beat", "env-0001.lane"]
    abandon(living)
    assert reap_all() == 1
    assert not os.path.exists(lanes_root())


def test_an_unfinished_file_is_reaped_too(folder: str) -> None:
    lane = LaneWriter(folder, 0)
    Path(lane_path(folder, 3) + ".4711").write_bytes(b"half")
    reap(folder)
    left = sorted(os.listdir(folder))
    lane.close()
    assert left == ["env-0000.beat", "env-0000.lane"]


def test_a_reader_creates_no_file_where_a_lane_was(folder: str, clock: Clock) -> None:
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


def test_a_view_logs_each_event_once(folder: str, clock: Clock) -> None:
    logged: list[str] = []
    lanes = [LaneWriter(folder, index) for index in range(2)]
    view = LaneView(folder, log_event=lambda event, **_: logged.append(event))
    view.poll()
    assert (view.state, view.reason) == ("waiting", "no frame yet")
    for lane in lanes:
        publish(lane, solid(1))
    assert view.poll()
    assert not view.poll()
    corrupt(lane_path(folder, 1), CORRUPTIONS["zeros"])
    other = LaneView(folder, log_event=lambda event, **_: logged.append(event))
    other.poll()
    other.poll()
    for lane in lanes:
        lane.close()
    assert (view.state, other.state, other.invalid_files) == ("connected", "connected", 1)
    assert logged == ["fastlane_connected", "fastlane_connected", "fastlane_header_invalid"]


def test_a_view_that_drops_a_lane_asks_for_no_more_frames_of_it(folder: str, clock: Clock) -> None:
    """Its file is gone, as when a resumed run has fewer environments."""
    lanes = [LaneWriter(folder, index) for index in range(2)]
    view = LaneView(folder, request=FrameRequest(rate_hz=5.0))
    view.poll()
    heartbeat = Path(heartbeat_path(folder, 1))
    assert heartbeat.read_bytes()
    os.remove(lane_path(folder, 1))
    for _ in range(2):
        clock.now += 0.6 * reading.LANE_GRACE_S
        view.poll()
    assert set(view.frames) == {0}
    assert heartbeat.read_bytes() == b""
    view.close()
    for lane in lanes:
        lane.close()


def test_the_reason_of_a_view_lists_the_available_environments(folder: str) -> None:
    view = LaneView(folder, [9])
    view.poll()
    nothing = view.reason
    lane = LaneWriter(folder, 0)
    wrong = view.reason
    lane.close()
    assert nothing == "this run publishes no frames yet"
    assert wrong == "environment 9 cannot be watched; available: 0"
