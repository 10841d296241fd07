"""The trials of a sweep: what is searched, and the runs of a trial."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mosaic.api.sweeps.search_space import Dimension, build_search_space, default_entries
from mosaic.api.sweeps.sweep_config import DEFAULT_TRIALS, SUBJECT, SweepConfig
from mosaic.contracts.errors import FieldProblem, UnknownName
from mosaic.contracts.model import refuse
from mosaic.contracts.options import CONFIG_PATH, value_at
from mosaic.submission.algorithm_schema import Algorithm, get_algorithm
from mosaic.submission.experiment_config import ExperimentConfig
from mosaic.submission.experiment_plan import ExperimentPlan, plan_experiment
from mosaic.submission.run_payloads import CORE_FIELD_NAMES
from mosaic.submission.user_presets import Preset

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
