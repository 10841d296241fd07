"""Finds environments and vector environments where they are created, and starts to record them."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from mosaic.probe.inside.compat import warn_if_needed
from mosaic.probe.inside.core import current_probe
from mosaic.probe.inside.discovery import calling_objects, forget_creation, watch_class
from mosaic.probe.inside.env_taps import find_tap, take_index, tap_env
from mosaic.probe.inside.groups import EnvGroup, Place, calling_place, group_at, read_mark
from mosaic.probe.inside.hooks import call_after, call_before, report_failure

_env_creation = threading.local()
_vectors: dict[int, Vector] = {}
_PROCESS_VECTORS = ("AsyncVectorEnv", "SubprocVecEnv", "SubprocVectorEnv", "ShmemVectorEnv")
"""Vector environments that step in other processes."""
_PATCHED_VECTORS = ("SyncVectorEnv", "AsyncVectorEnv", "DummyVecEnv", "SubprocVecEnv", "BaseVectorEnv")
"""Those of gymnasium and gym, of Stable-Baselines3, and the base class of Tianshou's."""


class Vector:
    """The group of a vector environment. Environments in other processes report their episodes themselves."""

    def __init__(self, envs: Any, group: EnvGroup) -> None:
        identity = id(envs)
        self.group = group
        self._reference = weakref.ref(envs, lambda _: _vectors.pop(identity, None))


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
            if not probe.is_child:
                probe.is_child, probe.num_envs = True, self.num_envs
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


def patch_vector(module: Any) -> None:
    """Patch the vector environments of gymnasium, gym, Stable-Baselines3 and Tianshou."""
    for name in _PATCHED_VECTORS:
        kind = vars(module).get(name)
        if kind is not None:
            call_before(kind, "__init__", "environments", _bind_factories)
            call_before(kind, "reset", "environments", _on_vector_reset)
            step = "step_wait" if "step_wait" in vars(kind) else "step"
            call_after(kind, step, "environments", _on_vector_step)


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


def _on_vector_reset(envs: Any, *args: Any, **kwargs: Any) -> None:
    vector = _vectors.get(id(envs))
    if vector is not None:
        vector.group.needs_check = True


def _on_vector_step(result: Any, envs: Any, *args: Any, **kwargs: Any) -> None:
    vector = _vectors.get(id(envs))
    if vector is not None:
        vector.group.record_vector_step(result)


def find_group(env: Any) -> EnvGroup | None:
    """Return the group of an environment or vector environment, which may be wrapped."""
    while id(env) not in _vectors:
        inner = vars(env).get("venv") if hasattr(env, "__dict__") else None
        if inner is None:
            tap = find_tap(env)
            return tap.group if tap is not None else None
        env = inner
    return _vectors[id(env)].group
