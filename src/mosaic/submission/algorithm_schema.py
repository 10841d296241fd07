"""The algorithms of every worker, read from their schema files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mosaic.contracts.options import OPTIONS, Option
from mosaic.contracts.setting_field import SettingField
from mosaic.submission.unknown_algorithms import unknown_algorithm_error
from mosaic.workers import WorkerDescription, discover_workers, get_worker


@dataclass(frozen=True)
class Algorithm:
    worker: WorkerDescription
    name: str
    title: str
    summary: str
    fields: tuple[SettingField, ...]
    schema_entry: Mapping[str, Any]
    """Its whole entry in the schema file."""
    is_user_script: bool = False
    """Whether it is a user's script, which runs in the user's Python environment."""

    def default(self, name: str) -> Any:
        return next((field.default for field in self.fields if field.name == name), None)

    def help_page(self) -> str:
        """The explanation for people, in Markdown."""
        text = str(self.schema_entry.get("help") or "")
        if text.endswith(".md") and "\n" not in text and self.worker.schemas is not None:
            for folder in self.worker.schemas.parents:
                if (folder / text).is_file():
                    return (folder / text).read_text()
        return text


def load_algorithms() -> dict[str, Algorithm]:
    """By name. A name that two workers use belongs to the first; the other's is `worker:name`."""
    algorithms: dict[str, Algorithm] = {}
    for worker in discover_workers().values():
        for name, entry in worker.read_schema().get("algorithms", {}).items():
            key = f"{worker.id}:{name}" if name in algorithms else name
            algorithms[key] = _parse_algorithm(worker, name, entry)
    return algorithms


def load_algorithms_from(path: str) -> dict[str, Algorithm]:
    """The algorithms of a folder of scripts, such as a checkout of CleanRL."""
    algorithms: dict[str, Algorithm] = {}
    for worker in discover_workers().values():
        if worker.algorithms_in is not None:
            for name, entry in worker.algorithms_in(path).items():
                algorithms[name] = replace(_parse_algorithm(worker, name, entry), is_user_script=True)
    return algorithms


def find_installed_algorithms() -> str | None:
    """The folder of scripts that is installed as a package, such as CleanRL's; None where there is none."""
    finders = (worker.installed_algorithms for worker in discover_workers().values())
    return next((folder for find in finders if find is not None and (folder := find())), None)


def supported_options(worker_id: str) -> tuple[Option, ...]:
    """The options that this worker supports: those that every worker does, and those that its schema names."""
    named = get_worker(worker_id).read_schema().get("options", ())
    return tuple(option for option in OPTIONS.values() if not option.is_worker_option or option.name in named)


def _parse_algorithm(worker: WorkerDescription, name: str, schema_entry: Mapping[str, Any]) -> Algorithm:
    known = SettingField.__dataclass_fields__
    fields = tuple(
        SettingField(**{key: value for key, value in field.items() if key in known and value is not None})
        for field in schema_entry["fields"]
    )
    title, summary = schema_entry.get("title") or name, schema_entry.get("summary") or ""
    return Algorithm(worker, name, title, summary, fields, schema_entry)


def get_algorithm(name: str) -> Algorithm:
    known = load_algorithms()
    if name not in known:
        workers = {algorithm.worker.id for algorithm in known.values()}
        raise unknown_algorithm_error(name, known, f"worker {workers.pop()!r}" if len(workers) == 1 else "")
    return known[name]
