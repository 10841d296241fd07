"""What a run gets of its submitter: the name; the environment for a program; folders for modules that it names."""

from __future__ import annotations

import os
import pwd
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mosaic.base.worker_registry import get_worker, name_worker
from mosaic.contracts.errors import MAX_SUGGESTED, FieldProblem, NotAllowed, UnknownName
from mosaic.contracts.imports import named_modules
from mosaic.contracts.options import CONFIG_PATH, OPTIONS, value_at

# --- Who submitted a run: a login name, with the host of a client on another machine (`ann`, `ann@laptop`).


MAX_SUBMITTER_LENGTH = 128


def validate_submitter(text: str) -> str:
    """What the client states; nobody verifies it, so it is shown and searched for, and decides nothing."""
    if not text or len(text) > MAX_SUBMITTER_LENGTH or not text.isprintable() or " " in text:
        raise ValueError(f"expected a login name of at most {MAX_SUBMITTER_LENGTH} characters, without spaces")
    return text


# --- What a run gets of its submitter: the name; the environment for a program; folders for modules that it names.


TRACKING_PREFIX, HUB_PREFIX = "WANDB_", "HF_"
_OF_ANOTHER_RUN = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SERVICE", "WANDB_SWEEP_ID")
"""What a process that is tracked itself must not hand over."""
_OF_THIS_MACHINE = re.compile(r".*(_DIR|_HOME|_PATH|_CACHE|_PROXY|EXECUTABLE)")
"""Names of variables that mean nothing on another machine."""
_REGISTRATION = re.compile(r"""\bregister\(\s*(?:id\s*=\s*)?["']([\w./-]+)["']""")
_MAX_FILES = 200


def caller_environment() -> dict[str, str]:
    """Return this process's environment; values that are not valid text are left out."""

    def is_text(word: str) -> bool:
        return not any("\ud800" <= char <= "\udfff" for char in word)

    return {name: value for name, value in os.environ.items() if is_text(name + value)}


def tracking_environment(payload: Mapping[str, Any], is_local: bool) -> dict[str, str]:
    """Return what this process's environment sets for W&B, if a run is tracked there, and for the Hub, likewise.

    A trainer on another machine gets no paths and proxies of this one.
    """
    prefixes = []
    for prefix, option in ((TRACKING_PREFIX, OPTIONS["track"]), (HUB_PREFIX, OPTIONS["upload_model"])):
        paths = (option.path, *(f"{CONFIG_PATH}.extras.{extra}" for extra in option.extras))
        prefixes += [prefix] if any(value_at(payload, path) for path in paths) else []
    return {
        name: value
        for name, value in caller_environment().items()
        if name.startswith(tuple(prefixes)) and name not in _OF_ANOTHER_RUN
        if is_local or not _OF_THIS_MACHINE.fullmatch(name)
    }


def submitter(is_local: bool) -> str:
    """Return the login name of this process's user, with the host for a trainer on another machine; empty: unknown."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may have no entry for it
        name = str(os.getuid())
    try:
        return validate_submitter(name if is_local else f"{name}@{socket.gethostname()}")
    except ValueError:
        return ""


def program_environment(payload: Mapping[str, Any]) -> dict[str, str] | None:
    """Return this process's environment if a run's config names a program, which needs one; otherwise None."""
    choice = name_worker(payload)["metadata"]["worker"]
    if choice["config"].get("attached"):
        raise NotAllowed("This run was produced by a program that called mosaic.start_run. Run that program again.")
    keys = get_worker(choice["id"]).programs
    has_program = any(value_at(choice["config"], key) is not None for key in keys)
    return caller_environment() if has_program else None


def import_folders() -> list[str]:
    """Return where a module that this process's user names is found: as by `python script.py` in this folder."""
    python_path = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return list(dict.fromkeys((os.getcwd(), *python_path)))


def imported_modules(payload: Mapping[str, Any]) -> list[str]:
    """Return the modules that a payload lists and its config names; none of one that the daemon will refuse."""
    try:
        worker = payload["metadata"]["worker"]
        listed = (worker.get("imports") or {}).get("modules", ())
        return list(dict.fromkeys((*listed, *named_modules(worker["config"]))))
    except (AttributeError, KeyError, TypeError):
        return []


def with_imports(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a payload with the modules that its config names, and where this process's Python would find them.

    What it lists already stays, so that a copy of a run finds its modules where the run did.
    """
    modules = imported_modules(payload)
    if not modules:
        return dict(payload)
    worker = payload["metadata"]["worker"]
    listed = worker.get("imports") or {}
    folders = listed.get("folders") or ()
    if not folders or len(modules) > len(listed.get("modules", ())):
        folders = [*dict.fromkeys((*folders, *import_folders()))] if isinstance(folders, list | tuple) else folders
    imports = {"modules": modules, "folders": folders}
    return {**payload, "metadata": {**payload["metadata"], "worker": {**worker, "imports": imports}}}


@contextmanager
def own_environment_hint(payload: Mapping[str, Any]) -> Iterator[None]:
    """Name the module of an environment that the worker does not know where a file in this folder registers it."""
    try:
        yield
    except UnknownName as error:
        env_id = str(value_at(payload, f"{CONFIG_PATH}.env_id"))
        found = []
        for path in sorted(Path.cwd().glob("*.py"))[:_MAX_FILES] if f"No environment {env_id!r}" in str(error) else ():
            registered = _REGISTRATION.findall(path.read_text(encoding="utf-8", errors="replace"))
            is_meant = env_id in (path.stem, path.name)
            found += [
                f"{path.stem}:{one}"
                for one in registered
                if is_meant or one.partition("-v")[0] == env_id or one == env_id
            ]
        if not found:
            raise
        hint = " or ".join(map(repr, found[:MAX_SUGGESTED]))
        sentence = f"No environment {env_id!r}. One of your own is named with its module. Did you mean {hint}?"
        raise UnknownName(sentence, [FieldProblem("env_id", sentence)]) from None
