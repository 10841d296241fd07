"""Records environments from `make` or their first reset on: episodes, seeds, and a lane for their frames.

Nothing is wrapped: the methods of their classes are patched, and a table by identity holds the recorded instances. So
an environment keeps its type and can be copied and pickled.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from mosaic.probe.inside.compat import warn_if_needed
from mosaic.probe.inside.core import Counter, Probe, current_probe
from mosaic.probe.inside.discovery import (
    calling_objects,
    forget_creation,
    is_in_constructor,
    is_part_of_recorded,
    taps,
    watch_class,
)
from mosaic.probe.inside.groups import UNKNOWN, EnvGroup, Place, calling_place, group_at, read_mark
from mosaic.probe.inside.hooks import call_after, call_before, replace_method, report_failure
from mosaic.probe.inside.wrappers import CountedWrapper, find_outermost, takes_one_action, wrapped_envs

POLL_S = 0.05
WATCHED_POLL_S = 0.002
MAX_LANES = 64
"""Further environments have no lane."""

_taps: dict[int, EnvTap] = taps
_patched_classes: set[type] = set()
_env_creation = threading.local()
_vectors: dict[int, Vector] = {}
_PROCESS_VECTORS = ("AsyncVectorEnv", "SubprocVecEnv", "SubprocVectorEnv", "ShmemVectorEnv")
"""Vector environments that step in other processes."""
_PATCHED_VECTORS = ("SyncVectorEnv", "AsyncVectorEnv", "DummyVecEnv", "SubprocVecEnv", "BaseVectorEnv")
"""Those of gymnasium and gym, of Stable-Baselines3, and the base class of Tianshou's."""


class EnvTap:
    """Records one environment: its current episode and its lane."""

    __slots__ = (
        "_first_step",
        "_seed",
        "counter",
        "episode",
        "frames",
        "group",
        "has_truncation",
        "index",
        "is_in_vector",
        "kind",
        "late_steps",
        "length",
        "next_poll_at",
        "probe",
        "reference",
        "total",
        "was_reset",
        "wrapper",
    )

    def __init__(self, env: Any, index: int, num_envs: int, group: EnvGroup | None, vector_size: int) -> None:
        self.probe = current_probe()
        self.group = group
        """None in a process that steps environments for another, which counts the steps."""
        self.counter: Any = self.probe if group is None else group.counter
        """The object whose `steps` is incremented by each step."""
        self.wrapper: CountedWrapper | None = None
        """The wrapper that counts the steps instead, if any."""
        self.is_in_vector = False
        """Whether a vector environment counts the steps instead."""
        self.late_steps = 0
        """Number of steps that are counted after a step of this environment, instead of it."""
        if vector_size:
            self.join_vector(vector_size)
        self._first_step = 0
        """Steps of training at the first step of the episode, or before it."""
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
        self.has_truncation: bool | None = None
        """Whether `step` returns five values, as gymnasium's does; not four. Known after the first step."""
        self.was_reset = False
        identity = id(env)
        self.reference = weakref.ref(env, lambda _: _remove_tap(identity, self))
        if "frames" in self.probe.parts and index < MAX_LANES:
            self.frames = make_frame_tap(env, index, num_envs, self.probe)

    @staticmethod
    def patch_step(kind: Any) -> None:
        """Patch the method of a class that takes a step, to record it."""
        _patch_step(kind)

    def join_vector(self, vector_size: int) -> None:
        self.is_in_vector = True
        self.late_steps = vector_size
        self.counter = Counter()
        if self.wrapper is not None:
            self.wrapper.close()

    def poll(self, now: float, reward: Any) -> None:
        """Publish a due frame and flush due values; called at intervals, not at every step."""
        frames, interval_s, is_undecided = self.frames, POLL_S, False
        if self.length < 3:
            if self.group is not None:
                is_undecided = self.group.is_evaluation is None
                self._check_purpose(self.group)
            if self.length == 1 and not self.is_in_vector:
                self._count_at_outermost()
        if frames is not None:
            if frames.is_due():
                frames.publish_frame(self.episode, self.length, reward, self.total)
            if frames.lane.is_watched:
                interval_s = WATCHED_POLL_S
        self.next_poll_at = 0.0 if is_undecided and self.length == 1 else now + interval_s
        if now >= self.probe.next_flush_at:
            self.probe.flush(now)

    def _check_purpose(self, group: EnvGroup) -> None:
        """Compare the first two steps of an episode: if there is training between them, they are training too."""
        probe = self.probe
        if self.length == 1:
            group.on_episode_start()
        elif probe.steps != self._first_step and group.is_evaluation is None:
            group.decide(False)
        self._first_step = probe.steps
        if self.wrapper is not None:
            self.wrapper.counter = group.counter
        elif not self.is_in_vector:
            self.counter = group.counter

    def _count_at_outermost(self) -> None:
        """Count at the wrapper that the script steps, from the running step on."""
        wrapper = self.wrapper
        outer, is_stepping = find_outermost(self.reference())
        if (outer is None and wrapper is None) or (wrapper is not None and wrapper.is_of(outer)):
            return
        if wrapper is not None:
            wrapper.close()
            self.counter, self.wrapper, self.late_steps = wrapper.counter, None, 0
            self.counter.steps += 1
        if outer is not None:
            wrapper = self.wrapper = CountedWrapper(outer, self.counter)
            self.counter, self.late_steps = Counter(), 1
            if wrapper.is_running_step_counted or not is_stepping:
                wrapper.counter.steps -= 1

    def finish_episode(self) -> None:
        probe = self.probe
        if "metrics" in probe.parts:
            if self.group is None:
                self._add_episode_of_child()
            else:
                self.group.add_episode(self.index, self.total, self.length, probe.steps + self.late_steps)
        self.start_episode()

    def _add_episode_of_child(self) -> None:
        probe, mark = self.probe, self.probe.read_mark()
        if mark is not None and mark.purpose != UNKNOWN:
            probe.add_evaluation_episode(self.total, self.length, mark.step)
            probe.steps = self._first_step  # without those of the evaluation
        else:
            step = (probe.steps + self.late_steps) * probe.num_envs
            probe.add_episode(self.index, self.total, self.length, step)
        self._first_step = probe.steps

    def start_episode(self) -> None:
        if self.length:
            self.episode += 1
        self.length = 0
        self.total = 0.0
        self.next_poll_at = 0.0

    def report_environment(self, env: Any, seed: Any = None) -> None:
        """Write the environment's id and its seed to the journal."""
        if seed is not None and seed == self._seed:
            return
        self._seed = seed
        self.probe.write_event("environment", env=self.index, env_id=env_id_of(env), seed=json_seed(seed))

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


def env_id_of(env: Any) -> str:
    """Return the registered id, the name that PettingZoo gives, or the class of an environment."""
    core = getattr(env, "unwrapped", env)
    registered_id = getattr(getattr(env, "spec", None), "id", None)
    name = (getattr(core, "metadata", None) or {}).get("name")
    return str(registered_id or name or type(core).__name__)


def json_seed(seed: Any) -> Any:
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


def tap_env(
    env: Any,
    index: int,
    num_envs: int,
    group: EnvGroup | None,
    vector_size: int = 0,
    *,
    seed: Any = None,
    tap_class: type[EnvTap] = EnvTap,
) -> None:
    """Start recording an environment. One without `step` is ignored."""
    if not hasattr(type(env), "step") or id(env) in _taps:
        return
    _patch_class(type(env), tap_class)
    tap = _taps[id(env)] = tap_class(env, index, num_envs, group, vector_size)
    forget_creation(getattr(env, "unwrapped", env))
    tap.report_environment(env, seed)
    current_probe().has_environments = True


def find_tap(env: Any) -> EnvTap | None:
    """Return the tap of an environment, or of the one that it wraps."""
    return next((_taps[id(inner)] for inner in wrapped_envs(env) if id(inner) in _taps), None)


def _patch_class(kind: type, tap_class: type[EnvTap]) -> None:
    if kind in _patched_classes:
        return
    _patched_classes.add(kind)
    tap_class.patch_step(kind)
    if hasattr(kind, "reset"):
        call_before(kind, "reset", "environments", _on_reset)
    if callable(getattr(kind, "seed", None)):
        call_before(kind, "seed", "environments", _on_seed)
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
                tap.counter.steps += 1
                tap.length += 1
                tap.total += result[1]
                now = clock()
                if now >= tap.next_poll_at:
                    tap.has_truncation = len(result) == 5
                    tap.poll(now, result[1])
                if result[2] or (result[3] and tap.has_truncation):
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

    patched = step if takes_one_action(original) else any_step
    replace_method(kind, "step", functools.wraps(original)(patched))


def _on_reset(env: Any, *args: Any, **kwargs: Any) -> None:
    tap = _taps.get(id(env))
    if tap is None:
        return
    if not tap.was_reset and not is_in_constructor():
        tap.was_reset = True
        if is_part_of_recorded(env):
            _on_close(env)
            return
    tap.start_episode()
    _on_seed(env, kwargs.get("seed"))


def _on_seed(env: Any, seed: Any = None, *args: Any, **kwargs: Any) -> None:
    """Handle `reset(seed=…)`, and `seed(…)` of gym before 0.26."""
    tap = _taps.get(id(env))
    if tap is not None and seed is not None:
        tap.report_environment(env, seed)


def _on_close(env: Any, *args: Any, **kwargs: Any) -> None:
    tap = _taps.pop(id(env), None)
    if tap is not None:
        tap.close()


# --- creation


class Vector:
    """The group of a vector environment. Environments in other processes report their episodes themselves."""

    def __init__(self, envs: Any, group: EnvGroup) -> None:
        self.group = group
        self._reference = weakref.ref(envs, functools.partial(_remove_vector, id(envs)))


def _remove_vector(identity: int, reference: Any) -> None:
    _vectors.pop(identity, None)


class IndexedEnvFactory:
    """Creates the environment of one index. It is pickled into the process that calls it."""

    def __init__(self, make_env: Callable[[], Any], index: int, num_envs: int, vector: Vector) -> None:
        self.make_env = make_env
        self.index = index
        self.num_envs = num_envs
        self.pid = os.getpid()
        self._vector: Vector | None = vector

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_vector": None}

    def __call__(self) -> Any:
        probe = current_probe()
        if os.getpid() != self.pid:
            self._vector = None
            probe.mark_as_child(self.num_envs)
            probe.read_mark = functools.partial(read_mark, probe, self.index)
        outer = getattr(_env_creation, "factory", None)
        _env_creation.factory, _env_creation.count = self, 0
        try:
            env = self.make_env()
        finally:
            _env_creation.factory = outer
        try:
            self._adopt(env)
        except Exception as error:
            report_failure("environments", error)
        return env

    def tap(self, env: Any, seed: Any = None) -> None:
        vector = self._vector
        group, vector_size = (None, 0) if vector is None else (vector.group, self.num_envs)
        tap_env(env, self.index, self.num_envs, group, vector_size, seed=seed)

    def _adopt(self, env: Any) -> None:
        """Record an environment that was created before or without gymnasium.make."""
        if _env_creation.count:
            return
        tap = find_tap(env)
        if tap is None:
            self.tap(env)
        elif self._vector is not None and tap.group is not None:
            tap.join_vector(self.num_envs)
            self._vector.group = tap.group


def patch_registration(module: Any) -> None:
    """Patch gymnasium.make, or gym.make; make_vec creates its environments with it."""
    call_after(module, "make", "environments", lambda env, *args, **kwargs: _tap_new(env, calling_place()))


def patch_core(module: Any) -> None:
    """Patch gymnasium.Env, or gym.Env, for environments that are created without `make`."""
    watch_class(module.Env, module.Wrapper, functools.partial(_tap_direct, module.Wrapper))


def _tap_direct(wrapper: Any, env: Any, place: Place, seed: Any) -> None:
    """Record an environment, or the TimeLimit around it, which ends its episodes."""
    if int(getattr(env, "num_envs", None) or 1) > 1:
        from mosaic.probe.inside.vectors import tap_vector

        tap_vector(env, place, seed)
        return
    wrappers = [caller for caller in calling_objects() if isinstance(caller, wrapper) and caller.unwrapped is env]
    if not any(map(find_tap, wrappers)):
        limits = [caller for caller in wrappers if type(caller).__name__ == "TimeLimit"]
        _tap_new((limits or [env])[-1], place, seed)


def _tap_new(env: Any, place: Place, seed: Any = None) -> None:
    factory = getattr(_env_creation, "factory", None)
    if factory is not None:
        _env_creation.count += 1
        factory.tap(env, seed)
        return
    tap_env(env, take_index(), 1, group_at(place), seed=seed)


def take_index(count: int = 1) -> int:
    """Return the first of the next indices of environments."""
    probe = current_probe()
    first, probe.next_index = probe.next_index, probe.next_index + count
    return first


def patch_vector(module: Any) -> None:
    """Patch the vector environments of gymnasium, gym, Stable-Baselines3 and Tianshou."""
    for name in _PATCHED_VECTORS:
        kind = vars(module).get(name)
        if kind is not None:
            call_before(kind, "__init__", "environments", _bind_factories)
            _patch_vector_step(kind, "step_wait" if "step_wait" in vars(kind) else "step")


def _bind_factories(envs: Any, env_fns: Any, *args: Any, **kwargs: Any) -> Any:
    """Bind each environment factory of a vector environment to its index."""
    make_functions = list(env_fns)
    count = len(make_functions)
    first = take_index(count)
    vector = _vectors[id(envs)] = Vector(envs, group_at(calling_place()))
    forget_creation(envs)
    warn_if_needed(envs, kwargs.get("autoreset_mode"))
    current_probe().has_environments = True
    if type(envs).__name__ in _PROCESS_VECTORS:
        vector.group.child_indices += range(first, first + count)
    factories = [IndexedEnvFactory(make, first + index, count, vector) for index, make in enumerate(make_functions)]
    return (envs, factories, *args), kwargs


def _patch_vector_step(kind: Any, name: str) -> None:
    original, vector_of, clock = getattr(kind, name), _vectors.get, time.monotonic

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        vector = vector_of(id(self))
        if vector is not None:
            group = vector.group
            try:
                if group.is_evaluation is False and group.mark is None and not group.probe.is_evaluating:
                    group.probe.steps += len(result[1])
                else:
                    group.count_vector_step(len(result[1]))
                if group.child_indices:  # else the environments themselves do that
                    now = clock()
                    if now >= group.probe.next_flush_at:
                        group.probe.flush(now)
            except Exception as error:
                del _vectors[id(self)]
                report_failure("environments", error)
        return result

    replace_method(kind, name, step)


def find_group(env: Any) -> EnvGroup | None:
    """Return the group of an environment or vector environment, which may be wrapped."""
    while env is not None:
        if id(env) in _vectors:
            return _vectors[id(env)].group
        env, inner = vars(env).get("venv") if hasattr(env, "__dict__") else None, env
        if env is None:
            tap = find_tap(inner)
            return tap.group if tap is not None else None
    return None
