"""Videos during training: on CleanRL's schedule, of the first environment, without changing what is learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from tests.helpers.worker_runs import events, small, train_here

from mosaic.contracts.folder import RunFolder
from mosaic.worker.checkpoints import last_good_checkpoint
from mosaic.worker.recorders import is_cubic


def test_episodes_are_recorded_on_the_schedule_of_cleanrl() -> None:
    assert [number for number in range(3001) if is_cubic(number)] == [
        *(0, 1, 8, 27, 64, 125, 216, 343, 512, 729), *(1000, 2000, 3000)
    ]  # fmt: skip


def test_training_is_recorded_on_request_and_learns_the_same(tmp_path: Path) -> None:
    config = small(total_timesteps=1024)
    plain = train_here(RunFolder(tmp_path / "plain"), config)
    recorded = train_here(RunFolder(tmp_path / "F1"), small(total_timesteps=1024, extras={"capture_video": True}))
    assert not plain.videos.exists()
    videos = sorted(recorded.videos.glob("*.mp4"))
    assert {path.name for path in videos} >= {
        "rl-video-episode-0.mp4",
        "rl-video-episode-1.mp4",
        "rl-video-episode-8.mp4",
    }
    first = [row for event in events(recorded, "episodes") for row in event["rows"] if row[1] == 0]
    for path in videos:
        number = int(path.stem.rpartition("-")[2])
        meta = json.loads(path.with_suffix(".meta.json").read_text())
        assert meta["episode_id"] == f"F1-{number}"
        assert (meta["episode_return"], meta["episode_length"]) == (first[number][4], first[number][5])
        with av.open(str(path)) as video:
            assert sum(1 for _ in video.decode(video.streams.video[0])) == meta["episode_length"] + 1
    assert json.loads(recorded.analytics.read_text())["videos"] == [f"videos/{path.name}" for path in videos]
    one, other = last_good_checkpoint(plain), last_good_checkpoint(recorded)
    assert one is not None
    assert other is not None
    for name, weights in one.weights.items():
        np.testing.assert_array_equal(weights, other.weights[name])
    assert events(recorded, "warning") == []


def test_the_evaluation_after_training_adds_its_videos_to_those_of_the_training(tmp_path: Path) -> None:
    """R3.10: analytics.json lists all videos of the run, and the event files that hold the evaluation's returns."""
    extras = {"capture_video": True, "save_model": True, "eval_capture_video": True}
    folder = train_here(RunFolder(tmp_path / "run"), small(extras=extras))
    analytics = json.loads(folder.analytics.read_text())
    recorded = sorted(str(path.relative_to(folder.path)) for path in folder.videos.rglob("*.mp4"))
    assert {str(Path(video).parent) for video in recorded} == {"videos", "videos/run-eval"}
    assert sorted(analytics["videos"]) == recorded
    assert analytics["evaluation"]["tensorboard_dir"] == "tensorboard"
    assert json.loads(folder.eval_summary.read_text())["tensorboard_dir"] == "tensorboard"
    assert not folder.tensorboard_eval.exists()


def test_a_video_is_recorded_although_live_frames_are_off(tmp_path: Path) -> None:
    extras = {"capture_video": True, "video_mode": "off"}
    folder = train_here(RunFolder(tmp_path / "off"), small(extras=extras))
    assert (folder.videos / "rl-video-episode-0.mp4").exists()
    assert not [path for path in folder.videos.iterdir() if path.name.endswith(".tmp")]


def test_training_continues_with_one_warning_if_rendering_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_render(*_: Any) -> None:
        raise RuntimeError("no GL here")

    monkeypatch.setattr("gymnasium.envs.classic_control.cartpole.CartPoleEnv.render", fail_to_render)
    folder = train_here(RunFolder(tmp_path / "run"), small(extras={"capture_video": True}))
    assert [event["code"] for event in events(folder, "warning")] == ["no_video"]
    assert events(folder, "finished")[0]["outcome"] == "succeeded"
    assert not folder.videos.exists()


def test_a_disk_without_room_for_a_video_does_not_stop_training(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "full")
    folder.path.mkdir()
    folder.videos.write_text("not a folder")
    train_here(folder, small(extras={"capture_video": True}))
    assert [event["code"] for event in events(folder, "warning")] == ["no_video"]
    assert events(folder, "finished")[0]["outcome"] == "succeeded"
