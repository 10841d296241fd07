"""Records environments from their creation: episodes, seeds, and a lane for their frames.

Nothing is wrapped: the methods of their classes are patched, and a table by identity holds the recorded instances. So
an environment keeps its type and can be copied and pickled; a copy is not recorded.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from mosaic.probe.inside.core import Probe, current_probe
from mosaic.probe.inside.hooks import call_after, call_before, report_failure

POLL_S = 0.05
WATCHED_POLL_S = 0.002
MAX_LANES = 64
"""Further environments have no lane."""

_taps: dict[int, EnvTap] = {}
_patched_classes: set[type] = set()
_env_creation = threading.local()


class EnvTap:
    """Records one environment: its current episode and its lane."""

    __slots__ = ("_seed", "episode", "frames", "index", "kind", "length", "next_poll_at", "probe", "reference", "total")

    def __init__(self, env: Any, index: int, num_envs: int) -> None:
        self.probe = current_probe()
        self._seed: Any = None
        self.kind = type(env)
        """The class whose `step` counts: an inherited `step` that it calls is not counted again."""
        self.index = index
        self.episode = 1
        self.length = 0
        self.total: Any = 0.0
        self.next_poll_at = 0.0
        """When to check again whether a frame is due or values are to be written."""
        self.frames: Any = None
        identity = id(env)
        self.reference = weakref.ref(env, lambda _: _remove_tap(identity, self))
        if "frames" in self.probe.parts and index < MAX_LANES:
            self.frames = make_frame_tap(env, index, num_envs, self.probe)

    def poll(self, now: float, reward: Any) -> None:
        """Publish a due frame and flush due values; called at intervals, not at every step."""
        frames, interval_s = self.frames, POLL_S
        if frames is not None:
            if frames.is_due():
                frames.publish_frame(self.episode, self.length, reward, self.total)
            if frames.lane.is_watched:
                interval_s = WATCHED_POLL_S
        self.next_poll_at = now + interval_s
        if now >= self.probe.next_flush_at:
            self.probe.flush(now)

    def finish_episode(self) -> None:
        if "metrics" in self.probe.parts:
            self.probe.add_episode(self.index, self.total, self.length)
        self.start_episode()

    def start_episode(self) -> None:
        if self.length:
            self.episode += 1
        self.length = 0
        self.total = 0.0

    def report_environment(self, env: Any, seed: Any = None) -> None:
        """Write the environment's id and its seed to the journal."""
        if seed is not None and seed == self._seed:
            return
        self._seed = seed
        spec = getattr(env, "spec", None)
        self.probe.write_event("environment", env=self.index, env_id=getattr(spec, "id", None), seed=_json_seed(seed))

    def close(self) -> None:
        if self.frames is not None:
            self.frames.close()
            self.frames = None


def make_frame_tap(env: Any, index: int, num_envs: int, probe: Probe) -> Any:
    try:
        from mosaic.fastlane import FrameTap, LaneWriter, lanes_folder

        lane = LaneWriter(lanes_folder(probe.run_dir), index, lane_count=min(num_envs, MAX_LANES))
        return FrameTap(env, lane, warn=lambda text: probe.warn(text, "frames_off"))
    except Exception as error:  # no numpy, no room, no permission: training continues without frames
        report_failure("frames", error)
        return None


def _json_seed(seed: Any) -> Any:
    try:
        return None if seed is None else int(seed)
    except (TypeError, ValueError):
        return str(seed)[:100]


def _remove_tap(identity: int, tap: EnvTap) -> None:
    if _taps.get(identity) is tap:
        del _taps[identity]
        try:
            tap.close()
        except Exception as error:
            report_failure("frames", error)


# --- classes


def tap_env(env: Any, index: int, num_envs: int = 1) -> None:
    """Start recording an environment. One without `step` is ignored."""
    if not hasattr(type(env), "step") or id(env) in _taps:
        return
    _patch_class(type(env))
    tap = _taps[id(env)] = EnvTap(env, index, num_envs)
    tap.report_environment(env)
    current_probe().has_environments = True


def _is_tapped(env: Any) -> bool:
    """Return whether an environment, or one that it wraps, is recorded already."""
    while env is not None:
        if id(env) in _taps:
            return True
        env = vars(env).get("env") if hasattr(env, "__dict__") else None
    return False


def _patch_class(kind: type) -> None:
    if kind in _patched_classes:
        return
    _patched_classes.add(kind)
    _patch_step(kind)
    if hasattr(kind, "reset"):
        call_before(kind, "reset", "environments", _on_reset)
    if hasattr(kind, "close"):
        call_before(kind, "close", "frames", _on_close)


def _patch_step(kind: Any) -> None:
    """Patch `step`, the hot path of a training loop: a microsecond is one percent of a fast one."""
    original = kind.step
    tap_of, clock = _taps.get, time.monotonic

    def step(self: Any, action: Any) -> Any:
        result = original(self, action)
        tap = tap_of(id(self))
        if tap is not None and tap.kind is kind:
            try:
                tap.probe.steps += 1
                tap.length += 1
                tap.total += result[1]
                now = clock()
                if now >= tap.next_poll_at:
                    tap.poll(now, result[1])
                if result[2] or (len(result) == 5 and result[3]):
                    tap.finish_episode()
            except Exception as error:
                _taps.pop(id(self), None)
                report_failure("environments", error)
        return result

    def any_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Handle a `step` with other arguments than one action."""
        if len(args) == 1 and not kwargs:
            return step(self, args[0])
        return original(self, *args, **kwargs)

    code = getattr(original, "__code__", None)
    is_plain = code is not None and code.co_argcount == 2 and code.co_varnames[1] == "action" and not code.co_flags & 12
    kind.step = functools.wraps(original)(step if is_plain else any_step)


def _on_reset(env: Any, *args: Any, **kwargs: Any) -> None:
    tap = _taps.get(id(env))
    if tap is not None:
        tap.start_episode()
        if kwargs.get("seed") is not None:
            tap.report_environment(env, kwargs["seed"])


def _on_close(env: Any, *args: Any, **kwargs: Any) -> None:
    tap = _taps.pop(id(env), None)
    if tap is not None:
        tap.close()


# --- creation


class IndexedEnvFactory:
    """Creates the environment of one index. It is pickled into the process that calls it."""

    def __init__(self, make_env: Callable[[], Any], index: int, num_envs: int) -> None:
        self.make_env = make_env
        self.index = index
        self.num_envs = num_envs
        self.pid = os.getpid()

    def __call__(self) -> Any:
        probe = current_probe()
        if os.getpid() != self.pid:
            probe.mark_as_child(self.num_envs)
        outer = getattr(_env_creation, "factory", None)
        _env_creation.factory, _env_creation.count = self, 0
        try:
            env = self.make_env()
        finally:
            _env_creation.factory = outer
        try:
            if not _env_creation.count and not _is_tapped(env):  # it was created without gymnasium.make
                tap_env(env, self.index, self.num_envs)
        except Exception as error:
            report_failure("environments", error)
        return env


def index_factories(factories: Any) -> list[Any]:
    """Bind each environment factory of a vector environment to its index."""
    functions = list(factories)
    probe = current_probe()
    first, probe.next_index = probe.next_index, probe.next_index + len(functions)
    return [IndexedEnvFactory(make, first + index, len(functions)) for index, make in enumerate(functions)]


def patch_registration(module: Any) -> None:
    """Patch gymnasium.make, or gym.make; make_vec creates its environments with it."""
    call_after(module, "make", "environments", _tap_created)
    if hasattr(module, "make_vec"):
        _patch_make_vec(module)


def _tap_created(env: Any, *args: Any, **kwargs: Any) -> None:
    factory = getattr(_env_creation, "factory", None)
    if factory is not None:
        _env_creation.count += 1
        tap_env(env, factory.index, factory.num_envs)
        return
    probe = current_probe()
    index, probe.next_index = probe.next_index, probe.next_index + 1
    tap_env(env, index)


def _patch_make_vec(module: Any) -> None:
    original = module.make_vec

    @functools.wraps(original)
    def make_vec(*args: Any, **kwargs: Any) -> Any:
        before = current_probe().next_index
        envs = original(*args, **kwargs)
        try:
            if current_probe().next_index == before:  # not built from single environments
                from mosaic.probe.inside.vectors import tap_vector

                tap_vector(envs)
        except Exception as error:
            report_failure("environments", error)
        return envs

    module.make_vec = make_vec


def patch_vector(module: Any) -> None:
    """Patch the vector environments of gymnasium, gym and Stable-Baselines3."""
    for name in ("SyncVectorEnv", "AsyncVectorEnv", "DummyVecEnv", "SubprocVecEnv"):
        kind = vars(module).get(name)
        if kind is not None:
            call_before(kind, "__init__", "environments", _bind_factories)
            if name in ("AsyncVectorEnv", "SubprocVecEnv"):
                call_after(kind, "step_wait", "environments", _count_steps)


def _bind_factories(envs: Any, env_fns: Any, *args: Any, **kwargs: Any) -> Any:
    return (envs, index_factories(env_fns), *args), kwargs


def _count_steps(result: Any, envs: Any, *args: Any, **kwargs: Any) -> None:
    """Count steps that other processes take for this one. They report their episodes themselves."""
    probe = current_probe()
    probe.has_environments = True
    probe.steps += int(envs.num_envs)
    probe.tick()
