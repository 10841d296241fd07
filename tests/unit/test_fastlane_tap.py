"""From an environment to a lane: the mode, the cheap ways, and what happens where no picture comes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mosaic import envs
from mosaic.fastlane import BGRX32, FrameTap, LaneReader, LaneWriter, as_rgb, lanes_folder
from mosaic.fastlane.tap import FrameRenderer, RenderUnavailable


class Canvas:
    """An environment that draws a plain square, and knows in which mode it was asked."""

    metadata = {"render_modes": ["human", "rgb_array"]}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.asked: list[str | None] = []
        self.answer: Any = np.full((4, 4, 3), 5, np.uint8)

    def render(self) -> Any:
        self.asked.append(self.render_mode)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return lanes_folder(tmp_path)


@pytest.fixture
def lane(folder: str) -> Iterator[LaneWriter]:
    made = LaneWriter(folder, 0)
    yield made
    made.close()


@pytest.mark.parametrize("mode", [None, "human", "rgb_array"])
def test_the_mode_is_set_for_the_moment_of_drawing_only(mode: str | None) -> None:
    env = Canvas(mode)
    painter = FrameRenderer(env)
    assert (painter.render_frame() == 5).all()
    assert set(env.asked) == {"rgb_array"}
    assert env.render_mode == mode


def test_the_mode_is_restored_when_drawing_fails() -> None:
    env = Canvas()
    env.answer = RuntimeError("no GL")
    with pytest.raises(RuntimeError):
        FrameRenderer(env).render_frame()
    assert env.render_mode is None


def test_an_old_environment_is_told_its_mode_at_every_call() -> None:
    class Old:
        metadata = {"render.modes": ["rgb_array"]}

        def render(self, mode: str = "human") -> Any:
            return np.full((2, 2, 3), 9, np.uint8) if mode == "rgb_array" else None

    assert (FrameRenderer(Old()).render_frame() == 9).all()


def test_the_newest_of_a_list_of_frames_is_taken() -> None:
    env = Canvas()
    env.answer = [np.zeros((4, 4, 3), np.uint8), np.ones((4, 4, 3), np.uint8)]
    assert (FrameRenderer(env).render_frame() == 1).all()


@pytest.mark.parametrize("answer", [None, "a text"])
def test_what_gives_no_array_has_no_picture(answer: Any) -> None:
    env = Canvas()
    env.answer = answer
    with pytest.raises(RenderUnavailable, match="has no picture"):
        FrameRenderer(env).render_frame()


def test_gym_025_is_told_the_mode_through_a_function_that_takes_anything() -> None:
    class Middle(Canvas):
        def render(self, *args: Any, **options: Any) -> Any:
            return [] if self.render_mode else self.answer if options == {"mode": "rgb_array"} else None

    Middle.__module__ = "gym.envs.middle"
    assert (FrameRenderer(Middle()).render_frame() == 5).all()


def test_an_environment_that_cannot_draw_says_so_from_the_start(lane: LaneWriter, folder: str) -> None:
    env = Canvas()
    env.metadata = {"render_modes": ["ansi"]}
    FrameTap(env, lane)
    reader = LaneReader(folder)
    reader.read_newest()
    assert (reader.state, reader.reason) == ("unavailable", "this environment has no picture")


def test_a_driver_that_fails_is_told_once_with_what_to_do(lane: LaneWriter, folder: str) -> None:
    env = Canvas()
    env.answer = RuntimeError("no EGL here")
    told: list[str] = []
    tap = FrameTap(env, lane, advice="Set MUJOCO_GL=egl.", warn=told.append)
    for _ in range(3):
        tap.publish_frame(1, 1, 0.0, 0.0)
    sentence = "Live frames are off: no picture came (RuntimeError: no EGL here). Set MUJOCO_GL=egl."
    assert told == [sentence]
    assert not lane.is_due()
    reader = LaneReader(folder)
    reader.read_newest()
    assert reader.reason == sentence.removeprefix("Live frames are off: ")


def test_a_tap_counts_episodes_steps_and_return(lane: LaneWriter, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tap = FrameTap(Canvas(), lane)
    monkeypatch.setattr(tap, "is_due", lambda: True)
    reader = LaneReader(folder)
    seen = []
    for reward, done in ((1.0, False), (2.0, True), (5.0, False)):
        tap.step(reward, done)
        frame = reader.read_newest()
        assert frame is not None
        seen.append((frame.episode, frame.step, frame.reward, frame.episodic_return))
    assert seen == [(1, 1, 1.0, 1.0), (1, 2, 2.0, 3.0), (2, 1, 5.0, 5.0)]
    tap.reset()
    tap.reset()
    tap.step(0.0, False)
    frame = reader.read_newest()
    assert frame is not None
    assert (frame.episode, frame.step) == (3, 1)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "LunarLander-v3"])
def test_the_raw_surface_shows_what_the_environment_would_give(env_id: str) -> None:
    env, other = envs.make(env_id), envs.make(env_id, render_mode="rgb_array")
    env.reset(seed=1)
    other.reset(seed=1)
    painter = FrameRenderer(env)
    painter.render_frame()
    raw = np.array(painter.render_frame())
    wanted: Any = other.render()
    assert raw.shape[2] == 4
    assert (as_rgb(raw, BGRX32) == wanted).all()
    assert env.unwrapped.render_mode is None
    env.close()
    other.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "LunarLander-v3", "FrozenLake-v1"])
def test_drawing_changes_nothing_of_what_follows(env_id: str) -> None:
    def played(is_drawn: bool) -> list[Any]:
        env = envs.make(env_id)
        seen: list[Any] = [env.reset(seed=3)[0]]
        env.action_space.seed(3)
        painter = FrameRenderer(env)
        for _ in range(200):
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            seen += [observation, reward]
            if is_drawn:
                painter.render_frame()
            if terminated or truncated:
                seen.append(env.reset()[0])
        core: Any = env.unwrapped
        seen.append(str(core.np_random.bit_generator.state))
        env.close()
        return seen

    assert [np.asarray(part).tobytes() for part in played(False)] == [
        np.asarray(part).tobytes() for part in played(True)
    ]


def test_a_driver_that_would_end_the_process_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    for variable in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(variable, raising=False)

    class Model:
        ncam = 0
        vis = None

    env = Canvas()
    env.model = Model()  # type: ignore[attr-defined]
    with pytest.raises(RenderUnavailable, match="MUJOCO_GL=egl"):
        FrameRenderer(env).render_frame()
    assert os.environ["MUJOCO_GL"] == "glfw"
