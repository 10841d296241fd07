"""Makes the algorithms importable on a machine that has only torch and numpy.

Their modules import gymnasium, pydantic and mosaic for what a run needs; an update step needs none of them. Stubs
replace them: every attribute is a class that does nothing, and a setting has its default.
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
STUBBED_PACKAGES = ("gymnasium", "pydantic", "mosaic")


class _PermissiveMeta(type):
    """The metaclass of classes that have every attribute and accept every parameter."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> None:
        super().__init__(name, bases, namespace)
        for setting, default in options.get("defaults", {}).items():
            setattr(cls, setting, default)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub

    def __getitem__(cls, _: Any) -> Any:
        return cls


class Stub(metaclass=_PermissiveMeta):
    """A class that stores keyword arguments as attributes."""

    def __init__(self, *_: Any, **settings: Any) -> None:
        for name, value in settings.items():
            setattr(self, name, value)


def _field_default(default: Any = None, **_: Any) -> Any:
    return default


def _identity_decorator(*_: Any, **__: Any) -> Callable[[Any], Any]:
    return lambda function: function


STUB_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "pydantic": {
        "Field": _field_default,
        "model_validator": _identity_decorator,
        "field_validator": _identity_decorator,
    },
    "mosaic": {"__version__": "0"},
    "mosaic.contracts.errors": {"problems_of": _identity_decorator},
    "mosaic.worker.envs.atari": {"FRAME_SIZE_PX": 84, "FRAME_STACK": 4},
}


class _StubModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub


class _StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in STUBBED_PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StubModule(spec.name)  # the import system sets its path, because it is a package

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(STUB_ATTRIBUTES.get(module.__name__, {}))


def install_stubs() -> None:
    """Install the stubs; call it before any other import of the project."""
    sys.meta_path.insert(0, _StubFinder())
    sys.path.insert(0, str(ROOT / "src"))
