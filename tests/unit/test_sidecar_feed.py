"""What trackers are told of a run: each point once, over all attempts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.run_folders import make_run_folder

from mosaic.contracts.folder import RunFolder
from mosaic.journal import Journal
from mosaic.sidecar.tracker import HardwareItem, ScalarsItem, SettingsItem, TrackerItem, VideoItem
from mosaic.sidecar.tracker_feed import (
    LENGTH_TAG,
    RETURN_TAG,
    TrackerFeed,
    find_checkpoints,
    group_by_step,
    last_valid_steps,
)

Told = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = make_run_folder(tmp_path)
    made.path.mkdir(parents=True)
    return made


def write(path: Path, *lines: tuple[str, dict[str, Any]]) -> None:
    journal = Journal(path)
    for kind, facts in lines:
        journal.append(kind, **facts)
    journal.close()


def hello(resumed_from: int | None = None) -> tuple[str, dict[str, Any]]:
    return "hello", {"worker": "w", "version": "1", "pid": 1, "resumed_from": resumed_from}


def metric(step: int, value: float | None, tag: str = "losses/a") -> tuple[str, dict[str, Any]]:
    return "metrics", {"series": {tag: [[step, 100.0 + step, value]]}}


def steps(items: list[TrackerItem]) -> list[int]:
    return [item.step for item in items if isinstance(item, ScalarsItem)]


def test_points_of_one_step_are_one_row_and_a_tag_that_comes_again_begins_the_next() -> None:
    told = [(2, 9.0, "a", 1.0), (1, 5.0, "a", 0.5), (1, 5.0, "b", 0.25), (1, 6.0, "a", 0.75)]
    assert group_by_step(told) == [
        ScalarsItem(1, 5.0, {"a": 0.5, "b": 0.25}),
        ScalarsItem(1, 6.0, {"a": 0.75}),
        ScalarsItem(2, 9.0, {"a": 1.0}),
    ]
    assert group_by_step([]) == []


def test_what_a_later_attempt_takes_back_no_longer_counts() -> None:
    assert last_valid_steps([None]) == [math.inf]
    assert last_valid_steps([None, 100, 50]) == [50, 50, math.inf]
    assert last_valid_steps([None, 50, 100]) == [50, 100, math.inf]
    assert last_valid_steps([None, 50, None]) == [-1, -1, math.inf], "an attempt that found no checkpoint began anew"


def test_every_kind_of_line_becomes_what_it_is(folder: RunFolder) -> None:
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
    found = list(feed.read())
    assert found[:3] == [
        SettingsItem({"gamma": 0.99}),
        ScalarsItem(4, 104.0, {"losses/a": 0.5}),
        ScalarsItem(5, 105.0, {RETURN_TAG: 9.0, LENGTH_TAG: 12.0}),
    ]
    strange = found[3]
    assert isinstance(strange, ScalarsItem)
    assert math.isnan(strange.values[RETURN_TAG])
    assert found[4] == HardwareItem(
        99.0, {"cpu": 80.0, "proc.memory.rssMB": 64.0, "gpu.0.gpu": 30.0, "gpu.0.memoryAllocatedBytes": 2.0 * 2**20}
    )
    assert found[5:] == [VideoItem(folder.videos / "rl-video-episode-0.mp4", 6)]
    assert feed.outcome == "succeeded"
    assert list(feed.read()) == [], "nothing is told twice"


def test_a_line_that_lacks_its_facts_is_passed_over(folder: RunFolder) -> None:
    write(
        folder.journal,
        hello(),
        ("metrics", {}),
        ("episodes", {"rows": [[1]]}),
        ("metrics", {"series": [3]}),
        metric(1, 1.0),
    )
    assert steps(list(TrackerFeed(folder, 0).read())) == [1]


def test_a_resumed_run_is_told_from_its_beginning_with_one_curve(folder: RunFolder) -> None:
    write(folder.journal, hello(), metric(10, 1.0), metric(20, 2.0))
    begin = folder.journal.stat().st_size
    feed = TrackerFeed(folder, begin)
    assert list(feed.read()) == [], "nobody knows yet what still counts"
    write(folder.journal, hello(resumed_from=10), metric(15, 3.0))
    assert steps(list(feed.read())) == [10, 15]
    write(folder.journal, metric(30, 4.0))
    assert steps(list(feed.read())) == [30]


def test_an_attempt_that_never_spoke_takes_nothing_back(folder: RunFolder) -> None:
    write(folder.journal, hello(), metric(10, 1.0))
    feed = TrackerFeed(folder, folder.journal.stat().st_size)
    assert steps(list(feed.read(is_over=True))) == [10]


def test_what_the_next_attempt_says_is_left_to_its_own_sidecar(folder: RunFolder) -> None:
    write(folder.journal, hello(), metric(10, 1.0))
    feed = TrackerFeed(folder, 0)
    assert steps(list(feed.read())) == [10]
    write(folder.journal, metric(20, 2.0), hello(resumed_from=10), metric(15, 3.0))
    assert steps(list(feed.read(is_over=True))) == [20]


def test_a_run_that_is_over_is_told_whole(folder: RunFolder) -> None:
    write(folder.journal, hello(), metric(10, 1.0), metric(20, 2.0), hello(resumed_from=10), metric(15, 3.0))
    write(folder.path / "journal.77.jsonl", metric(99, 1.0, "another/process"))
    assert steps(list(TrackerFeed(folder).read(is_over=True))) == [10, 15, 99]


def test_the_last_checkpoint_and_the_best_are_named_and_may_be_one(folder: RunFolder) -> None:
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
