"""The algorithms of every worker, read from their schema files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from mosaic.base.worker_registry import WorkerDescription, discover_workers, get_worker
from mosaic.contracts.errors import BadInput, UnknownName, unknown_name_error
from mosaic.contracts.options import OPTIONS, Option
from mosaic.contracts.setting_field import SettingField

# --- The error for an algorithm that no worker has, with the nearest one in purpose where its name is known.


_NEAREST = {
    ("ppo", "ppo_continuous_action"): "acer acktr appo npg trpo",
    ("ppg_procgen", "ppo"): "ppg phasicpolicygradient",
    ("a2c", "ppo"): "a3c impala pg reinforce vpg",
    ("dqn", "pqn"): "apex ddqn doubledqn duelingdqn qlearning r2d2 sarsa",
    ("qrdqn", "c51"): "fqf iqn",
    ("sac_continuous_action", "tqc"): "crossq droq redq",
    ("td3_continuous_action",): "d4pg naf",
    ("sac_atari",): "sacd sacdiscrete",
    ("ppo_lstm", "ppo_atari_lstm"): "recurrentppo",
    ("ppo_trxl", "ppo_lstm"): "gtrxl transformerppo",
}
"""By names of ours: names of the field that we do not have, in lower case and without separators."""


def unknown_algorithm_error(name: str, known: Iterable[str], where: str = "") -> UnknownName:
    known = set(known)
    plain = name.lower().translate({ord(separator): None for separator in "-_ "})
    nearest = next((ours for ours, others in _NEAREST.items() if plain in others.split()), ())
    return unknown_name_error("algorithm", name, known, where, [ours for ours in nearest if ours in known])


# --- The algorithms of every worker, read from their schema files.


@dataclass(frozen=True)
class Algorithm:
    worker: WorkerDescription
    name: str
    title: str
    summary: str
    fields: tuple[SettingField, ...]
    schema_entry: Mapping[str, Any]
    """Its whole entry in the schema file."""
    location: Mapping[str, str] = field(default_factory=dict)
    """Where a user's script is, as keys of its worker's config; empty for an algorithm of the worker."""

    @property
    def is_user_script(self) -> bool:
        """Whether it is a user's script, which runs in the user's Python environment."""
        return bool(self.location)

    @property
    def run_options(self) -> list[Option]:
        """The options of a run with it that do not need its worker."""
        excluded = self.schema_entry.get("options_without_effect", ())
        options = (option for option in OPTIONS.values() if not option.is_core and not option.is_worker_option)
        return [option for option in options if option.name not in excluded]

    def default(self, name: str) -> Any:
        return next((field.default for field in self.fields if field.name == name), None)

    def help_page(self) -> str:
        """The explanation for people, in Markdown."""
        text = str(self.schema_entry.get("help") or "")
        if text.endswith(".md") and "\n" not in text and self.worker.schemas is not None:
            for folder in self.worker.schemas.parents:
                if (folder / text).is_file():
                    return (folder / text).read_text(encoding="utf-8")
        return text


def load_algorithms() -> dict[str, Algorithm]:
    """By name. A name that two workers use belongs to the first; the other's is `worker:name`."""
    algorithms: dict[str, Algorithm] = {}
    for worker in discover_workers().values():
        for name, entry in worker.read_schema().get("algorithms", {}).items():
            key = f"{worker.id}:{name}" if name in algorithms else name
            algorithms[key] = _parse_algorithm(worker, name, entry)
    return algorithms


@dataclass(frozen=True)
class ScriptFolder:
    """A user's folder of scripts that are algorithms, such as a checkout of CleanRL."""

    worker: WorkerDescription
    path: str
    names: tuple[str, ...]

    def load(self, name: str, **location: str) -> Algorithm:
        """Read one of its scripts; `location` are further keys of the worker's config."""
        assert self.worker.describe_script is not None
        algorithm = _parse_algorithm(self.worker, name, self.worker.describe_script(self.path, name))
        return replace(algorithm, location={"cleanrl": self.path, **location})

    def load_readable(self) -> dict[str, Algorithm]:
        """Read all of its scripts; an unreadable one must not hide the others."""
        algorithms = {}
        for name in self.names:
            with suppress(BadInput):
                algorithms[name] = self.load(name)
        return algorithms


def open_script_folder(path: str) -> ScriptFolder:
    worker = next(worker for worker in discover_workers().values() if worker.script_names is not None)
    assert worker.script_names is not None
    return ScriptFolder(worker, path, worker.script_names(path))


def find_installed_scripts(python: str | None = None) -> ScriptFolder | None:
    """Return the folder of scripts that is installed as a package, such as CleanRL's; None where there is none.

    `python` is the interpreter whose packages are searched, by default ours.
    """
    finders = (worker.find_installed_scripts for worker in discover_workers().values())
    path = next((path for find in finders if find is not None and (path := find(python))), None)
    return None if path is None else open_script_folder(path)


def supported_options(worker_id: str) -> tuple[Option, ...]:
    """The options that this worker supports: those that every worker does, and those that its schema names."""
    named = get_worker(worker_id).read_schema().get("options", ())
    return tuple(option for option in OPTIONS.values() if not option.is_worker_option or option.name in named)


def _parse_algorithm(worker: WorkerDescription, name: str, schema_entry: Mapping[str, Any]) -> Algorithm:
    known = SettingField.__dataclass_fields__
    fields = tuple(
        _with_limit(SettingField(**{key: value for key, value in field.items() if key in known and value is not None}))
        for field in schema_entry["fields"]
    )
    title, summary = schema_entry.get("title") or name, schema_entry.get("summary") or ""
    return Algorithm(worker, name, title, summary, fields, schema_entry)


def _with_limit(field: SettingField) -> SettingField:
    """A setting with the upper limit that the daemon sets for every worker."""
    option = OPTIONS.get(field.name)
    limit = (option.constraints or {}).get("le") if option is not None and option.is_core else None
    if limit is None or field.type != "int":
        return field
    return replace(field, constraints={"le": limit, **(field.constraints or {})})


def command_name(worker_id: str, name: str) -> str:
    """Return the name by which commands take an algorithm of a worker. A script has only one name."""
    keys = (key for key, one in load_algorithms().items() if (one.worker.id, one.name) == (worker_id, name))
    return next(keys, name)


def get_algorithm(name: str) -> Algorithm:
    """An algorithm of a worker, or an installed script such as `cleanrl:ppo`."""
    known = load_algorithms()
    if name not in known and ":" in name and (scripts := find_installed_scripts()) and name in scripts.names:
        return scripts.load(name)
    if name not in known:
        workers = {algorithm.worker.id for algorithm in known.values()}
        raise unknown_algorithm_error(name, known, f"worker {workers.pop()!r}" if len(workers) == 1 else "")
    return known[name]
