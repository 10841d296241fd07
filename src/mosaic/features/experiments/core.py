"""The runs of an experiment: each with its payload, and with the key by which it is found again."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, RootModel, ValidationError, model_validator

from mosaic.base.algorithm_schema import Algorithm, get_algorithm
from mosaic.base.run_payloads import build_train_payload, parse_seeds
from mosaic.base.scores import ScoreRange
from mosaic.base.yaml_file import read_yaml_file, to_plain_mapping
from mosaic.contracts.errors import BadInput, FieldProblem, UnknownName, similar_names
from mosaic.contracts.experiment_member import ExperimentMember
from mosaic.contracts.model import Contract, format_validation_error, parse_contract, refuse
from mosaic.contracts.options import OPTIONS, Option
from mosaic.contracts.payload import EnvId, SafeName, Seed
from mosaic.contracts.setting_field import SettingField, parse_number
from mosaic.contracts.states import ENDED, Outcome, Stage
from mosaic.trainer.client.run_lookup import _newest_by

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView

# --- The config of an experiment: algorithms × variants × environments × seeds, as one group of runs.


SUBJECT = "The experiment was"
MAX_RUNS = 1000
MAX_ENTRIES = 100
"""Algorithms, variants or environments of one experiment."""
OPTION_NAMES = tuple(
    option.name
    for option in OPTIONS.values()
    if option.has_flag and not option.is_core and option.name not in ("group", "run_name")
)
"""The options of a run that an experiment takes: those that can be the same for all of its runs."""

EntryLabel = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f]*$")]


def expand_entry(value: Any, key: str) -> Any:
    """A bare text is short for an entry without settings; what is neither name nor label is a setting."""
    if isinstance(value, str):
        return {key: value}
    if not isinstance(value, Mapping):
        return value
    own = {name: value[name] for name in (key, "label") if name in value}
    return {**own, "settings": {name: one for name, one in value.items() if name not in own}}


class ExperimentAlgorithm(Contract):
    """An algorithm with settings of its own: `ppo`, or `{name: ppo, label: big, learning_rate: 1e-3}`."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    label: EntryLabel | None = None
    """How results name it; unset: by its name."""
    settings: dict[str, Any] = Field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.label or self.name


class ExperimentEnvironment(Contract):
    """An environment with settings of its own: `CartPole-v1`, or `{id: FrozenLake-v1, total_timesteps: 1e5}`."""

    id: EnvId
    label: EntryLabel | None = None
    settings: dict[str, Any] = Field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.label or self.id


def _expand_seeds(value: Any) -> Any:
    """`1-5`, `1,3,7`, a list, or a single seed."""
    if isinstance(value, str):
        try:
            return parse_seeds(value)
        except BadInput as error:
            raise ValueError(str(error).removeprefix("seeds: ").rstrip(".")) from None
    return [value] if isinstance(value, int) and not isinstance(value, bool) else value


def convert_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options as their types have them; raises ValueError for the person who wrote them."""
    converted = {}
    for name, value in options.items():
        if name not in OPTION_NAMES:
            raise ValueError(f"{name!r} is not an option of a run.{suggest(name, OPTION_NAMES)}")
        try:
            converted[name] = _convert_option(OPTIONS[name], value)
        except BadInput:
            raise ValueError(f"{name}: {value!r} does not fit; expected {OPTIONS[name].expected_values}") from None
    return converted


def _convert_option(option: Option, value: Any) -> Any:
    if option.type != "names":
        return option.convert(value)
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    raise BadInput(f"{option.flag} must be {option.expected_values}.")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'seeds'?`; empty where nothing is similar."""
    near = similar_names(name, known)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


AlgorithmEntry = Annotated[ExperimentAlgorithm, BeforeValidator(lambda value: expand_entry(value, "name"))]
EnvironmentEntry = Annotated[ExperimentEnvironment, BeforeValidator(lambda value: expand_entry(value, "id"))]
SettingsSection = Annotated[dict[str, Any], BeforeValidator(lambda value: {} if value is None else value)]


class ExperimentConfig(Contract):
    """A setting that several sections state has the value of the last: settings, algorithm, environment, variant."""

    name: SafeName
    """The group of its runs."""
    algorithms: Annotated[tuple[AlgorithmEntry, ...], Field(min_length=1, max_length=MAX_ENTRIES)]
    environments: Annotated[tuple[EnvironmentEntry, ...], Field(min_length=1, max_length=MAX_ENTRIES)]
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(_expand_seeds), Field(min_length=1, max_length=MAX_RUNS)] = (1,)
    settings: SettingsSection = Field(default_factory=dict)
    """Settings of all algorithms."""
    variants: Annotated[dict[SafeName, SettingsSection], Field(max_length=MAX_ENTRIES)] = Field(default_factory=dict)
    """Named changes of settings: each algorithm is run with each of them."""
    options: Annotated[SettingsSection, AfterValidator(convert_options)] = Field(default_factory=dict)
    """Options of every run, by the names of their flags: cpus, memory_mb, tags, track and so on."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        for what, entries in (("algorithms", self.algorithms), ("environments", self.environments)):
            titles = [entry.title for entry in entries]
            if repeated := sorted({title for title in titles if titles.count(title) > 1}):
                raise ValueError(f"two {what} are called {repeated[0]!r}; give each a label of its own")
        if repeated_seeds := sorted({seed for seed in self.seeds if self.seeds.count(seed) > 1}):
            raise ValueError(f"the seed {repeated_seeds[0]} is listed twice")
        if self.run_count > MAX_RUNS:
            raise ValueError(f"these are {self.run_count:,} runs; at most {MAX_RUNS:,} are accepted")
        return self

    @property
    def run_count(self) -> int:
        return len(self.algorithms) * len(self.environments) * max(1, len(self.variants)) * len(self.seeds)


def parse_experiment(data: Mapping[str, Any]) -> ExperimentConfig:
    """Return the experiment that a mapping describes; raises ConfigRefused naming the keys that do not fit."""
    known = ExperimentConfig.model_fields
    unknown = [FieldProblem(key, f"unknown key.{suggest(key, known)}".rstrip(".")) for key in data if key not in known]
    if unknown:
        raise refuse(unknown, SUBJECT)
    return parse_contract(ExperimentConfig, data, SUBJECT)


# --- The runs of an experiment: each with its payload, and with the key by which it is found again.


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


# --- How far an experiment is: its planned runs, each with the newest run that was submitted for it.


MISSING = "missing"
STATUS_ORDER = (
    *("failed", "rejected", "lost", "cancelled", "running", "stalled", "paused", "starting", "stopping", "queued"),
    MISSING,
)
"""The order in which a progress line counts runs that are not done."""
COUNTED = {
    "done": ("succeeded", ENDED),
    "running": ("starting", "running", "stalled", "paused", "stopping"),
    "queued": ("queued",),
    "failed": ("failed", "rejected", "lost"),
    "cancelled": ("cancelled",),
    MISSING: (MISSING,),
}
"""By column of a table: the statuses of runs that it counts."""


@dataclass(frozen=True)
class ExperimentRun:
    """A run of an experiment's file, and what was submitted for it."""

    planned: PlannedRun
    view: RunView | None
    """The newest attempt; None where none was submitted, or it was deleted."""

    @property
    def status(self) -> str:
        return MISSING if self.view is None else self.view.status

    @property
    def is_unsuccessful(self) -> bool:
        """Whether its last attempt has ended without success."""
        return self.view is not None and self.view.stage is Stage.FINISHED and not is_done(self.view)

    @property
    def next_attempt(self) -> int:
        return 1 if self.view is None or self.view.experiment is None else self.view.experiment.attempt + 1


def is_done(view: RunView) -> bool:
    return view.outcome is Outcome.SUCCEEDED


def match_runs(plan: ExperimentPlan, views: Iterable[RunView]) -> list[ExperimentRun]:
    """Find the newest attempt of each planned run among the runs of the group."""
    newest = _newest_by(views, lambda member: member.key)
    return [ExperimentRun(planned, newest.get(planned.key)) for planned in plan.runs]


def choose_submissions(runs: Sequence[ExperimentRun], is_retry: bool) -> list[tuple[PlannedRun, int]]:
    """Return what is to be submitted, each with its attempt: missing runs, and with `is_retry` those that failed."""
    return [(run.planned, run.next_attempt) for run in runs if run.view is None or (is_retry and run.is_unsuccessful)]


@dataclass(frozen=True)
class SettingRow:
    """The runs of a group with one setting on one environment."""

    setting: str
    environment: str
    views: Sequence[RunView]
    statuses: Sequence[str]
    """Of these runs, and of those that are missing."""

    @property
    def total_steps(self) -> int:
        """Environment steps that all of its runs have taken."""
        return sum(view.global_step or 0 for view in self.views)

    @property
    def mean_return(self) -> float | None:
        """The mean over its runs of the last return; None where no episode has ended."""
        known = [view.episodic_return for view in self.views if view.episodic_return is not None]
        return sum(known) / len(known) if known else None

    @property
    def counts(self) -> dict[str, int]:
        return count_statuses(self.statuses)


def setting_label(view: RunView) -> str:
    """How results name the algorithm of a run and its settings."""
    return view.experiment.setting if view.experiment is not None else view.algo or view.worker


def environment_label(view: RunView) -> str:
    return view.experiment.environment if view.experiment is not None else view.env_id or ""


def rows_by_setting(views: Iterable[RunView], label_of: Callable[[RunView], str] = setting_label) -> list[SettingRow]:
    """Return one row for each setting and environment, in the order in which they were submitted."""
    members: dict[tuple[str, str], list[RunView]] = {}
    for view in sorted(views, key=lambda view: view.age_key):
        members.setdefault((label_of(view), environment_label(view)), []).append(view)
    return [SettingRow(*labels, own, [view.status for view in own]) for labels, own in members.items()]


def count_statuses(statuses: Sequence[str]) -> dict[str, int]:
    """By the columns of a table (`COUNTED`): how many runs each counts."""
    numbers = Counter(statuses)
    return {name: sum(numbers[status] for status in counted) for name, counted in COUNTED.items()}


def format_counts(statuses: Sequence[str]) -> str:
    """`18 of 30 done, 2 failed, 4 running, 6 queued`."""
    counts = Counter(statuses)
    rest = [f"{counts[status]} {status}" for status in STATUS_ORDER if counts[status]]
    return ", ".join([f"{counts[str(Outcome.SUCCEEDED)] + counts[ENDED]} of {len(statuses)} done", *rest])


# --- Reads the returns that normalized scores refer to, such as those of a random and of an expert policy.


_EXAMPLE = "CartPole-v1: {low: 20, high: 500}"


ReferenceScores = Mapping[str, tuple[float, float]] | str | os.PathLike[str]
"""By environment the returns that count as 0 and as 1, or a file with them."""


class ReferenceScore(Contract):
    low: Annotated[float, BeforeValidator(parse_number)]
    """The return that counts as 0, such as that of random actions."""
    high: Annotated[float, BeforeValidator(parse_number)]
    """The return that counts as 1, such as that of an expert."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError("expected low below high")
        return self


class _ReferenceScores(RootModel[dict[str, ReferenceScore]]):
    """By environment."""


def read_reference_scores(path: Path) -> dict[str, ScoreRange]:
    """Return the range of each environment in a YAML file: `CartPole-v1: {low: 20, high: 500}`."""
    noun = f"The file of reference scores {path}"
    data = to_plain_mapping(read_yaml_file(path, "The file of reference scores"), noun, _EXAMPLE)
    return _parse_scores(data, noun)


def read_ranges(source: ReferenceScores | None) -> dict[str, ScoreRange] | None:
    """Return the ranges that a file or a mapping to pairs states; None where none are given."""
    if source is None:
        return None
    if isinstance(source, Mapping):
        named = {name: dict(zip(("low", "high"), pair, strict=False)) for name, pair in source.items()}
        return _parse_scores(named, "reference_scores")
    return read_reference_scores(Path(source))


def _parse_scores(data: Mapping[str, object], noun: str) -> dict[str, ScoreRange]:
    try:
        scores = _ReferenceScores.model_validate(data).root
    except ValidationError as error:
        raise BadInput(f"{noun} was refused: {format_validation_error(error)}") from None
    return {name: ScoreRange(score.low, score.high) for name, score in scores.items()}


def select_ranges(reference: dict[str, ScoreRange], tasks: Iterable[str]) -> dict[str, ScoreRange]:
    """Return the ranges of these environments; raises BadInput for one that has none."""
    tasks = list(tasks)
    if missing := [task for task in tasks if task not in reference]:
        raise BadInput(
            f"The reference scores have no entry for {missing[0]!r}. Known: {', '.join(sorted(reference)) or 'none'}."
        )
    return {task: reference[task] for task in tasks}
