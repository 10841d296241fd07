"""Imports modules of the user's own that a config names as `module:Name`: environments, wrappers, networks.

A config is data that may come from elsewhere. So only modules that the submitter of the run listed (`Imports`) are
imported, and those that this process's environment allows.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from mosaic.contracts.errors import BadInput, FieldProblem, unknown_name_error
from mosaic.contracts.folder import MODULES_VARIABLE
from mosaic.contracts.payload import Imports

_MAX_SHOWN = 500
_allowed = Imports()


def allow_imports(imports: Imports | None) -> None:
    """Let this process import the modules of its run. Their folders come first, as that of a script does."""
    global _allowed
    if imports is not None:
        _allowed = _allowed.merge(imports)
        sys.path[:0] = [folder for folder in imports.folders if folder not in sys.path]


def allowed_imports() -> Imports:
    """Return what this process may import, for processes that it starts."""
    return _allowed


def import_user_module(name: str, setting: str, always_allowed: Iterable[str] = ()) -> ModuleType:
    """Import the module of `module:Name`, which `setting` names; raise what is wrong with it in one sentence."""
    module, _, member = name.rpartition(":")
    allowed = {*_allowed.modules, *always_allowed, *os.environ.get(MODULES_VARIABLE, "").replace(" ", "").split(",")}
    if module not in allowed:
        raise _problem(
            setting,
            f"the module {module!r} is not allowed: its run was not submitted by a command on this machine that names "
            f"it. If you trust it, set {MODULES_VARIABLE}={module} for the daemon.",
        )
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _problem(setting, f"the module {module!r} needs {error.name!r}, which is not installed.") from error
        todo = "Give the command in its folder, or add that to PYTHONPATH."
        if module.endswith(".py"):
            todo = f"A module is named without .py: {module.removesuffix('.py')}:{member}"
        raise _problem(setting, f"there is no module {error.name!r}. {todo}") from None
    except Exception as error:  # the user's own code raises anything
        cause = f"{type(error).__name__}: {error}"[:_MAX_SHOWN]
        raise _problem(setting, f"the module {module!r} cannot be imported: {cause}.") from error


def import_object(name: str, setting: str, base: type) -> Any:
    """Return the class `module:Class` that `setting` names; raise unless it is a subclass of `base`."""
    module_name, _, attribute = name.rpartition(":")
    module = import_user_module(name, setting)
    value: Any = getattr(module, attribute, None)
    if value is None:
        known = [key for key, kind in vars(module).items() if isinstance(kind, type) and issubclass(kind, base)]
        message = str(unknown_name_error(base.__name__, attribute, known, f"module {module_name!r}"))
        raise _problem(setting, message)
    if not isinstance(value, type) or not issubclass(value, base):
        raise _problem(setting, f"{name!r} is not a subclass of {base.__module__}.{base.__qualname__}.")
    return value


def _problem(setting: str, message: str) -> BadInput:
    return BadInput(f"{setting}: {message}", [FieldProblem(setting, message)])
