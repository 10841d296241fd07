"""Renders an environment into its lane while it is watched, in the cheapest known way."""

from __future__ import annotations

import atexit
import copy
import inspect
import os
import random
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import numpy as np

from .writer import LaneWriter

NO_FRAME_REASON = "this environment cannot be rendered"
_BGRX_MASKS = (0xFF0000, 0xFF00, 0xFF)


class RenderUnavailable(Exception):
    """This environment cannot be rendered, now or later."""


class FrameRenderer:
    """Renders one environment as `rgb_array`, whatever render mode it was created with, and leaves it as it was.

    The mode is set only while rendering: some environments do more work at every step when they have one. MuJoCo's
    are drawn by a renderer of our own, since the quality and the camera of their own one are those of the script.
    """

    def __init__(self, env: Any) -> None:
        # Wrappers may collect frames or draw over them, so the unwrapped environment is rendered.
        self._core = getattr(env, "unwrapped", env)
        self._is_prepared = False
        self._options: dict[str, str] = {}
        self._mujoco: _MujocoView | None = None
        self._drawing: dict[str, tuple[Any, Any]] = {}
        """Attributes that rendering has set, such as its surfaces: what the script had in their place, and ours."""

    def render_frame(self) -> Any:
        """Return bytes [height, width, 3 or 4], valid until the next step.

        Raises RenderUnavailable, or whatever the environment's render raises.
        """
        core = self._core
        if not self._is_prepared:
            self._is_prepared = True
            prepare_rendering(core)
            if _takes_mode(core):
                self._options = {"mode": "rgb_array"}
            if "pygame" not in sys.modules:
                self._render()  # may import pygame, which makes the next frames cheaper
        rendered, surfaces = self._render()
        if surfaces:
            return surface_pixels(surfaces[-1])
        if isinstance(rendered, list):  # some older environments return all frames since the last call
            rendered = rendered[-1] if rendered else None
        if not isinstance(rendered, np.ndarray):
            raise RenderUnavailable(NO_FRAME_REASON)
        return rendered

    def close(self) -> None:
        if self._mujoco is not None:
            self._mujoco.close()

    def hash_frame(self, start: int) -> int:
        """Return a hash of the frame; `start` is one before it."""
        frame = self.render_frame()
        rgb = frame[..., 2::-1] if frame.shape[-1] == 4 else frame
        return zlib.crc32(rgb.tobytes(), zlib.crc32(str(rgb.shape).encode(), start))

    def _render(self) -> tuple[Any, list[Any]]:
        """Return the result of `render`, and the pygame surfaces that it would have converted."""
        surfaces: list[Any] = []
        core = self._core
        with _capture_surfaces(surfaces), _restored_random_states(core), self._restored_attributes(core):
            if self._options:
                return core.render(**self._options), surfaces
            with self._own_mujoco_renderer(core), _rgb_array_mode(core):
                return core.render(), surfaces

    @contextmanager
    def _restored_attributes(self, core: Any) -> Iterator[None]:
        """Restore afterwards what `render` sets; until the next frame, keep what it has created."""
        attributes = getattr(core, "__dict__", None)
        if attributes is None:
            yield
            return
        before = dict(attributes)
        for name, (replaced, own) in self._drawing.items():
            if before.get(name) is replaced:
                attributes[name] = own
        _draw_particle_copies(core, attributes)
        try:
            yield
        finally:
            for name, value in list(attributes.items()):
                replaced = before.get(name)
                if name in before and value is replaced:
                    continue
                if name not in _PARTICLES and (replaced is None or isinstance(value, int)):
                    self._drawing[name] = replaced, value
                if name in before:
                    attributes[name] = replaced
                else:
                    del attributes[name]

    def _own_mujoco_renderer(self, core: Any) -> AbstractContextManager[None]:
        if not hasattr(getattr(core, "mujoco_renderer", None), "_viewers"):
            return nullcontext()
        if self._mujoco is None or self._mujoco.data is not core.data:
            self.close()
            self._mujoco = _MujocoView(core)
        return self._mujoco.drawing(core)


class _MujocoView:
    """A renderer of our own for the model and the data of an environment, in an OpenGL context of its own."""

    def __init__(self, core: Any) -> None:
        self.data = core.data
        self._data_before: Any = copy.copy(core.data)
        self._pid = os.getpid()
        self.renderer = copy.copy(core.mujoco_renderer)
        self.renderer._viewers, self.renderer.viewer = {}, None
        # Without shadows and antialiasing, a frame is eight times cheaper. Read when the context is created.
        self.renderer.model = copy.copy(core.model)
        self.renderer.model.vis.quality.shadowsize = 0
        self.renderer.model.vis.quality.offsamples = 0
        config = getattr(self.renderer, "default_cam_config", None) or {}
        if getattr(self.renderer, "camera_id", None) == -1 and "trackbodyid" not in config:
            # Without this, a fast robot leaves the frame. Not available in every version.
            with suppress(Exception):
                self.renderer.camera_id = core.model.camera("track").id
        atexit.register(self.close)

    @contextmanager
    def drawing(self, core: Any) -> Iterator[None]:
        """Let `core.render` draw with it, in its context; afterwards model and data are as they were."""
        import mujoco

        mujoco.mj_copyData(self._data_before, core.model, self.data)
        with _restored_gl_context():
            if self.renderer.viewer is not None:
                self.renderer.viewer.make_context_current()
            core.mujoco_renderer = self.renderer  # until the environment's attributes are restored
            try:
                yield
            finally:
                mujoco.mj_copyData(self.data, core.model, self._data_before)
                if self.renderer.viewer is not None:  # whose colours and sizes may change
                    self.renderer.model = self.renderer.viewer.model = core.model

    def close(self) -> None:
        """Free it while its context is the current one: it would free objects of the script's context."""
        if self.renderer.viewer is None or os.getpid() != self._pid:
            return
        viewer, self.renderer.viewer, self.renderer._viewers = self.renderer.viewer, None, {}
        atexit.unregister(self.close)
        with suppress(Exception), _restored_gl_context():
            viewer.make_context_current()
            viewer.con.free()
            viewer.free()


@contextmanager
def _restored_gl_context() -> Iterator[None]:
    """Make the OpenGL context current again that is current now: a renderer draws without choosing its own."""
    egl: Any = sys.modules.get("OpenGL.EGL") if os.environ.get("MUJOCO_GL") == "egl" else None
    glfw: Any = sys.modules.get("glfw") if egl is None else None
    if egl is not None:
        display, context = egl.eglGetCurrentDisplay(), egl.eglGetCurrentContext()
        surfaces = [egl.eglGetCurrentSurface(kind) for kind in (egl.EGL_DRAW, egl.EGL_READ)]
    elif glfw is not None:
        context = glfw.get_current_context()
    try:
        yield
    finally:
        if egl is not None:
            own_display = getattr(sys.modules.get("mujoco.egl"), "EGL_DISPLAY", None)
            with suppress(Exception):  # there is nothing to restore in a display that was terminated
                egl.eglMakeCurrent(display if context else own_display, *surfaces, context)
        elif glfw is not None:
            glfw.make_context_current(context)


@contextmanager
def _restored_random_states(core: Any) -> Iterator[None]:
    """Restore the random generators from which `render` may draw."""
    generators = [value for value in getattr(core, "__dict__", {}).values() if isinstance(value, np.random.Generator)]
    states = [(generator.bit_generator, generator.bit_generator.state) for generator in generators]
    global_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(global_state)
        np.random.set_state(numpy_state)
        for bit_generator, state in states:
            bit_generator.state = state


_PARTICLES = ("particles", "_clean_particles")


def _draw_particle_copies(core: Any, attributes: dict[str, Any]) -> None:
    """Let `render` draw copies of LunarLander's particles: it ages those that it draws, and then destroys them."""
    particles = attributes.get("particles")
    if particles and isinstance(particles, list) and hasattr(type(core), "_clean_particles"):
        attributes["particles"] = [SimpleNamespace(fixtures=item.fixtures, ttl=item.ttl) for item in particles]
        attributes["_clean_particles"] = lambda are_all: None


def can_render(env: Any) -> bool:
    core = getattr(env, "unwrapped", env)
    metadata = getattr(core, "metadata", None) or {}
    modes = metadata.get("render_modes") or metadata.get("render.modes") or ()
    return callable(getattr(core, "render", None)) and "rgb_array" in modes


def _takes_mode(core: Any) -> bool:
    """Return whether `render` takes the mode, as before Gym 0.26 (in 0.25 through a function with **kwargs)."""
    try:
        parameters = inspect.signature(core.render).parameters
    except (TypeError, ValueError):
        return False
    is_gym_env = any(kind.__module__.partition(".")[0] == "gym" for kind in type(core).__mro__)
    return "mode" in parameters or (
        is_gym_env and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    )


@contextmanager
def _rgb_array_mode(core: Any) -> Iterator[None]:
    """Set the environment's render mode to `rgb_array` for the duration of the block."""
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
    """Collect the surfaces that an environment would convert to arrays."""
    pygame = sys.modules.get("pygame")
    module: Any = getattr(pygame, "surfarray", None)
    original = getattr(module, "pixels3d", None)
    if original is None:
        yield
        return
    module.pixels3d = _capturing_pixels3d(original, surfaces)
    try:
        yield
    finally:
        module.pixels3d = original


def _capturing_pixels3d(original: Callable[[Any], Any], surfaces: list[Any]) -> Callable[[Any], Any]:
    """Replace `pixels3d`: the conversion takes three times as long as rendering, and the bytes exist already."""
    thread = threading.get_ident()

    def pixels3d(surface: Any) -> Any:
        if threading.get_ident() != thread or surface.get_masks()[:3] != _BGRX_MASKS or surface.get_bytesize() != 4:
            return original(surface)
        surfaces.append(surface)
        return np.zeros((1, 1, 3), np.uint8)

    return pixels3d


def surface_pixels(surface: Any) -> Any:
    """Return the pixels of a 32-bit pygame surface (BGRX) without a copy."""
    width, height = surface.get_size()
    rows = np.frombuffer(surface.get_buffer(), np.uint8).reshape(height, surface.get_pitch())
    return rows[:, : width * 4].reshape(height, width, 4)


def prepare_rendering(core: Any) -> None:
    """Prepare an unwrapped environment for its first frame; raise RenderUnavailable if it cannot be rendered."""
    if not can_render(core):
        raise RenderUnavailable(NO_FRAME_REASON)
    model = getattr(core, "model", None)
    if hasattr(model, "vis") and hasattr(model, "ncam"):
        has_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")) or sys.platform == "darwin"
        if not has_display and os.environ.setdefault("MUJOCO_GL", "egl") == "glfw":
            # It would not raise but terminate the process.
            raise RenderUnavailable("there is no display and MUJOCO_GL is glfw; set MUJOCO_GL=egl")


class FrameTap:
    """Connects an environment to its lane. Failures are reported only to `warn`, and only once."""

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
        """Call after each step of the environment, before it is reset."""
        self._step += 1
        self._return += reward
        if self.is_due():
            self.publish_frame(self._episode, self._step, reward, self._return)
        if done:
            self.reset()

    def reset(self) -> None:
        """Start a new episode."""
        if self._step:
            self._episode += 1
            self._step = 0
            self._return = 0.0

    def publish_frame(self, episode: int, step: int, reward: float, episodic_return: float) -> None:
        """Render and publish a frame, whether due or not."""
        started = time.perf_counter()
        try:
            frame = self._renderer.render_frame()
        except RenderUnavailable as error:
            self.lane.mark_unavailable(str(error))
            self._warn_once()
            return
        except Exception as error:  # whatever a graphics driver raises, training continues
            problem = f"{type(error).__name__}: {error}"
            self.lane.mark_unavailable(
                " ".join(part for part in (f"rendering failed ({problem[:300]}).", self._advice) if part)
            )
            self._warn_once()
            return
        self.lane.publish(
            frame,
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
        self._renderer.close()
        self.lane.close()
