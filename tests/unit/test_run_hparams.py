"""TensorBoard's own plugins read what a run writes for the hparams and image tabs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from tensorboard import context
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, list_session_groups
from tensorboard.plugins.hparams.backend_context import Context
from tests.helpers.run_folders import load_event_file, make_run_folder, open_run, save, tensorboard_points
from tests.helpers.worker_runs import small, train_here

from mosaic.base.media import MAX_FRAMES, MAX_WIDTH_PX, encode_gif
from mosaic.contracts.folder import RunFolder
from mosaic.worker.recorders import EpisodeVideo
from mosaic.worker.run_log import EventWriter


def session_groups(logdir: Path) -> list[Any]:
    """Return the rows of the hparams tab, as the plugin builds them."""
    files = EventMultiplexer()
    files.AddRunsFromDirectory(str(logdir))
    files.Reload()
    backend = Context(TBContext(data_provider=MultiplexerDataProvider(files, str(logdir))))
    request = api_pb2.ListSessionGroupsRequest(start_index=0, slice_size=10, allowed_statuses=[0, 1, 2, 3])
    return list(list_session_groups.Handler(context.RequestContext(), backend, "", request).run().session_groups)


def hparam_values(group: Any) -> dict[str, Any]:
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in group.hparams.items()}


def test_a_run_is_a_row_with_its_settings_and_its_last_scalars(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "a run")
    writer.start_hparams_session(
        {"lr": 0.5, "envs": 3, "anneal": True, "name": "Zürich", "target_kl": None, "layers": [64, 64]}
    )
    writer.add_scalar("charts/episodic_return", 5.0, 10)
    writer.add_scalar("charts/episodic_return", 7.0, 20)
    writer.end_hparams_session()
    writer.close()
    [group] = session_groups(tmp_path)
    assert hparam_values(group) == {
        "lr": 0.5, "envs": 3.0, "anneal": True, "name": "Zürich", "target_kl": "None", "layers": "[64, 64]",
    }  # fmt: skip
    [metric] = group.metric_values
    assert (metric.name.tag, metric.value, metric.training_step) == ("charts/episodic_return", 7.0, 20)
    [session] = group.sessions
    assert session.status == api_pb2.STATUS_SUCCESS
    assert session.end_time_secs >= session.start_time_secs > 0


def test_a_training_run_fills_the_hparams_tab_and_stays_one_row_when_resumed(tmp_path: Path) -> None:
    folder = train_here(RunFolder(tmp_path / "01RUN"), small())
    train_here(folder, small(total_timesteps=128), is_resume=True)
    [group] = session_groups(folder.path)
    settings = hparam_values(group)
    assert settings["learning_rate"] == pytest.approx(2.5e-4)
    assert settings["env_id"] == "CartPole-v1"
    assert group.sessions[0].status == api_pb2.STATUS_SUCCESS
    steps = [step for step, _, _ in tensorboard_points(folder.tensorboard)["charts/SPS"]]
    assert steps == sorted(set(steps))
    assert steps[-1] == 128


def test_a_run_that_did_not_succeed_has_no_end_until_an_attempt_succeeds(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path)
    with open_run(folder) as run:
        run.hello()
        run.hyperparameters({"lr": 1})
        run.scalar("a", 1.0, 5)
        save(run, 5)
        run.finish("stopped")
    assert session_groups(folder.path)[0].sessions[0].status == api_pb2.STATUS_UNKNOWN
    with open_run(folder) as run:
        run.hello()
        run.finish()
    assert session_groups(folder.path)[0].sessions[0].status == api_pb2.STATUS_SUCCESS


def write_video(path: Path, frames: int, fps: int = 30) -> Path:
    import numpy as np

    video = EpisodeVideo(path, fps)
    for number in range(frames):
        video.add_frame(np.full((120, 320, 3), number * 2 % 250, np.uint8))
    video.finish("x", 1.0, frames)
    return path


def test_a_video_becomes_a_small_animated_image(tmp_path: Path) -> None:
    from PIL import Image, ImageSequence

    folder = make_run_folder(tmp_path)
    video = write_video(folder.videos / "rl-video-episode-8.mp4", 60)
    with open_run(folder) as run:
        run.hello()
        run.video_preview(video)
        run.finish()
    [event] = load_event_file(folder.tensorboard).Images("videos/episode")
    assert (event.step, event.width, event.height) == (8, MAX_WIDTH_PX, 60)
    with Image.open(io.BytesIO(event.encoded_image_string)) as image:
        assert image.size == (MAX_WIDTH_PX, 60)
        assert len(ImageSequence.all_frames(image)) == 16  # two seconds


def test_the_videos_of_training_and_evaluation_are_in_the_image_tab(tmp_path: Path) -> None:
    trained = train_here(RunFolder(tmp_path / "01RUN"), small(extras={"capture_video": True}))
    assert [event.step for event in load_event_file(trained.tensorboard).Images("videos/episode")] == [0]
    extras = {"mode": "policy_eval", "policy_path": str(trained.path), "eval_episodes": 2, "eval_capture_video": True}
    evaluated = train_here(RunFolder(tmp_path / "01EVAL"), {"extras": extras})
    assert len(load_event_file(evaluated.tensorboard_eval).Images("videos/episode")) == 2


def test_a_long_video_is_truncated_and_an_invalid_one_is_skipped(tmp_path: Path) -> None:
    from PIL import Image, ImageSequence

    gif = encode_gif(write_video(tmp_path / "long.mp4", 120, fps=8))
    assert gif is not None
    with Image.open(io.BytesIO(gif.encoded)) as image:
        assert len(ImageSequence.all_frames(image)) == MAX_FRAMES
    (tmp_path / "none-0.mp4").write_bytes(b"not a video")
    with open_run(make_run_folder(tmp_path)) as run:
        run.hello()
        run.video_preview(tmp_path / "none-0.mp4")
        run.finish()
    assert load_event_file(run.folder.tensorboard).Tags()["images"] == []
