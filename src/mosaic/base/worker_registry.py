"""Discovery of workers by entry point, MOSAIC's own included.

A package names a function under the entry point group `mosaic.workers`; it is called without arguments, returns a
`WorkerDescription`, and must import nothing heavy: the daemon and the command line call it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.contracts.errors import MosaicError, refuse_key, unknown_name_error
from mosaic.contracts.options import value_at

if TYPE_CHECKING:
    import numpy as np

ENTRY_POINT_GROUP = "mosaic.workers"


@dataclass(frozen=True)
class ActingPolicy:
    """A saved policy that its worker has loaded."""

    path: Path
    algo: str
    env_id: str
    step: int | None
    """The step of its checkpoint; None for a file of weights."""
    observation_shape: tuple[int, ...] | None
    """The shape of one observation; None where observations are not arrays."""
    flatten: Callable[[Any], np.ndarray]
    """Turns one observation into a row of the policy's input."""
    act: Callable[[np.ndarray, bool, np.random.Generator], np.ndarray]
    """Returns one action per row, from the rows, whether to act deterministically, and a random generator."""
    make_env: Callable[..., Any]
    """Makes the environment with the wrappers used in training."""
    rows: int | None = None
    """How many rows a policy with memory is always called with; None for one without memory."""
    reset_row: Callable[[int], None] | None = None
    """Clears the memory of a row."""
    for_agent: Callable[[str], ActingPolicy] | None = None
    """Returns what acts for one agent of a team, by its own observations."""


@dataclass(frozen=True)
class WorkerDescription:
    id: str
    title: str
    version: str
    command: tuple[str, ...]
    """Starts one run; `--config PATH --grpc --grpc-target HOST:PORT [--resume]` is added to it."""
    checker: tuple[str, ...] | None = None
    """Starts the long-lived checker (JSON lines on stdin and stdout); none: every config is accepted."""
    schemas: Path | None = None
    """The generated schema file of its algorithms."""
    order: int = 0
    """Its position in lists of workers: a lower one comes first, and is the default."""
    log_name: str = ""
    """First part of its log files' names; the id where empty."""
    has_own_command: bool = False
    """The command is the `argv` of the run's own config, started in its `cwd`; nothing is added to it."""
    programs: tuple[str, ...] = ()
    """Keys of its config that name a program, such as `argv`. They are taken only from a caller who passes an
    environment with the config: a config that came from elsewhere must not choose what is run."""

    aliases: tuple[str, ...] = ()
    """Other ids under which payloads may name it."""
    script_names: Callable[[str], tuple[str, ...]] | None = None
    """Lists the scripts in a user's folder, such as a checkout of CleanRL, which are algorithms, too."""
    describe_script: Callable[[str, str], dict[str, Any]] | None = None
    """Returns the entry of one of them as in the schema file, without running anything."""
    find_installed_scripts: Callable[[str | None], str | None] | None = None
    """Finds such a folder among the packages of an interpreter, by default of ours; None where there is none."""

    load_policy: Callable[[Path, str | None, str | None], ActingPolicy] | None = None
    """Loads a saved policy into this process, from its path and, where the file does not contain them, the names of its
    algorithm and environment. It never unpickles."""

    @property
    def module_names(self) -> tuple[str, ...]:
        """The modules by which payloads may name it: that of its command, and its package."""
        return (self.command[-1], *self.aliases) if self.aliases else ()

    @property
    def can_inspect_policies(self) -> bool:
        """Whether its checker says what a saved policy is."""
        return self.load_policy is not None and self.checker is not None

    @property
    def log_prefix(self) -> str:
        return self.log_name or self.id

    def read_schema(self) -> dict[str, Any]:
        """The schema file: `algorithms` by name, and the `options` that it supports; empty where there is none."""
        if self.schemas is None or not self.schemas.is_file():
            return {}
        schema: dict[str, Any] = json.loads(self.schemas.read_text(encoding="utf-8"))
        return schema


def python_module(name: str) -> tuple[str, ...]:
    """The command that runs a module with this interpreter, which imports nothing from its working directory."""
    return (sys.executable, "-P", "-m", name)


@cache
def discover_workers() -> dict[str, WorkerDescription]:
    workers: dict[str, WorkerDescription] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            description = entry.load()()
        except Exception as error:
            raise MosaicError(f"The worker {entry.name!r} ({entry.value}) cannot be loaded: {error}") from error
        workers[description.id] = description
    return dict(sorted(workers.items(), key=lambda item: (item[1].order, item[0])))


def get_worker(worker_id: str) -> WorkerDescription:
    """Returns the worker with this id or alias."""
    workers = discover_workers()
    if worker_id in workers:
        return workers[worker_id]
    for worker in workers.values():
        if worker_id in worker.aliases:
            return worker
    raise unknown_name_error("worker", worker_id, workers)


def name_worker(data: Any, default: str | None = None) -> Any:
    """Returns a payload with the id of its worker where it has none: of its `module`, else `default` or the first.

    A `module`, such as `cleanrl_worker.cli`, is another way to name the worker; it chooses no program.
    """
    choice = value_at(data, "metadata.worker")
    if not isinstance(choice, dict) or (choice.get("id") is not None and "module" not in choice):
        return data
    rest = {key: value for key, value in choice.items() if key != "module"}
    given = choice.get("id")
    if choice.get("module") is not None:
        workers = {name: worker for worker in discover_workers().values() for name in worker.module_names}
        module = workers.get(choice["module"]) if isinstance(choice["module"], str) else None
        if module is None:
            raise refuse_key("metadata.worker.module", f"no worker has this module. Known: {', '.join(workers)}.")
        if given not in (None, module.id, *module.aliases):
            raise refuse_key("metadata.worker.module", f"names the worker {module.id!r}, but id is {given!r}.")
        default = module.id
    worker_id = given if given is not None else default or next(iter(discover_workers()))
    return {**data, "metadata": {**data["metadata"], "worker": {**rest, "id": worker_id}}}


def policy_workers() -> list[str]:
    """Workers that can load what they have trained."""
    return [worker.id for worker in discover_workers().values() if worker.can_inspect_policies]
