"""The runs of an experiment: each with its payload, and with the key by which it is found again."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mosaic.contracts.errors import BadInput, FieldProblem, UnknownName
from mosaic.contracts.experiment_member import ExperimentMember
from mosaic.contracts.model import refuse
from mosaic.contracts.setting_field import SettingField
from mosaic.submission.algorithm_schema import Algorithm, get_algorithm
from mosaic.submission.experiment_config import SUBJECT, ExperimentConfig, suggest
from mosaic.submission.run_payloads import build_train_payload

_KEY_LENGTH = 32
_LISTED_ELSEWHERE = {"env_id": "environments", "seed": "seeds", "algo": "algorithms"}
"""Settings that sections of their own list."""


@dataclass(frozen=True)
class ExperimentCell:
    """An algorithm with its settings on one environment: its runs differ in the seed only."""

    setting: str
    """How results name algorithm and variant."""
    environment: str
    """How results name the environment."""
    algo: str
    env_id: str
    total_timesteps: int | None
    settings_key: str
    payload: Mapping[str, Any]
    """Without a seed."""
    key_scope: str = ""
    """Keeps its runs apart from those with equal settings, such as those of another trial of a sweep."""

    @property
    def title(self) -> str:
        return f"{self.setting} on {self.environment}"


@dataclass(frozen=True)
class PlannedRun:
    cell: ExperimentCell
    seed: int

    @property
    def key(self) -> str:
        scope = {"scope": self.cell.key_scope} if self.cell.key_scope else {}
        return digest({"settings": self.cell.settings_key, "seed": self.seed, **scope})

    def build_payload(self, attempt: int = 1) -> dict[str, Any]:
        member = ExperimentMember(
            key=self.key,
            settings_key=self.cell.settings_key,
            attempt=attempt,
            setting=self.cell.setting,
            environment=self.cell.environment,
        )
        payload = copy.deepcopy(dict(self.cell.payload))
        payload["metadata"]["worker"]["config"]["seed"] = self.seed
        payload["metadata"]["experiment"] = member.model_dump(mode="json")
        return payload


@dataclass(frozen=True)
class ExperimentPlan:
    name: str
    cells: tuple[ExperimentCell, ...]
    seeds: tuple[int, ...]

    @property
    def runs(self) -> list[PlannedRun]:
        """Seed by seed, so that every cell has a first run early."""
        return [PlannedRun(cell, seed) for seed in self.seeds for cell in self.cells]

    @property
    def total_steps(self) -> int:
        return sum(cell.total_timesteps or 0 for cell in self.cells) * len(self.seeds)


def plan_experiment(config: ExperimentConfig, key_scope: str = "") -> ExperimentPlan:
    """Return the runs of an experiment; raises ConfigRefused with all that does not fit the algorithms' settings.

    Runs with different `key_scope` are never the same, whatever their settings.
    """
    algorithms, problems = _find_algorithms(config)
    if problems:
        raise refuse(problems, SUBJECT)
    cells: list[ExperimentCell] = []
    for (number, entry), variant, place in itertools.product(
        enumerate(config.algorithms), config.variants or {"": {}}, range(len(config.environments))
    ):
        algorithm = algorithms[entry.name]
        settings = {}
        for name, (value, path) in _merge_settings(config, number, place, variant).items():
            try:
                settings[name] = convert_setting(algorithm, name, value)
            except ValueError as error:
                problems.append(FieldProblem(path, str(error)))
        cell = _build_cell(config, number, place, variant, algorithm, settings)
        cells.append(replace(cell, key_scope=key_scope))
    if problems:
        raise refuse(list(dict.fromkeys(problems)), SUBJECT)
    _require_different(cells)
    return ExperimentPlan(config.name, tuple(cells), config.seeds)


def _find_algorithms(config: ExperimentConfig) -> tuple[dict[str, Algorithm], list[FieldProblem]]:
    found: dict[str, Algorithm] = {}
    problems = []
    for number, entry in enumerate(config.algorithms):
        try:
            found[entry.name] = get_algorithm(entry.name)
        except UnknownName as error:
            problems.append(FieldProblem(f"algorithms.{number}", str(error).rstrip(".")))
    return found, problems


def _merge_settings(config: ExperimentConfig, number: int, place: int, variant: str) -> dict[str, tuple[Any, str]]:
    """Return each setting with the path of the key that states it; later sections override earlier ones."""
    sections = (
        ("settings", config.settings),
        (f"algorithms.{number}", config.algorithms[number].settings),
        (f"environments.{place}", config.environments[place].settings),
        (f"variants.{variant}", config.variants.get(variant, {})),
    )
    return {
        name.replace("-", "_"): (value, f"{path}.{name}")
        for path, section in sections
        for name, value in section.items()
    }


def convert_setting(algorithm: Algorithm, name: str, value: Any) -> Any:
    """Return the value of a setting as its type has it; raises ValueError for the person who wrote it."""
    if name in _LISTED_ELSEWHERE:
        raise ValueError(f"the section {_LISTED_ELSEWHERE[name]!r} states it; leave it out")
    fields = {field.name: field for field in algorithm.fields if field.name not in _LISTED_ELSEWHERE}
    if name not in fields:
        raise ValueError(f"{algorithm.name} has no such setting.{suggest(name, fields)}".rstrip("."))
    try:
        return fields[name].convert(value)
    except BadInput:
        raise ValueError(f"{_shown(value)} does not fit; expected {fields[name].expected_values}") from None


def _shown(value: Any) -> str:
    return json.dumps(value)[:60]


def _build_cell(
    config: ExperimentConfig,
    number: int,
    place: int,
    variant: str,
    algorithm: Algorithm,
    settings: Mapping[str, Any],
) -> ExperimentCell:
    entry, environment = config.algorithms[number], config.environments[place]
    defaults = {field.name: field.default for field in algorithm.fields}
    given = {"env_id": environment.id, **settings, **config.options, "group": config.name}
    payload = build_train_payload(algorithm.worker.id, algorithm.name, given, defaults)
    worker_config = payload["metadata"]["worker"]["config"]
    worker_config.update(algorithm.location)
    del worker_config["seed"]
    return ExperimentCell(
        setting=", ".join(filter(None, (entry.title, variant))),
        environment=environment.title,
        algo=algorithm.name,
        env_id=environment.id,
        total_timesteps=worker_config.get("total_timesteps"),
        settings_key=_settings_key(algorithm, environment.id, settings),
        payload=payload,
    )


def _settings_key(algorithm: Algorithm, env_id: str, settings: Mapping[str, Any]) -> str:
    """A hash of the settings that differ from their defaults: writing a default out makes no new run."""
    fields: dict[str, SettingField] = {field.name: field for field in algorithm.fields}
    changed = {name: value for name, value in settings.items() if value != fields[name].default}
    return digest({"worker": algorithm.worker.id, "algo": algorithm.name, "env_id": env_id, "settings": changed})


def digest(data: Mapping[str, Any]) -> str:
    """Return the hash of what identifies a run, as a key."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]


def _require_different(cells: list[ExperimentCell]) -> None:
    """Two cells with the same settings would be the same runs."""
    by_key: dict[str, ExperimentCell] = {}
    for cell in cells:
        other = by_key.setdefault(cell.settings_key, cell)
        if other is not cell:
            problem = f"{other.title!r} and {cell.title!r} have the same settings; remove one of them"
            raise refuse([FieldProblem("", problem)], SUBJECT)
