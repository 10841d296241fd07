"""Counts steps at the outermost wrapper of an environment: what the script itself steps may skip frames below it."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from mosaic.probe.inside.hooks import replace_method

_METHODS = ("step", "reset")
_LIBRARIES = ("gymnasium.", "gym.", "stable_baselines3.common.monitor")
_UNEQUAL_WRAPPERS = ("AtariPreprocessing", "MaxAndSkipObservation", "Autoreset", "AutoResetWrapper")
"""The wrappers of these libraries whose `step` is not one step of the environment inside."""

_MAX_HELPERS = 2
"""Functions that the `step` of a wrapper may call one inside the other to step the environment inside."""
_OWN_FRAMES = 4
"""`find_outermost`, its callers `count_at_outermost` and `poll`, and the patched `step`."""

_counted: dict[int, CountedWrapper] = {}
_patched_classes: set[type] = set()


class CountedWrapper:
    """Adds the steps of a wrapper to a counter."""

    def __init__(self, wrapper: Any, counter: Any) -> None:
        self.counter = counter
        self.is_stepped = True
        """Whether the script has stepped it since the last reset of the environment inside."""
        self.kind: Any = type(wrapper)
        """The class whose `step` counts: an inherited `step` that it calls is not counted again."""
        self.is_running_step_counted = self.kind in _patched_classes
        """Whether a step that is running now will be counted at its end."""
        self._identity = id(wrapper)
        self._reference = weakref.ref(wrapper, lambda _: self.close())
        _counted[self._identity] = self
        _patch_step(self.kind)

    def is_of(self, wrapper: Any) -> bool:
        return wrapper is not None and wrapper is self._reference()

    def close(self) -> None:
        if _counted.get(self._identity) is self:
            del _counted[self._identity]


def _patch_step(kind: Any) -> None:
    if kind in _patched_classes:
        return
    _patched_classes.add(kind)
    original, wrapper_of = kind.step, _counted.get

    def step(self: Any, action: Any) -> Any:
        result = original(self, action)
        wrapper = wrapper_of(id(self))
        if wrapper is not None and wrapper.kind is kind:
            wrapper.counter.steps += 1
            wrapper.is_stepped = True
        return result

    def any_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        wrapper = wrapper_of(id(self))
        if wrapper is not None and wrapper.kind is kind:
            wrapper.counter.steps += 1
            wrapper.is_stepped = True
        return result

    patched = functools.wraps(original)(step if takes_only(original, "action") else any_step)
    replace_method(kind, "step", patched)


def takes_only(method: Any, argument: str) -> bool:
    """Return whether a method has no argument but one of this name."""
    code = getattr(method, "__code__", None)
    return code is not None and code.co_argcount == 2 and code.co_varnames[1] == argument and not code.co_flags & 12


def find_outermost(env: Any) -> tuple[Any, bool]:
    """Return the outermost wrapper whose `step` or `reset` steps this environment now, and whether it is `step`.

    None if that is the environment itself, or if one step of the wrapper is one of the environment.
    """
    outer, is_stepping, helpers = env, True, 0
    frame: Any = sys._getframe(_OWN_FRAMES)
    while frame is not None and helpers <= _MAX_HELPERS:
        code = frame.f_code
        helpers += 1
        if code.co_name in _METHODS and code.co_argcount:
            candidate = frame.f_locals.get(code.co_varnames[0])
            if candidate is outer or (_is_env(candidate) and any(inner is outer for inner in wrapped_envs(candidate))):
                outer, is_stepping, helpers = candidate, code.co_name == "step", 0
        frame = frame.f_back
    if outer is env:
        return None, is_stepping
    for wrapper in wrapped_envs(outer):
        if wrapper is env:
            return None, is_stepping
        kind = type(wrapper)
        if not kind.__module__.startswith(_LIBRARIES) or kind.__name__ in _UNEQUAL_WRAPPERS:
            break
    return outer, is_stepping


def _is_env(candidate: Any) -> bool:
    return any(base.__name__ == "Env" for base in type(candidate).__mro__)


def wrapped_envs(env: Any) -> Iterator[Any]:
    """Yield an environment, the one that it wraps, and so on."""
    while env is not None:
        yield env
        env = vars(env).get("env") if hasattr(env, "__dict__") else None
