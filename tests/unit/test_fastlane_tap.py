"""Rendering an environment into its lane: render modes, fast paths and failures."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mosaic.base.fastlane import BGRX32, FrameTap, LaneReader, LaneWriter, as_rgb, lanes_folder
from mosaic.base.fastlane.tap import FrameRenderer, RenderUnavailable
from mosaic.worker import envs

FAMILIES = (
    *("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "FrozenLake-v1", "Taxi-v4", "Blackjack-v1"),
    *("LunarLander-v3", "BipedalWalker-v3", "CarRacing-v3", "MiniGrid-DoorKey-5x5-v0", "ALE/Pong-v5"),
    *("HalfCheetah-v5", "Ant-v5", "Hopper-v5", "InvertedPendulum-v5"),
)


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


@pytest.mark.parametrize("renders", [True, False], ids=["the script renders", "it does not"])
@pytest.mark.parametrize("env_id", FAMILIES)
def test_a_script_sees_the_same_while_frames_are_taken(env_id: str, renders: bool) -> None:
    """F61, R5.2: pixels, observations, random generators and attributes; viewers come and go at random."""

    def play(seed: int) -> str:
        env = envs.make(env_id, render_mode="rgb_array" if renders else None)
        seen, watching = hashlib.sha256(), random.Random(seed)
        env.reset(seed=3)
        env.action_space.seed(3)
        renderer, names = FrameRenderer(env), sorted(vars(env.unwrapped))
        for step in range(50):
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            seen.update(f"{observation} {reward}".encode())
            if seed and watching.random() < 0.5:
                assert renderer.render_frame().size
                assert renders or sorted(vars(env.unwrapped)) == names
            if seed and watching.random() < 0.1:
                renderer.close()
                renderer = FrameRenderer(env)
            if renders and step > 10:
                frame: Any = env.render()
                seen.update(frame.tobytes())
            if terminated or truncated:
                env.reset()
        core: Any = env.unwrapped
        seen.update(f"{core.np_random.bit_generator.state} {random.getstate()}".encode())
        renderer.close()
        env.close()
        return seen.hexdigest()

    assert {play(seed) for seed in (1, 2)} == {play(0)}


def test_two_mujoco_environments_are_rendered_by_turns() -> None:
    """F61: each renderer draws in the OpenGL context that is current, which is the script's one again."""

    def play(is_watched: bool) -> list[bytes]:
        both: list[Any] = [envs.make(name, render_mode="rgb_array") for name in ("Hopper-v5", "HalfCheetah-v5")]
        renderers, seen = [FrameRenderer(env) for env in both], []
        for env in both:
            env.reset(seed=1)
            env.action_space.seed(1)
        for _ in range(5):
            for env, renderer in zip(both, renderers, strict=True):
                env.step(env.action_space.sample())
                if is_watched:
                    renderer.render_frame()
                seen.append(env.render().tobytes())
        for env, renderer in zip(both, renderers, strict=True):
            renderer.close()
            env.close()
        return seen

    assert play(True) == play(False)


def test_random_numbers_that_render_draws_are_not_missing_afterwards() -> None:
    class Noisy(FakeEnv):
        def __init__(self) -> None:
            super().__init__()
            self.np_random = np.random.default_rng(1)
            self.frames = 0

        def render(self) -> Any:
            self.frames += 1
            random.random()
            np.random.random()
            return self.np_random.integers(0, 255, (4, 4, 3), np.uint8)

    def draw(is_watched: bool) -> list[float]:
        random.seed(1)
        np.random.seed(1)
        env = Noisy()
        renderer = FrameRenderer(env)
        for _ in range(3 * is_watched):
            renderer.render_frame()
        return [random.random(), np.random.random(), env.np_random.random(), env.frames]

    assert draw(True) == draw(False)


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
