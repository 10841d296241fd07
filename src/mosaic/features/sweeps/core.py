"""What a sweep searches: settings of an algorithm with their ranges, checked against its schema; default ranges."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from mosaic.base.algorithm_schema import Algorithm, get_algorithm
from mosaic.base.curves import ConfidenceInterval, mean_with_interval
from mosaic.base.run_payloads import CORE_FIELD_NAMES
from mosaic.base.scores import curve_area
from mosaic.base.user_presets import Preset
from mosaic.base.yaml_file import read_yaml_file, to_plain_mapping
from mosaic.contracts.errors import ConfigRefused, FieldProblem, UnknownName
from mosaic.contracts.model import Contract, parse_contract, refuse
from mosaic.contracts.options import CONFIG_PATH, value_at
from mosaic.contracts.payload import SafeName
from mosaic.contracts.setting_field import SettingField, parse_number
from mosaic.features.experiments.core import (
    MAX_ENTRIES,
    AlgorithmEntry,
    EnvironmentEntry,
    ExperimentConfig,
    ExperimentPlan,
    ReferenceScore,
    SettingsSection,
    convert_options,
    convert_setting,
    plan_experiment,
    suggest,
)

MAX_OPTIONS = 100
NOT_SEARCHED = {
    "total_timesteps": "trials of different length cannot be compared; state it under 'settings'",
    "stop_at_return": "trials of different length cannot be compared",
    "seed": "every trial has the same seeds, 1 to 'seeds_per_trial'",
    "env_id": "state it under 'environments'",
    "algo": "state it under 'algorithm'",
}
"""Why these settings cannot be searched."""


_Number = Annotated[int | float, BeforeValidator(parse_number)]
"""Also as a text that a flag takes, such as 20k."""


class SearchEntry(Contract):
    """One setting of `search`: a range, unordered choices, or numbers in order."""

    low: _Number | None = None
    high: _Number | None = None
    log: bool = False
    """Draw the logarithm uniformly."""
    choices: Annotated[tuple[Any, ...] | None, Field(min_length=1, max_length=MAX_OPTIONS)] = None
    """Values without an order, also texts, booleans and lists."""
    values: Annotated[tuple[_Number, ...] | None, Field(min_length=1, max_length=MAX_OPTIONS)] = None
    """Numbers whose order means something, ascending."""

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        has_range = self.low is not None or self.high is not None
        if has_range + (self.choices is not None) + (self.values is not None) != 1:
            raise ValueError("expected either low and high, or choices, or values")
        if has_range and (self.low is None or self.high is None):
            raise ValueError("low and high go together")
        if self.log and not has_range:
            raise ValueError("log goes with low and high")
        if self.low is not None and self.high is not None:
            if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
                raise ValueError("expected low below high")
            if self.log and self.low <= 0:
                raise ValueError("with log, low must be above 0")
        if self.values is not None and list(self.values) != sorted(set(self.values)):
            raise ValueError("expected ascending values, each once")
        if self.choices is not None and len({json.dumps(one) for one in self.choices}) < len(self.choices):
            raise ValueError("a choice is listed twice")
        return self


@dataclass(frozen=True)
class Dimension:
    """A searched setting with the values that a trial may have."""

    name: str
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    is_int: bool = False
    options: tuple[Any, ...] = ()
    """The choices or values; empty for a range."""
    is_ordered: bool = False
    """Whether the order of the options means something."""

    def contains(self, value: Any) -> bool:
        if self.options:
            return value in self.options
        return isinstance(value, int | float) and self.low <= value <= self.high

    def position(self, value: Any) -> float:
        """Where a value is on an axis from 0 to 1."""
        if self.options:
            return self.options.index(value) / max(1, len(self.options) - 1)
        low, high, at = (math.log(x) if self.is_log else x for x in (self.low, self.high, value))
        return (at - low) / (high - low)


def build_dimension(algorithm: Algorithm, name: str, entry: SearchEntry) -> Dimension:
    """Return the dimension that an entry of `search` means; raises ValueError where it does not fit the setting."""
    if entry.low is not None and entry.high is not None:
        field = _find_field(algorithm, name)
        if field is not None and field.type not in ("int", "float"):
            raise ValueError(f"it has no range; give choices of {field.expected_values}")
        low, high = (convert_setting(algorithm, name, bound) for bound in (entry.low, entry.high))
        return Dimension(name, low, high, entry.log, is_int=field is not None and field.type == "int")
    options = tuple(convert_setting(algorithm, name, one) for one in entry.choices or entry.values or ())
    return Dimension(name, options=options, is_ordered=entry.values is not None)


def build_search_space(
    algorithm: Algorithm, entries: Mapping[str, SearchEntry], stated: Mapping[str, str]
) -> tuple[list[Dimension], list[FieldProblem]]:
    """`stated`: settings that the file has a fixed value for, with the section that states it."""
    dimensions: list[Dimension] = []
    problems: list[FieldProblem] = []
    for written, entry in entries.items():
        name = written.replace("-", "_")
        try:
            if name in NOT_SEARCHED:
                raise ValueError(NOT_SEARCHED[name])
            if name in stated:
                raise ValueError(f"{stated[name]!r} states a value of it, too; remove one of them")
            dimensions.append(build_dimension(algorithm, name, entry))
        except ValueError as error:
            problems.append(FieldProblem(f"search.{written}", str(error)))
    return dimensions, problems


def _find_field(algorithm: Algorithm, name: str) -> SettingField | None:
    return next((field for field in algorithm.fields if field.name == name), None)


# --- defaults


def _around(factor: float) -> Callable[[Any], SearchEntry | None]:
    return lambda default: SearchEntry(low=default / factor, high=default * factor, log=True)


def _doublings(below: int, above: int) -> Callable[[Any], SearchEntry | None]:
    """The default divided and multiplied by powers of two: sizes of batches then keep dividing each other."""

    def build(default: Any) -> SearchEntry | None:
        lower = [default // 2**n for n in range(below, 0, -1) if default % 2**n == 0]
        return SearchEntry(values=(*lower, *(default * 2**n for n in range(above + 1))))

    return build


def _fixed(**entry: Any) -> Callable[[Any], SearchEntry | None]:
    return lambda default: SearchEntry(**entry)


DEFAULT_ENTRIES: dict[str, Callable[[Any], SearchEntry | None]] = {
    "learning_rate": _around(10),
    "policy_lr": _around(10),
    "q_lr": _around(10),
    "init_lr": _around(10),
    "gamma": _fixed(values=(0.9, 0.95, 0.98, 0.99, 0.995, 0.999)),
    "gae_lambda": _fixed(low=0.8, high=1.0),
    "q_lambda": _fixed(low=0.3, high=0.95),
    "ent_coef": _fixed(low=1e-4, high=0.1, log=True),
    "init_ent_coef": _around(10),
    "vf_coef": _fixed(low=0.25, high=1.0),
    "clip_coef": _fixed(low=0.1, high=0.4),
    "max_grad_norm": _around(4),
    "num_steps": _doublings(2, 2),
    "num_minibatches": _doublings(2, 1),
    "update_epochs": _fixed(low=1, high=10),
    "batch_size": _doublings(2, 2),
    "train_frequency": _fixed(values=(1, 2, 4, 8, 10, 16)),
    # A target network that is replaced as a whole (tau 1) is searched by how often.
    "tau": lambda default: _around(5)(default) if default < 1 else None,
    "target_network_frequency": lambda default: (
        SearchEntry(low=max(1, default // 8), high=default * 4, log=True) if default > 1 else None
    ),
    "exploration_fraction": _fixed(low=0.05, high=0.5),
    "exploration_noise": _fixed(low=0.05, high=0.5),
    "policy_noise": _fixed(low=0.1, high=0.4),
    "policy_frequency": _fixed(values=(1, 2, 4)),
    "rpo_alpha": _fixed(low=0.01, high=0.5, log=True),
    "n_step": _fixed(values=(1, 3, 5, 10)),
    "int_coef": _around(4),
    "top_quantiles_to_drop": _fixed(low=0, high=5),
}
"""By setting: its range, which may follow from the algorithm's default."""
OWN_ENTRIES: dict[str, dict[str, SearchEntry]] = {
    # Rollouts of 5 steps cannot be halved, and longer ones often learn faster.
    "a2c": {"num_steps": SearchEntry(values=(5, 8, 16, 32))},
    # The usual default of no entropy bonus lies outside of a logarithmic range.
    "ppo_continuous_action": {"ent_coef": SearchEntry(low=0.0, high=0.02)},
    "rpo_continuous_action": {"ent_coef": SearchEntry(low=0.0, high=0.02)},
}
"""By algorithm: ranges that replace those."""


def default_entries(algorithm: Algorithm) -> dict[str, SearchEntry]:
    """Return the search space to start from: what the algorithm has of the settings that usually matter."""
    own = OWN_ENTRIES.get(algorithm.name, {})
    entries: dict[str, SearchEntry] = {}
    for name, build in DEFAULT_ENTRIES.items():
        field = _find_field(algorithm, name)
        if field is None or field.default is None:
            continue
        entry = own.get(name) or build(field.default)
        clipped = None if entry is None else _clip(field, entry)
        if clipped is not None:
            entries[name] = clipped
    return entries


def _clip(field: SettingField, entry: SearchEntry) -> SearchEntry | None:
    """Leave out what the schema does not allow, as workers have limits of their own; None where nothing is left."""
    if entry.values is not None:
        allowed = tuple(value for value in entry.values if field.accepts(value))
        return SearchEntry(values=allowed) if len(allowed) > 1 else None
    bounds = [_nearest_allowed(field, bound) for bound in (entry.low, entry.high)]
    if None in bounds or bounds[0] == bounds[1]:
        return None
    return SearchEntry(low=bounds[0], high=bounds[1], log=entry.log)


def _nearest_allowed(field: SettingField, bound: float | None) -> float | None:
    """Return a bound, or where it is not allowed the inclusive limit or the default instead."""
    rules = field.constraints or {}
    limits = [rules[key] for key in ("ge", "le") if key in rules]
    candidates = [bound, *sorted(limits, key=lambda limit: abs(limit - (bound or 0.0))), field.default]
    if field.type == "int":
        candidates = [int(value) for value in candidates if value is not None]
    return next((value for value in candidates if field.accepts(value)), None)


# --- The config of a sweep: that of an experiment with one algorithm, and what to search.


SUBJECT = "The sweep was"
DEFAULT_SEARCH = "default"
DEFAULT_TRIALS = 20
MAX_TRIALS = 10_000
_NOUN = "The sweep"


class Pruning(Contract):
    """When a trial is ended early. `asha`: successive halving; `median`: below the median of the earlier trials."""

    method: Literal["asha", "median", "none"]
    min_reports: Annotated[int, Field(ge=1, le=1000)] = 1
    """Reports before the first decision."""
    reduction_factor: Annotated[int, Field(ge=2, le=16)] = 3
    """asha: one of this many trials continues past each rung; rungs are at min_reports × factor^n reports."""
    startup_trials: Annotated[int, Field(ge=0, le=1000)] = 5
    """median: trials that are completed before the first decision."""

    @model_validator(mode="after")
    def _check_method(self) -> Self:
        given = self.model_fields_set
        if self.method != "asha" and "reduction_factor" in given:
            raise ValueError("reduction_factor goes with asha")
        if self.method != "median" and "startup_trials" in given:
            raise ValueError("startup_trials goes with median")
        return self


_Pruning = Annotated[Pruning, BeforeValidator(lambda value: {"method": value} if isinstance(value, str) else value)]


def _expand_search(value: Any) -> Any:
    if value == DEFAULT_SEARCH:
        return {}
    if not isinstance(value, Mapping) or not value:
        raise ValueError(
            f"expected settings with what to try, such as {{gamma: {{values: [0.9, 0.99]}}}}, or {DEFAULT_SEARCH}"
        )
    return value


class SweepConfig(Contract):
    name: SafeName
    """The folder of the study, the group of its runs, and the preset of its best settings."""
    algorithm: AlgorithmEntry
    environments: Annotated[tuple[EnvironmentEntry, ...], Field(min_length=1, max_length=MAX_ENTRIES)]
    settings: SettingsSection = Field(default_factory=dict)
    """Fixed settings of all trials."""
    options: Annotated[SettingsSection, AfterValidator(convert_options)] = Field(default_factory=dict)
    """Options of every run, as in an experiment."""
    search: Annotated[dict[str, SearchEntry], BeforeValidator(lambda value: _expand_search(value))]
    """By setting: what is tried. Empty: the ranges that ship with MOSAIC, which a file asks for by `default`."""
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    trials: Annotated[int, Field(ge=1, le=MAX_TRIALS)] | None = None
    """Unset: 20, or all combinations of a grid."""
    seeds_per_trial: Annotated[int, Field(ge=1, le=100)] = 2
    """Every trial has the seeds 1 to N on each environment."""
    metric: Literal["last_fifth", "area"] = "last_fifth"
    """Of a run's training returns: their mean over the last fifth of its steps, or over all steps (the area under the
    curve divided by its length, which measures sample efficiency)."""
    score: Literal["mean", "lower"] = "mean"
    """Over seeds: the mean, or the lower end of its 95 % interval."""
    reference_scores: dict[str, ReferenceScore] = Field(default_factory=dict)
    """By environment: the returns that count as 0 and 1. Required for several, whose returns cannot be averaged."""
    pruning: _Pruning = Pruning(method="none")
    reports: Annotated[int, Field(ge=1, le=1000)] = 10
    """A trial reports its score when all of its runs have taken 1/N, 2/N … of their steps."""
    parallel: Annotated[int, Field(ge=1, le=1000)] = 2
    """Trials at a time; their runs wait in the ordinary queue."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Of the sampler."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        titles = [environment.title for environment in self.environments]
        if repeated := sorted({title for title in titles if titles.count(title) > 1}):
            raise ValueError(f"two environments are called {repeated[0]!r}; give each a label of its own")
        if self.score == "lower" and self.seeds_per_trial < 2:
            raise ValueError("score: lower needs at least 2 seeds_per_trial")
        if unknown := sorted(set(self.reference_scores) - set(titles)):
            raise ValueError(f"reference_scores.{unknown[0]}: no such environment in this file")
        missing = [title for title in titles if title not in self.reference_scores]
        if missing and (len(titles) > 1 or self.reference_scores):
            raise ValueError(
                "returns of several environments cannot be averaged: reference_scores must say which returns count "
                f"as 0 and 1, such as {{{missing[0]}: {{low: 20, high: 500}}}}"
            )
        if self.sampler == "grid":
            if not self.search:
                raise ValueError("a grid needs choices or values of each setting; the default search has ranges")
            ranges = [name for name, entry in self.search.items() if entry.low is not None]
            if ranges:
                raise ValueError(f"search.{ranges[0]}: a grid needs choices or values instead of a range")
        return self


_NESTED_MODELS: dict[str, type[Contract]] = {
    "search": SearchEntry,
    "pruning": Pruning,
    "reference_scores": ReferenceScore,
}
FREE_KEYS = ("trials", "parallel", "options")
"""What may be changed between two calls: all else decides what the scores of a study mean."""


def read_sweep(source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Return what a YAML file or a mapping contains, for `parse_sweep`."""
    data = source if isinstance(source, Mapping) else read_yaml_file(Path(source), _NOUN)
    return to_plain_mapping(data, _NOUN, "name, algorithm, environments and search")


def parse_sweep(data: Mapping[str, Any]) -> SweepConfig:
    """Return the sweep that a mapping describes; raises ConfigRefused naming the keys that do not fit."""
    try:
        return parse_contract(SweepConfig, data, SUBJECT)
    except ConfigRefused as error:
        raise refuse([_with_suggestion(problem) for problem in error.problems], SUBJECT) from None


def _with_suggestion(problem: FieldProblem) -> FieldProblem:
    """Add the known key that is meant by an unknown one."""
    if problem.problem != "unknown key":
        return problem
    parts = problem.path.split(".")
    model = _NESTED_MODELS.get(parts[0], SweepConfig) if len(parts) > 1 else SweepConfig
    return FieldProblem(problem.path, f"unknown key.{suggest(parts[-1], model.model_fields)}".rstrip("."))


def changed_keys(stored: SweepConfig, given: SweepConfig) -> list[str]:
    """Return the keys that may not change in a study and did."""
    return [
        name
        for name in SweepConfig.model_fields
        if name not in FREE_KEYS and getattr(stored, name) != getattr(given, name)
    ]


# --- The trials of a sweep: what is searched, and the runs of a trial.


Params = Mapping[str, Any]
"""The searched settings of a trial, by name."""


@dataclass(frozen=True)
class SweepPlan:
    config: SweepConfig
    algorithm: Algorithm
    dimensions: tuple[Dimension, ...]

    @property
    def trial_count(self) -> int:
        if self.config.sampler != "grid":
            return self.config.trials or DEFAULT_TRIALS
        cells = math.prod(len(dimension.options) for dimension in self.dimensions)
        return min(cells, self.config.trials or cells)

    def grid(self) -> list[dict[str, Any]]:
        """All combinations, in the order of the file."""
        names = [dimension.name for dimension in self.dimensions]
        options = (dimension.options for dimension in self.dimensions)
        return [dict(zip(names, cell, strict=True)) for cell in itertools.product(*options)]

    @property
    def default_params(self) -> dict[str, Any] | None:
        """The algorithm's own defaults; None where one is outside of what is searched."""
        defaults = {dimension.name: self.algorithm.default(dimension.name) for dimension in self.dimensions}
        is_inside = all(dimension.contains(defaults[dimension.name]) for dimension in self.dimensions)
        return defaults if is_inside else None

    def plan_trial(self, study_id: str, number: int, params: Params) -> ExperimentPlan:
        """Return the runs of a trial. The same arguments give the same keys, by which the runs are found again."""
        scope = json.dumps([study_id, number])
        return plan_experiment(self._experiment(f"trial {number}", params, self.config.options), scope)

    def plan_defaults(self) -> ExperimentPlan:
        """Return the runs without searched settings, for a dry run before anything starts."""
        return plan_experiment(self._experiment("defaults", {}, self.config.options))

    def build_preset(self, params: Params) -> Preset:
        """Return these settings with the first environment, without the seeds and options of the sweep."""
        cell = plan_experiment(self._experiment("preset", params, {})).cells[0]
        config = value_at(cell.payload, CONFIG_PATH)
        core = {name: config[name] for name in CORE_FIELD_NAMES if name in config}
        return Preset(self.algorithm.worker.id, self.algorithm.name, core | config.get("algo_params", {}))

    def _experiment(self, label: str, params: Params, options: Mapping[str, Any]) -> ExperimentConfig:
        config = self.config
        algorithm = config.algorithm.model_copy(
            update={"label": label, "settings": {**config.algorithm.settings, **params}}
        )
        return ExperimentConfig.model_construct(
            name=config.name,
            algorithms=(algorithm,),
            environments=config.environments,
            seeds=tuple(range(1, config.seeds_per_trial + 1)),
            settings=config.settings,
            variants={},
            options=dict(options),
        )


def plan_sweep(config: SweepConfig) -> SweepPlan:
    """Return the sweep; raises ConfigRefused with all that does not fit the algorithm's settings."""
    try:
        algorithm = get_algorithm(config.algorithm.name)
    except UnknownName as error:
        raise refuse([FieldProblem("algorithm", str(error).rstrip("."))], SUBJECT) from None
    stated = _stated_settings(config)
    entries = config.search or {name: entry for name, entry in default_entries(algorithm).items() if name not in stated}
    dimensions, problems = build_search_space(algorithm, entries, stated)
    if not dimensions and not problems:
        problems = [FieldProblem("search", f"there are no default ranges for {algorithm.name}; state some")]
    if problems:
        raise refuse(problems, SUBJECT)
    plan = SweepPlan(config, algorithm, tuple(dimensions))
    plan.plan_defaults()  # refuses fixed settings that do not fit
    return plan


def _stated_settings(config: SweepConfig) -> dict[str, str]:
    sections = {"settings": config.settings, "algorithm": config.algorithm.settings}
    sections |= {f"environments.{place}": one.settings for place, one in enumerate(config.environments)}
    return {name.replace("-", "_"): path for path, section in sections.items() for name in section}


# --- Trials of a sweep as everyone but Optuna sees them.


MIN_TRIALS_FOR_IMPORTANCE = 8
"""Completed trials below which no setting is called important."""


class TrialStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    PRUNED = "pruned"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class TrialRow:
    """A trial as it is stored."""

    number: int
    status: TrialStatus
    params: dict[str, Any]
    score: float | None = None
    reports: dict[int, float] = field(default_factory=dict)
    """By number of the report."""
    seed_scores: tuple[float, ...] = ()
    problem: str = ""
    pruned_at: int | None = None
    """The report at which pruning was decided."""
    is_complete: bool = True
    """Whether all of its settings were chosen: a sweep may be killed while it asks for them."""

    @property
    def last_score(self) -> float | None:
        """The score, or the last report of a trial without one."""
        return self.score if self.score is not None or not self.reports else self.reports[max(self.reports)]


# --- Scores of trials from the training returns of their runs. No I/O.


Floats = npt.NDArray[np.float64]
LAST_SHARE = 0.2


def last_fifth(steps: Floats, returns: Floats, end: float) -> float:
    """Return the mean return of the episodes that ended in the last fifth of the steps up to `end`.

    If none did, the last return before; NaN if there is none.
    """
    is_known = (steps <= end) & np.isfinite(returns)
    steps, returns = steps[is_known], returns[is_known]
    if not len(returns):
        return float("nan")
    recent = returns[steps > (1 - LAST_SHARE) * end]
    return float(recent.mean() if len(recent) else returns[-1])


METRICS = {"last_fifth": last_fifth, "area": curve_area}


def seed_scores(config: SweepConfig, values: Mapping[str, Sequence[float]]) -> Floats:
    """Return one score for each seed. `values`: by environment, the metric of each seed.

    With reference scores, a seed's score is the mean of its normalized values over environments.
    """
    rows = []
    for environment, returns in values.items():
        row = np.array(returns, np.float64)
        if (reference := config.reference_scores.get(environment)) is not None:
            row = (row - reference.low) / (reference.high - reference.low)
        rows.append(row)
    scores: Floats = np.mean(rows, axis=0)
    return scores


def score_interval(scores: Sequence[float]) -> ConfidenceInterval:
    return mean_with_interval(np.array(scores, np.float64))


def trial_score(config: SweepConfig, values: Mapping[str, Sequence[float]]) -> float:
    """Return the number that is maximized; NaN where a run has no value."""
    interval = score_interval(seed_scores(config, values).tolist())
    return interval.low if config.score == "lower" else interval.point
