"""Reads the returns that normalized scores refer to, such as those of a random and of an expert policy."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, RootModel, ValidationError, model_validator

from mosaic.api.yaml_file import read_yaml_file, to_plain_mapping
from mosaic.contracts.errors import BadInput
from mosaic.contracts.model import Contract, format_validation_error
from mosaic.contracts.setting_field import parse_number
from mosaic.statistics.aggregates import ScoreRange

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
