"""Recorded episodes as videos, GIFs and lines of JSON, and what is stored where they cannot be simulated again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import av
import gymnasium
import numpy as np
import pytest
from PIL import Image
from tests.helpers.recordings import record_episodes

from mosaic.contracts.errors import BadInput
from mosaic.contracts.play import PlayConfig
from mosaic.contracts.replays import ReplayReport
from mosaic.contracts.views import RunView
from mosaic.features.replay import worker as replay_export
from mosaic.features.replay.api import export_recording, replay_episodes
from mosaic.features.replay.worker import export_episodes
from mosaic.features.replay.worker_player import ReplaySource
from mosaic.trainer.client.exports import ExportCancelled, ExportTask
from mosaic.worker.play_envs import make_play_env
from mosaic.worker.recorders import choose_replay_without_frames, choose_session_replay, explain_irreproducible
from mosaic.worker.recording import RecordedEpisode, RecordingHeader, RecordingWriter


@pytest.fixture(scope="module")
def cliff(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cliff") / "recording.bin"
    record_episodes(path, "CliffWalking-v1", (1, 2), steps=8)
    return path


def export(recording: Path, target: Path, *numbers: int, has_observations: bool = False) -> list[ReplayReport]:
    with ReplaySource(recording) as source:
        return export_episodes(source, target, numbers or (0, 1), lambda _: None, has_observations)


def test_steps_are_lines_of_json(cliff: Path, tmp_path: Path) -> None:
    """R6.4"""
    target = tmp_path / "steps.jsonl"
    reports = export(cliff, target, has_observations=True)
    assert [report.is_identical for report in reports] == [True, True]
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [(row["episode"], row["step"]) for row in rows] == [(e, s) for e in (0, 1) for s in range(9)]
    start = {"observation": 36, "action": None, "action_name": None, "reward": 0.0, "return": 0.0, "ending": None}
    assert rows[0] | start == rows[0]
    assert rows[8]["action_name"] == ("up", "right", "down", "left")[rows[8]["action"]]
    assert rows[8]["return"] == sum(row["reward"] for row in rows[:9])
    assert (rows[8]["actor"], rows[8]["ending"], rows[7]["ending"]) == ("random", "running", None)


def test_a_video_has_each_step_and_a_gif_is_played(cliff: Path, tmp_path: Path) -> None:
    export(cliff, tmp_path / "both.mp4")
    with av.open(str(tmp_path / "both.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == 18
    export(cliff, tmp_path / "one.gif", 1)
    with Image.open(tmp_path / "one.gif") as image:
        assert (image.format, getattr(image, "n_frames", 1) > 1) == ("GIF", True)


def test_a_gif_is_the_picture_at_a_smaller_size(tmp_path: Path) -> None:
    record_episodes(tmp_path / "r", "CartPole-v1", (1,), steps=3)
    export(tmp_path / "r", tmp_path / "cart.gif", 0)
    with ReplaySource(tmp_path / "r") as source:
        frame = Image.fromarray(source.open_episode(0).render()[:, :, :3])
    assert frame.size == (600, 400)
    with Image.open(tmp_path / "cart.gif") as image:
        assert image.size == (480, 320)
        shown = np.asarray(image.convert("RGB"), np.int16)
    expected = np.asarray(frame.resize((480, 320), Image.Resampling.BILINEAR), np.int16)
    assert (abs(shown - expected).max(axis=2) > 40).mean() < 0.01  # colors are reduced
    assert 0.005 < (shown.min(axis=2) < 128).mean() < 0.2  # there is a cart


def test_what_cannot_be_written_is_one_sentence_and_leaves_nothing(
    cliff: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("steps.jsonl", "video.mp4", "image.gif"):
        with pytest.raises(BadInput, match="cannot be written"):
            export(cliff, tmp_path / "no" / name)
    monkeypatch.setattr(replay_export, "MAX_GIF_FRAMES", 3)
    with pytest.raises(BadInput, match="at most 3 frames"):
        export(cliff, tmp_path / "long.gif")
    assert list(tmp_path.iterdir()) == []


class FileTrainer:
    """A trainer whose only run has this recording."""

    is_local = True

    def __init__(self, recording: Path) -> None:
        self._recording = recording

    def get_run(self, run_id: str) -> RunView:
        return RunView.placeholder(run_id)

    def files(self, run_id: str, pattern: str) -> list[str]:
        return [self._recording.name]

    def open_file(self, run_id: str, name: str) -> Path:
        return self._recording


def test_an_export_reports_its_progress_and_can_be_cancelled(cliff: Path, tmp_path: Path) -> None:
    trainer: Any = FileTrainer(cliff)
    view, path = RunView.placeholder("run"), tmp_path / "steps.jsonl"
    seen: list[tuple[int, int]] = []
    export_recording(trainer, view, path, ExportTask("Writing", lambda *both: seen.append(both)))
    assert seen[-1] == (16, 16)
    path.unlink()
    task = ExportTask("Writing")
    task.is_cancelled = True
    with pytest.raises(ExportCancelled):
        export_recording(trainer, view, path, task)


class Quiet(gymnasium.Env[Any, Any]):
    """Cannot be rendered."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_: object) -> tuple[int, dict[str, object]]:
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, object]]:
        return 0, 0.5, False, False, {}


@pytest.fixture
def quiet() -> Iterator[str]:
    gymnasium.register("Quiet-v0", entry_point=cast(Any, Quiet), nondeterministic=True)
    yield "Quiet-v0"
    del gymnasium.registry["Quiet-v0"]


def test_only_actions_and_rewards_are_stored_of_what_cannot_be_rendered(quiet: str, tmp_path: Path) -> None:
    env = make_play_env(RecordingHeader(env_id=quiet))
    warnings: list[str] = []
    header = choose_session_replay(
        RecordingHeader(env_id=quiet),
        env,
        PlayConfig(env_id=quiet),
        ("off", "on"),
        lambda text, _: warnings.append(text),
    )
    assert warnings == [
        "Quiet-v0 cannot be simulated again, because it is registered as nondeterministic, so only actions and "
        "rewards are recorded: it cannot be rendered."
    ]
    recording = tmp_path / "recording.bin"
    with RecordingWriter(recording, header) as writer:
        writer.append([RecordedEpisode(0, 1, None, np.array([1, 0]), np.array([0.5, 0.5]), "truncated")])
    with ReplaySource(recording) as source:
        report = source.verify(0)
    assert report.is_identical is None
    assert report.note.startswith("Not simulated again: only actions and rewards were stored")
    export(recording, tmp_path / "steps.jsonl", 0)
    rows = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [(row["action_name"], row["return"]) for row in rows] == [("on", 0.5), ("off", 1.0)]
    with pytest.raises(BadInput, match=r"Export it as \.jsonl"):
        export(recording, tmp_path / "video.mp4", 0)
    trained = choose_replay_without_frames(RecordingHeader(env_id=quiet), lambda text, _: warnings.append(text))
    assert (trained.replay, len(warnings)) == ("nothing", 2)


def test_an_environment_without_a_random_state_is_not_simulated_again() -> None:
    core: Any = gymnasium.make("FrozenLake-v1").unwrapped
    assert explain_irreproducible("FrozenLake-v1", core) == ""
    core._np_random = np.random.RandomState(1)
    assert explain_irreproducible("FrozenLake-v1", core) == "it has no random state that can be stored"


def test_reports_of_a_process(cliff: Path) -> None:
    assert [report.is_identical for report in replay_episodes(cliff)] == [True, True]
    with pytest.raises(BadInput, match="which has episodes 0 to 1"):
        list(replay_episodes(cliff, 7))
