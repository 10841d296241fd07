"""Rendering an environment into its lane: render modes, fast paths and failures."""

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


class FakeEnv:
    """An environment that renders a plain square and records the render mode of each call."""

    metadata = {"render_modes": ["human", "rgb_array"]}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.modes: list[str | None] = []
        self.result: Any = np.full((4, 4, 3), 5, np.uint8)

    def render(self) -> Any:
        self.modes.append(self.render_mode)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return lanes_folder(tmp_path)


@pytest.fixture
def lane(folder: str) -> Iterator[LaneWriter]:
    writer = LaneWriter(folder, 0)
    yield writer
    writer.close()


@pytest.mark.parametrize("mode", [None, "human", "rgb_array"])
def test_the_mode_is_set_only_while_rendering(mode: str | None) -> None:
    env = FakeEnv(mode)
    renderer = FrameRenderer(env)
    assert (renderer.render_frame() == 5).all()
    assert set(env.modes) == {"rgb_array"}
    assert env.render_mode == mode


def test_the_mode_is_restored_when_rendering_fails() -> None:
    env = FakeEnv()
    env.result = RuntimeError("no GL")
    with pytest.raises(RuntimeError):
        FrameRenderer(env).render_frame()
    assert env.render_mode is None


def test_an_old_environment_gets_the_mode_at_every_call() -> None:
    class Old:
        metadata = {"render.modes": ["rgb_array"]}

        def render(self, mode: str = "human") -> Any:
            return np.full((2, 2, 3), 9, np.uint8) if mode == "rgb_array" else None

    assert (FrameRenderer(Old()).render_frame() == 9).all()


def test_the_newest_of_a_list_of_frames_is_used() -> None:
    env = FakeEnv()
    env.result = [np.zeros((4, 4, 3), np.uint8), np.ones((4, 4, 3), np.uint8)]
    assert (FrameRenderer(env).render_frame() == 1).all()


@pytest.mark.parametrize("result", [None, "a text"])
def test_an_environment_that_returns_no_array_cannot_be_rendered(result: Any) -> None:
    env = FakeEnv()
    env.result = result
    with pytest.raises(RenderUnavailable, match="cannot be rendered"):
        FrameRenderer(env).render_frame()


def test_gym_025_gets_the_mode_through_a_function_with_kwargs() -> None:
    class Middle(FakeEnv):
        def render(self, *args: Any, **options: Any) -> Any:
            return [] if self.render_mode else self.result if options == {"mode": "rgb_array"} else None

    Middle.__module__ = "gym.envs.middle"
    assert (FrameRenderer(Middle()).render_frame() == 5).all()


def test_an_environment_that_cannot_be_rendered_is_unavailable_from_the_start(lane: LaneWriter, folder: str) -> None:
    env = FakeEnv()
    env.metadata = {"render_modes": ["ansi"]}
    FrameTap(env, lane)
    reader = LaneReader(folder)
    reader.read_newest()
    assert (reader.state, reader.reason) == ("unavailable", "this environment cannot be rendered")


def test_a_driver_failure_is_reported_once_with_advice(lane: LaneWriter, folder: str) -> None:
    env = FakeEnv()
    env.result = RuntimeError("no EGL here")
    warnings: list[str] = []
    tap = FrameTap(env, lane, advice="Set MUJOCO_GL=egl.", warn=warnings.append)
    for _ in range(3):
        tap.publish_frame(1, 1, 0.0, 0.0)
    sentence = "Live frames are off: rendering failed (RuntimeError: no EGL here). Set MUJOCO_GL=egl."
    assert warnings == [sentence]
    assert not lane.is_due()
    reader = LaneReader(folder)
    reader.read_newest()
    assert reader.reason == sentence.removeprefix("Live frames are off: ")


def test_a_tap_counts_episodes_steps_and_return(lane: LaneWriter, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tap = FrameTap(FakeEnv(), lane)
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
def test_the_raw_surface_equals_the_rendered_array(env_id: str) -> None:
    env, other = envs.make(env_id), envs.make(env_id, render_mode="rgb_array")
    env.reset(seed=1)
    other.reset(seed=1)
    renderer = FrameRenderer(env)
    renderer.render_frame()
    raw = np.array(renderer.render_frame())
    expected: Any = other.render()
    assert raw.shape[2] == 4
    assert (as_rgb(raw, BGRX32) == expected).all()
    assert env.unwrapped.render_mode is None
    env.close()
    other.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "LunarLander-v3", "FrozenLake-v1"])
def test_rendering_does_not_change_the_environment(env_id: str) -> None:
    def play(is_rendered: bool) -> list[Any]:
        env = envs.make(env_id)
        seen: list[Any] = [env.reset(seed=3)[0]]
        env.action_space.seed(3)
        renderer = FrameRenderer(env)
        for _ in range(200):
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            seen += [observation, reward]
            if is_rendered:
                renderer.render_frame()
            if terminated or truncated:
                seen.append(env.reset()[0])
        core: Any = env.unwrapped
        seen.append(str(core.np_random.bit_generator.state))
        env.close()
        return seen

    assert [np.asarray(part).tobytes() for part in play(False)] == [np.asarray(part).tobytes() for part in play(True)]


def test_a_driver_that_would_kill_the_process_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    for variable in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(variable, raising=False)

    class Model:
        ncam = 0
        vis = None

    env = FakeEnv()
    env.model = Model()  # type: ignore[attr-defined]
    with pytest.raises(RenderUnavailable, match="MUJOCO_GL=egl"):
        FrameRenderer(env).render_frame()
    assert os.environ["MUJOCO_GL"] == "glfw"
