"""Finds environments that a script creates without `make`, when it resets them for the first time.

An environment that is reset by one that is recorded is a part of it, and not recorded itself.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

from mosaic.probe.inside.groups import Place, calling_frames, calling_place
from mosaic.probe.inside.hooks import call_before, report_failure

taps: dict[int, Any] = {}
"""By identity of an environment or vector environment, what records it: an EnvTap or a VectorTap."""
_creations: dict[int, Creation] = {}


class Creation:
    """An environment that has not been reset yet, and where it was created."""

    def __init__(self, env: Any, on_first_reset: Any) -> None:
        identity = id(env)
        self.reference = weakref.ref(env, lambda _: _creations.pop(identity, None))
        self.place: Place = calling_place()
        self.seed: Any = None
        self.on_first_reset = on_first_reset


def watch_class(base: Any, wrapper: Any, on_first_reset: Any) -> None:
    """Call `on_first_reset` before the first reset of every instance of `base` that is not a `wrapper`.

    Its arguments are the environment, the place of its creation, and the seed.
    """

    def create(cls: Any, *args: Any, **kwargs: Any) -> Any:
        create_next: Any = super(base, cls).__new__
        if create_next is not object.__new__:
            env = create_next(cls, *args, **kwargs)
        elif (args or kwargs) and cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")  # object.__new__ no longer checks that
        else:
            env = create_next(cls)
        try:
            if not isinstance(env, wrapper):
                kind: Any = type(env)
                _patch_class(kind)
                _creations[id(env)] = Creation(env, on_first_reset)
        except Exception as error:
            report_failure("environments", error)
        return env

    base.__new__ = staticmethod(create)


@functools.lru_cache(maxsize=None)
def _patch_class(kind: Any) -> None:
    call_before(kind, "reset", "environments", _on_reset)
    if callable(getattr(kind, "seed", None)):
        call_before(kind, "seed", "environments", _on_seed)


def _on_seed(env: Any, seed: Any = None, *args: Any, **kwargs: Any) -> None:
    """Handle `seed(…)` of gym before 0.26."""
    if id(env) in _creations:
        _creations[id(env)].seed = seed


def _on_reset(env: Any, *args: Any, **kwargs: Any) -> None:
    if id(env) not in _creations or is_in_constructor():
        return
    creation = _creations.pop(id(env))
    if not is_part_of_recorded(env):
        seed = kwargs.get("seed", args[0] if args else None)
        creation.on_first_reset(env, creation.place, creation.seed if seed is None else seed)


def forget_creation(env: Any) -> None:
    """Leave an environment alone that is recorded in another way."""
    _creations.pop(id(env), None)


def is_part_of_recorded(env: Any) -> bool:
    """Return whether a recorded environment is calling a method of this one."""
    return any(id(caller) in taps for caller in calling_objects() if caller is not env)


def is_in_constructor() -> bool:
    """Return whether an environment is being created: what it resets then is not reset by the script."""
    return any(id(caller) in _creations for caller in calling_objects("__init__"))


def calling_objects(method: str | None = None) -> Any:
    """Yield the objects whose methods, or whose methods of one name, are being called, innermost first."""
    for frame in calling_frames():
        code = frame.f_code
        if code.co_argcount and method in (None, code.co_name):
            yield frame.f_locals.get(code.co_varnames[0])
