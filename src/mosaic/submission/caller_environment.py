"""What a run gets of its submitter's environment: all of it for a program, modules for an environment id."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mosaic.contracts.errors import NotAllowed
from mosaic.contracts.folder import MODULES_VARIABLE
from mosaic.contracts.options import value_at
from mosaic.workers import get_worker

if TYPE_CHECKING:
    from mosaic.contracts.states import EnvModules


def caller_environment() -> dict[str, str]:
    """Return this process's environment; values that are not valid text are left out."""

    def is_text(word: str) -> bool:
        return not any("\ud800" <= char <= "\udfff" for char in word)

    return {name: value for name, value in os.environ.items() if is_text(name + value)}


def program_environment(payload: Mapping[str, Any]) -> dict[str, str] | None:
    """Return this process's environment if a run's config names a program, which needs one; otherwise None."""
    choice = payload["metadata"]["worker"]
    if choice["config"].get("attached"):
        raise NotAllowed("This run was produced by a program that called mosaic.start_run. Run that program again.")
    keys = get_worker(choice["id"]).programs
    has_program = any(value_at(choice["config"], key) is not None for key in keys)
    return caller_environment() if has_program else None


def caller_env_modules() -> EnvModules | None:
    """Return the modules that this process's environment allows environment ids to import; None where none is.

    A module in the current folder is found there, as by `python script.py`.
    """
    names = os.environ.get(MODULES_VARIABLE, "").strip()
    if not names:
        return None
    from mosaic.contracts.states import EnvModules  # imports pydantic, for which `mosaic --help` would wait

    folders = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    for name in names.split(","):
        path = os.path.abspath(name.strip().partition(".")[0])
        if os.path.isdir(path) or os.path.isfile(f"{path}.py"):
            folders.insert(0, os.getcwd())
    return EnvModules(names=names, python_path=os.pathsep.join(dict.fromkeys(folders)))


def with_env_modules(environment: Mapping[str, str], modules: EnvModules | None) -> dict[str, str]:
    """Return the environment of a process that may import these modules besides those that it may anyway."""
    if modules is None:
        return dict(environment)
    given = {MODULES_VARIABLE: modules.names, "PYTHONPATH": modules.python_path}
    separators = {MODULES_VARIABLE: ",", "PYTHONPATH": os.pathsep}
    merged = {
        name: separators[name].join(filter(None, (value, environment.get(name, "")))) for name, value in given.items()
    }
    return {**environment, **merged}
