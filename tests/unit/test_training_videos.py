"""Videos of a training: on CleanRL's schedule, of the first environment, and at no price in what is learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from tests.helpers.worker_runs import events, small, train_here

from mosaic.arena.video import is_cubic
from mosaic.contracts.folder import RunFolder
from mosaic.run import last_good_checkpoint


def test_episodes_are_filmed_on_the_schedule_of_cleanrl() -> None:
    assert [number for number in range(3001) if is_cubic(number)] == [
        *(0, 1, 8, 27, 64, 125, 216, 343, 512, 729), *(1000, 2000, 3000)
    ]  # fmt: skip


def test_a_training_is_filmed_where_that_was_asked_for_and_learns_the_same(tmp_path: Path) -> None:
    config = small(total_timesteps=1024)
    plain = train_here(RunFolder(tmp_path / "plain"), config)
    filmed = train_here(RunFolder(tmp_path / "F1"), small(total_timesteps=1024, extras={"capture_video": True}))
    assert not plain.videos.exists()
    films = sorted(filmed.videos.glob("*.mp4"))
    assert {film.name for film in films} >= {
        "rl-video-episode-0.mp4",
        "rl-video-episode-1.mp4",
        "rl-video-episode-8.mp4",
    }
    first = [row for event in events(filmed, "episodes") for row in event["rows"] if row[1] == 0]
    for film in films:
        number = int(film.stem.rpartition("-")[2])
        meta = json.loads(film.with_suffix(".meta.json").read_text())
        assert meta["episode_id"] == f"F1-{number}"
        assert (meta["episode_return"], meta["episode_length"]) == (first[number][4], first[number][5])
        with av.open(str(film)) as video:
            assert sum(1 for _ in video.decode(video.streams.video[0])) == meta["episode_length"] + 1
    assert json.loads(filmed.analytics.read_text())["videos"] == [f"videos/{film.name}" for film in films]
    one, other = last_good_checkpoint(plain), last_good_checkpoint(filmed)
    assert one is not None
    assert other is not None
    for name, weights in one.weights.items():
        np.testing.assert_array_equal(weights, other.weights[name])
    assert events(filmed, "warning") == []


def test_a_film_is_made_although_nothing_may_be_watched(tmp_path: Path) -> None:
    extras = {"capture_video": True, "video_mode": "off"}
    folder = train_here(RunFolder(tmp_path / "off"), small(extras=extras))
    assert (folder.videos / "rl-video-episode-0.mp4").exists()
    assert not [path for path in folder.videos.iterdir() if path.name.endswith(".tmp")]


def test_a_training_goes_on_where_no_picture_comes_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(*_: Any) -> None:
        raise RuntimeError("no GL here")

    monkeypatch.setattr("gymnasium.envs.classic_control.cartpole.CartPoleEnv.render", blind)
    folder = train_here(RunFolder(tmp_path / "blind"), small(extras={"capture_video": True}))
    assert [event["code"] for event in events(folder, "warning")] == ["no_video"]
    assert events(folder, "finished")[0]["outcome"] == "succeeded"
    assert not folder.videos.exists()


def test_a_disk_that_takes_no_film_does_not_stop_the_training(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "full")
    folder.path.mkdir()
    folder.videos.write_text("no folder")
    train_here(folder, small(extras={"capture_video": True}))
    assert [event["code"] for event in events(folder, "warning")] == ["no_video"]
    assert events(folder, "finished")[0]["outcome"] == "succeeded"
