"""Makes the algorithms importable on a machine that has torch and numpy and nothing else of ours.

Their files import gymnasium, pydantic and mosaic for what a run needs; an update step needs none of them. Stand-ins
take their places: whatever is asked of them is a class that does nothing, and a setting is its default.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
ABSENT = ("gymnasium", "pydantic", "mosaic")


class _Kind(type):
    """Of classes that have every attribute and take every parameter."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __getitem__(cls, _: Any) -> Any:
        return cls


class Anything(metaclass=_Kind):
    """Settings become attributes."""

    def __init__(self, *_: Any, **settings: Any) -> None:
        for name, value in settings.items():
            setattr(self, name, value)


def _default(default: Any = None, **_: Any) -> Any:
    return default


def _unchanged(*_: Any, **__: Any) -> Callable[[Any], Any]:
    return lambda function: function


KNOWN: dict[str, dict[str, Any]] = {
    "pydantic": {"Field": _default, "model_validator": _unchanged, "field_validator": _unchanged},
    "mosaic": {"__version__": "0"},
    "mosaic.envs.atari": {"SIDE": 84, "STACK": 4},
}


class _StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)  # the import system gives it a path, as a package has one

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(KNOWN.get(module.__name__, {}))


def prepare() -> None:
    """Call before anything of ours is imported."""
    sys.meta_path.insert(0, _Finder())
    sys.path.insert(0, str(ROOT / "src"))
