"""The CleanRL worker: the algorithms of CleanRL, one file each. Importing this package is cheap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mosaic import __version__
from mosaic.base.worker_registry import ActingPolicy, WorkerDescription, python_module


def describe() -> WorkerDescription:
    """Return what the daemon and the command line need to know about this worker."""
    return WorkerDescription(
        id="cleanrl",
        aliases=("cleanrl_worker",),
        title="CleanRL",
        version=__version__,
        command=python_module("cleanrl_worker.cli"),
        checker=(*python_module("cleanrl_worker.cli"), "--checker"),
        schemas=Path(__file__).parent / "metadata" / "cleanrl" / __version__ / "schemas.json",
        log_name="cleanrl",
        programs=("cleanrl", "cleanrl_python"),
        script_names=_script_names,
        describe_script=_describe_script,
        find_installed_scripts=_find_installed_scripts,
        load_policy=_load_policy,
    )


def _script_names(path: str) -> tuple[str, ...]:
    from cleanrl_worker.shell.user_cleanrl import script_names

    return script_names(path)


def _describe_script(path: str, name: str) -> dict[str, Any]:
    from cleanrl_worker.shell.user_cleanrl import script_algorithm

    return script_algorithm(path, name)


def _find_installed_scripts(python: str | None) -> str | None:
    from cleanrl_worker.shell.user_cleanrl import find_installed

    return find_installed(python)


def _load_policy(path: Path, algo: str | None, env_id: str | None) -> ActingPolicy:
    from cleanrl_worker.evaluation.loading import load_acting_policy

    return load_acting_policy(path, algo, env_id)
