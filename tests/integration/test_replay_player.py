"""The replay player as a process: any step of a recording, verified on the way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.helpers.recordings import player_process, record_episodes

from mosaic.contracts.replays import ReplayFailed, ReplayOpened
from mosaic.contracts.views import SessionState
from mosaic.features.replay.worker import ShownStep, StepCache, reward_strip, shrink
from mosaic.worker.recording import RecordedEpisode, RecordingHeader, RecordingWriter


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lake") / "recording.bin"
    record_episodes(path, "FrozenLake-v1", (4, 2, 8))
    return path


def test_a_player_shows_any_step_and_the_same_frame_on_the_way_back(lake: Path) -> None:
    """R7.7, R9.5"""
    with player_process(lake) as player:
        opened = player.read()
        assert isinstance(opened, ReplayOpened)
        assert [episode.number for episode in opened.episodes] == [0, 1, 2]
        assert {episode.actors for episode in opened.episodes} == {"random"}
        first = opened.episodes[0]
        frames, states = [], []
        for index in range(first.steps + 1):
            step = player.seek(0, index)
            assert (step.state.step, step.verified_steps, step.difference) == (index, index, None)
            frames.append(player.frame)
            states.append(step.state)
        assert states[0].seats[0].last_action == ""
        assert all(state.seats[0].last_action in ("left", "down", "right", "up") for state in states[1:])
        assert states[0].symbols is not None
        assert "SFFF" in states[-1].text
        assert states[-1].ending == "terminated"
        assert first.steps >= 4
        player.seek(1, 2)  # another episode in between
        for index in (first.steps, 0, 3, 2, 1):
            step = player.seek(0, index)
            assert (player.frame == frames[index], step.state) == (True, states[index])
        end = player.seek(0, 10**6)
        assert (end.state.step, end.is_end, end.steps) == (first.steps, True, first.steps)
    with player_process(lake) as player:  # simulated again, not remembered
        player.read()
        for index in (first.steps, 1, 3, 0):
            step = player.seek(0, index)
            assert (player.frame == frames[index], step.state) == (True, states[index])


def test_a_player_answers_bad_requests_and_continues(lake: Path) -> None:
    with player_process(lake) as player:
        player.read()
        for request, words in (
            ('{"episode": 9}', "which has episodes 0 to 2"),
            ("[1, 2", "not valid"),
            ('{"kind": "dance"}', "not valid"),
        ):
            player.send(request)
            reply = player.read()
            assert isinstance(reply, ReplayFailed)
            assert words in reply.message
        assert player.seek(0, 1).state.step == 1
        assert player.process.stdin is not None
        player.process.stdin.close()
        assert player.process.wait(60) == 0


def test_a_player_reports_where_the_simulation_differs(tmp_path: Path) -> None:
    path = tmp_path / "recording.bin"
    header = RecordingHeader(env_id="FrozenLake-v1", env_kwargs={"is_slippery": False})
    rewards = np.array([0, 0, 0.5, 0, 0, 1], np.float64)
    with RecordingWriter(path, header) as writer:
        writer.append([RecordedEpisode(0, 1, None, np.array([1, 1, 2, 2, 1, 2]), rewards, "terminated")])
    with player_process(path) as player:
        player.read()
        assert player.seek(0, 2).difference is None
        step = player.seek(0, 5)
        assert step.difference is not None
        assert (step.difference.step, step.difference.recorded_reward, step.difference.simulated_reward) == (3, 0.5, 0)
        assert player.seek(0, 1).difference == step.difference  # known from now on
        assert step.verified_steps == 3


def test_a_player_finds_episodes_that_are_recorded_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "recording.bin"
    record_episodes(path, "FrozenLake-v1", (1,))
    with player_process(path) as player:
        assert isinstance(first := player.read(), ReplayOpened)
        with RecordingWriter(path, RecordingHeader(env_id="FrozenLake-v1")) as writer:
            writer.append([RecordedEpisode(1, 5, None, np.array([0]), np.array([0.0]), "running")])
        player.send('{"kind": "refresh"}')
        assert isinstance(second := player.read(), ReplayOpened)
        assert [len(first.episodes), len(second.episodes)] == [1, 2]
        assert second.episodes[1].ending == "running"


def test_a_file_that_is_not_a_recording_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "recording.bin"
    path.write_bytes(b"\0\1\2" * 100)
    with player_process(path) as player:
        reply = player.read()
        assert isinstance(reply, ReplayFailed)
        assert "is not a recording" in reply.message
        assert player.process.wait(60) == 2


def test_what_was_shown_is_kept_in_bounded_memory() -> None:
    state = SessionState(
        episode=0, step=0, seed=1, ending="running", is_paused=False, rate_hz=None, action_names=(), seats=()
    )
    cache = StepCache(max_bytes=100_000)
    for step in range(200):
        cache.put(ShownStep(state.model_copy(update={"step": step}), False, None, b"x" * 10_000, ""))
    assert cache.size_bytes <= 100_000
    assert cache.get(0, 199) is not None
    assert cache.get(0, 0) is None


def test_the_strip_has_the_extremes_of_each_part() -> None:
    rewards = np.zeros(1000)
    rewards[500] = -3
    rewards[999] = 7
    strip = reward_strip(rewards, parts=10)
    assert (strip[5], strip[9], strip[0]) == ((-3.0, 0.0), (0.0, 7.0), (0.0, 0.0))
    assert reward_strip(np.empty(0)) == ()


def test_a_large_frame_is_smaller_and_not_scrambled() -> None:
    image = np.zeros((1080, 1920, 3), np.uint8)
    image[:, :960] = 255
    shape, data = shrink(image)
    assert (shape.width, shape.height) == (1280, 720)
    shown = np.frombuffer(data, np.uint8).reshape(720, 1280, 3)
    assert (shown[:, :636].min(), shown[:, 644:].max()) == (255, 0)
