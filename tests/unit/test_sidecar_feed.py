"""The feed of trackers: each point of a run once, over all attempts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.run_folders import make_run_folder

from mosaic.base.journal import Journal
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.names import LENGTH_TAG, RETURN_TAG
from mosaic.features.tracking.sidecar.recorder import (
    HardwareItem,
    ScalarsItem,
    SettingsItem,
    TrackerFeed,
    TrackerItem,
    VideoItem,
    find_checkpoints,
    group_by_step,
    last_valid_steps,
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = make_run_folder(tmp_path)
    folder.path.mkdir(parents=True)
    return folder


def write(path: Path, *lines: tuple[str, dict[str, Any]]) -> None:
    journal = Journal(path)
    for kind, fields in lines:
        journal.append(kind, **fields)
    journal.close()


def hello(resumed_from: int | None = None) -> tuple[str, dict[str, Any]]:
    return "hello", {"worker": "w", "version": "1", "pid": 1, "resumed_from": resumed_from}


def metric(step: int, value: float | None, tag: str = "losses/a") -> tuple[str, dict[str, Any]]:
    return "metrics", {"series": {tag: [[step, 100.0 + step, value]]}}


def steps(items: list[TrackerItem]) -> list[int]:
    return [item.step for item in items if isinstance(item, ScalarsItem)]


def test_points_of_one_step_are_one_row_and_a_repeated_tag_starts_the_next() -> None:
    points = [(2, 9.0, "a", 1.0), (1, 5.0, "a", 0.5), (1, 5.0, "b", 0.25), (1, 6.0, "a", 0.75)]
    assert group_by_step(points) == [
        ScalarsItem(1, 5.0, {"a": 0.5, "b": 0.25}),
        ScalarsItem(1, 6.0, {"a": 0.75}),
        ScalarsItem(2, 9.0, {"a": 1.0}),
    ]
    assert group_by_step([]) == []


def test_points_that_a_later_attempt_repeats_are_invalid() -> None:
    assert last_valid_steps([None]) == [math.inf]
    assert last_valid_steps([None, 100, 50]) == [50, 50, math.inf]
    assert last_valid_steps([None, 50, 100]) == [50, 100, math.inf]
    assert last_valid_steps([None, 50, None]) == [-1, -1, math.inf], "an attempt without a checkpoint starts again"


def test_every_kind_of_event_becomes_an_item(folder: RunFolder) -> None:
    write(
        folder.journal,
        hello(),
        ("hyperparameters", {"values": {"gamma": 0.99}}),
        metric(4, 0.5),
        ("episodes", {"rows": [[1, 0, 5, 105.0, 9.0, 12], [2, 1, 5, 105.5, None, 3]]}),
        ("progress", {"global_step": 6}),
        ("finished", {"outcome": "succeeded"}),
    )
    gpus = [{"util_percent": 30.0, "memory_used_mb": 2.0, "memory_total_mb": 8.0}]
    write(folder.keeper, ("sample", {"at": 99.0, "cpu_percent": 80.0, "rss_mb": 64.0, "processes": 1, "gpus": gpus}))
    folder.videos.mkdir()
    (folder.videos / "rl-video-episode-0.mp4").touch()
    (folder.videos / ".rl-video-episode-8.mp4.tmp").touch()
    feed = TrackerFeed(folder, 0)
    items = list(feed.read())
    assert items[:3] == [
        SettingsItem({"gamma": 0.99}),
        ScalarsItem(4, 104.0, {"losses/a": 0.5}),
        ScalarsItem(5, 105.0, {RETURN_TAG: 9.0, LENGTH_TAG: 12.0}),
    ]
    unknown_return = items[3]
    assert isinstance(unknown_return, ScalarsItem)
    assert math.isnan(unknown_return.values[RETURN_TAG])
    assert items[4] == HardwareItem(
        99.0, {"cpu": 80.0, "proc.memory.rssMB": 64.0, "gpu.0.gpu": 30.0, "gpu.0.memoryAllocatedBytes": 2.0 * 2**20}
    )
    assert items[5:] == [VideoItem(folder.videos / "rl-video-episode-0.mp4", 6)]
    assert feed.outcome == "succeeded"
    assert list(feed.read()) == [], "nothing is read twice"


def test_an_incomplete_event_is_skipped(folder: RunFolder) -> None:
    write(
        folder.journal,
        hello(),
        ("metrics", {}),
        ("episodes", {"rows": [[1]]}),
        ("metrics", {"series": [3]}),
        metric(1, 1.0),
    )
    assert steps(list(TrackerFeed(folder, 0).read())) == [1]


def test_a_resumed_run_is_read_from_its_start_as_one_curve(folder: RunFolder) -> None:
    write(folder.journal, hello(), metric(10, 1.0), metric(20, 2.0))
    start = folder.journal.stat().st_size
    feed = TrackerFeed(folder, start)
    assert list(feed.read()) == [], "it is not known yet which points are valid"
    write(folder.journal, hello(resumed_from=10), metric(15, 3.0))
    assert steps(list(feed.read())) == [10, 15]
    write(folder.journal, metric(30, 4.0))
    assert steps(list(feed.read())) == [30]


def test_an_attempt_without_a_handshake_invalidates_nothing(folder: RunFolder) -> None:
    write(folder.journal, hello(), metric(10, 1.0))
    feed = TrackerFeed(folder, folder.journal.stat().st_size)
    assert steps(list(feed.read(is_over=True))) == [10]


def test_events_of_the_next_attempt_are_left_to_its_own_sidecar(folder: RunFolder) -> None:
    write(folder.journal, hello(), metric(10, 1.0))
    feed = TrackerFeed(folder, 0)
    assert steps(list(feed.read())) == [10]
    write(folder.journal, metric(20, 2.0), hello(resumed_from=10), metric(15, 3.0))
    assert steps(list(feed.read(is_over=True))) == [20]


def test_a_finished_run_is_read_completely(folder: RunFolder) -> None:
    write(folder.journal, hello(), metric(10, 1.0), metric(20, 2.0), hello(resumed_from=10), metric(15, 3.0))
    write(folder.path / "journal.77.jsonl", metric(99, 1.0, "another/process"))
    assert steps(list(TrackerFeed(folder).read(is_over=True))) == [10, 15, 99]


def test_the_last_and_the_best_checkpoint_are_named_and_may_be_the_same(folder: RunFolder) -> None:
    assert find_checkpoints(folder) == {}
    folder.checkpoint(5).mkdir(parents=True)
    folder.checkpoint(9).mkdir()
    folder.last_checkpoint.symlink_to("9")
    folder.best_checkpoint.symlink_to("5")
    assert find_checkpoints(folder) == {folder.checkpoint(9): ("last",), folder.checkpoint(5): ("best",)}
    folder.best_checkpoint.unlink()
    folder.best_checkpoint.symlink_to("9")
    assert find_checkpoints(folder) == {folder.checkpoint(9): ("last", "best")}
    folder.last_checkpoint.unlink()
    folder.last_checkpoint.symlink_to("gone")
    assert find_checkpoints(folder) == {folder.checkpoint(9): ("best",)}
