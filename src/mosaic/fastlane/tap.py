"""From an environment to a lane: draws it when somebody watches, by the cheapest way that is known."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from .writer import LaneWriter

NO_FRAME_REASON = "this environment has no picture"
_BGRX_MASKS = (0xFF0000, 0xFF00, 0xFF)


class RenderUnavailable(Exception):
    """No picture comes of this environment, and none will."""


class FrameRenderer:
    """Draws one environment, as it would draw itself, whatever render mode it was made with.

    The mode is set for the moment of drawing only: some environments do more work at every step when they have one.
    """

    def __init__(self, env: Any) -> None:
        # Wrappers may collect what is drawn, or draw over it: the environment itself is asked.
        self._core = getattr(env, "unwrapped", env)
        self._is_prepared = False
        self._options: dict[str, str] = {}

    def render_frame(self) -> Any:
        """Bytes [height, width, 3 or 4]; valid until the next step. Raises Unpaintable, or what the drawing raises."""
        core = self._core
        if not self._is_prepared:
            self._is_prepared = True
            _prepare_rendering(core)
            if _takes_mode(core):
                self._options = {"mode": "rgb_array"}
            if "pygame" not in sys.modules:
                self._render()  # may import it, and is then cheaper from the next picture on
        drawn, surfaces = self._render()
        if surfaces:
            return surface_pixels(surfaces[-1])
        if isinstance(drawn, list):  # some older environments give all frames since the last call
            drawn = drawn[-1] if drawn else None
        if not isinstance(drawn, np.ndarray):
            raise RenderUnavailable(NO_FRAME_REASON)
        return drawn

    def _render(self) -> tuple[Any, list[Any]]:
        """What render gives, and the surfaces that it would have read back."""
        surfaces: list[Any] = []
        core = self._core
        with _capture_surfaces(surfaces):
            if self._options:
                return core.render(**self._options), surfaces
            with _rgb_array_mode(core):
                return core.render(), surfaces


def can_render(env: Any) -> bool:
    core = getattr(env, "unwrapped", env)
    known = getattr(core, "metadata", None) or {}
    modes = known.get("render_modes") or known.get("render.modes") or ()
    return callable(getattr(core, "render", None)) and "rgb_array" in modes


def _takes_mode(core: Any) -> bool:
    """Before Gym 0.26 the mode was told at every call, at last through a function that takes anything."""
    try:
        taken = inspect.signature(core.render).parameters
    except (TypeError, ValueError):
        return False
    is_of_gym = any(kind.__module__.partition(".")[0] == "gym" for kind in type(core).__mro__)
    return "mode" in taken or (is_of_gym and any(one.kind is one.VAR_KEYWORD for one in taken.values()))


@contextmanager
def _rgb_array_mode(core: Any) -> Iterator[None]:
    """The environment in the mode that gives arrays."""
    mode = getattr(core, "render_mode", None)
    if mode == "rgb_array":
        yield
        return
    core.render_mode = "rgb_array"
    try:
        yield
    finally:
        core.render_mode = mode


@contextmanager
def _capture_surfaces(surfaces: list[Any]) -> Iterator[None]:
    """Surfaces that an environment would read back are handed over instead."""
    pygame = sys.modules.get("pygame")
    module: Any = getattr(pygame, "surfarray", None)
    read_back = getattr(module, "pixels3d", None)
    if read_back is None:
        yield
        return
    module.pixels3d = _capturing_pixels3d(read_back, surfaces)
    try:
        yield
    finally:
        module.pixels3d = read_back


def _capturing_pixels3d(read_back: Callable[[Any], Any], surfaces: list[Any]) -> Callable[[Any], Any]:
    """Reading a surface back into an array takes three times as long as drawing it; its bytes are there already."""
    thread = threading.get_ident()

    def pixels3d(surface: Any) -> Any:
        if threading.get_ident() != thread or surface.get_masks()[:3] != _BGRX_MASKS or surface.get_bytesize() != 4:
            return read_back(surface)
        surfaces.append(surface)
        return np.zeros((1, 1, 3), np.uint8)

    return pixels3d


def surface_pixels(surface: Any) -> Any:
    """The pixels of a 32-bit pygame surface, not copied: blue, green, red, nothing."""
    width, height = surface.get_size()
    rows = np.frombuffer(surface.get_buffer(), np.uint8).reshape(height, surface.get_pitch())
    return rows[:, : width * 4].reshape(height, width, 4)


def _prepare_rendering(core: Any) -> None:
    if not can_render(core):
        raise RenderUnavailable(NO_FRAME_REASON)
    model = getattr(core, "model", None)
    if hasattr(model, "vis") and hasattr(model, "ncam"):
        _prepare_mujoco(core, model)


def _prepare_mujoco(core: Any, model: Any) -> None:
    """Without shadows and smooth edges a picture takes an eighth of the time; before the first one only."""
    has_screen = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")) or sys.platform == "darwin"
    if not has_screen and os.environ.setdefault("MUJOCO_GL", "egl") == "glfw":
        # It would not fail but end the process.
        raise RenderUnavailable("there is no screen and MUJOCO_GL is glfw; set MUJOCO_GL=egl")
    model.vis.quality.shadowsize = 0
    model.vis.quality.offsamples = 0
    renderer: Any = getattr(core, "mujoco_renderer", None)
    config = getattr(renderer, "default_cam_config", None) or {}
    if getattr(renderer, "camera_id", None) == -1 and "trackbodyid" not in config:
        # Without this, what runs fast runs out of the picture. Other versions may not have it.
        with suppress(Exception):
            renderer.camera_id = model.camera("track").id


class FrameTap:
    """An environment and its lane. Its failures reach nobody but `warn`, which is told once."""

    def __init__(
        self, env: Any, lane: LaneWriter, *, advice: str = "", warn: Callable[[str], None] | None = None
    ) -> None:
        self.lane = lane
        self.is_due = lane.is_due
        self._renderer = FrameRenderer(env)
        self._advice = advice
        self._warn = warn
        self._episode = 1
        self._step = 0
        self._return = 0.0
        if not can_render(env):
            lane.mark_unavailable(NO_FRAME_REASON)

    def step(self, reward: float, done: bool) -> None:
        """After each step of the environment, before it is reset."""
        self._step += 1
        self._return += reward
        if self.is_due():
            self.publish_frame(self._episode, self._step, reward, self._return)
        if done:
            self.reset()

    def reset(self) -> None:
        """Where an episode begins."""
        if self._step:
            self._episode += 1
            self._step = 0
            self._return = 0.0

    def publish_frame(self, episode: int, step: int, reward: float, episodic_return: float) -> None:
        """Draws and publishes, due or not."""
        started = time.perf_counter()
        try:
            picture = self._renderer.render_frame()
        except RenderUnavailable as error:
            self.lane.mark_unavailable(str(error))
            self._warn_once()
            return
        except Exception as error:  # whatever a graphics driver raises, training goes on
            said = f"{type(error).__name__}: {error}"
            self.lane.mark_unavailable(
                " ".join(part for part in (f"no picture came ({said[:300]}).", self._advice) if part)
            )
            self._warn_once()
            return
        self.lane.publish(
            picture,
            episode=episode,
            step=step,
            reward=float(reward),
            episodic_return=float(episodic_return),
            render_s=time.perf_counter() - started,
        )
        if self.lane.problem is not None:
            self._warn_once()

    def _warn_once(self) -> None:
        if self._warn is not None:
            warn, self._warn = self._warn, None
            warn(f"Live frames are off: {self.lane.problem}")

    def close(self) -> None:
        self.lane.close()
