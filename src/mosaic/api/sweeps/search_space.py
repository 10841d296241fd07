"""What a sweep searches: settings of an algorithm with their ranges, checked against its schema; default ranges."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from mosaic.contracts.errors import FieldProblem
from mosaic.contracts.model import Contract
from mosaic.contracts.setting_field import SettingField, parse_number
from mosaic.submission.algorithm_schema import Algorithm
from mosaic.submission.experiment_plan import convert_setting

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
