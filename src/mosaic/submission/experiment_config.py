"""The config of an experiment: algorithms × variants × environments × seeds, as one group of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from mosaic.contracts.errors import BadInput, FieldProblem, similar_names
from mosaic.contracts.model import Contract, parse_contract, refuse
from mosaic.contracts.options import OPTIONS, Option
from mosaic.contracts.payload import EnvId, SafeName, Seed
from mosaic.submission.run_payloads import parse_seeds

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
