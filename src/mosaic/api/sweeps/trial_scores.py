"""Scores of trials from the training returns of their runs. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mosaic.statistics.curves import ConfidenceInterval, mean_with_interval
from mosaic.statistics.scores import curve_area

if TYPE_CHECKING:
    from mosaic.api.sweeps.sweep_config import SweepConfig

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
