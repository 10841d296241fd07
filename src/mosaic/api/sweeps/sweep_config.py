"""The config of a sweep: that of an experiment with one algorithm, and what to search."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from mosaic.api.reference_scores import ReferenceScore
from mosaic.api.sweeps.search_space import SearchEntry
from mosaic.api.yaml_file import read_yaml_file, to_plain_mapping
from mosaic.contracts.errors import ConfigRefused, FieldProblem
from mosaic.contracts.model import Contract, parse_contract, refuse
from mosaic.contracts.payload import SafeName
from mosaic.submission.experiment_config import (
    MAX_ENTRIES,
    AlgorithmEntry,
    EnvironmentEntry,
    SettingsSection,
    convert_options,
    suggest,
)

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
