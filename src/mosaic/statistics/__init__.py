"""Statistics for comparing runs: pure functions over numpy arrays, shared by the window and the command line."""

from mosaic.statistics.curves import (
    ConfidenceBand,
    ConfidenceInterval,
    Smoother,
    mean_with_band,
    mean_with_interval,
    resample,
    smooth,
)
from mosaic.statistics.scores import (
    final_performance,
    iqm,
    iqm_interval,
    probability_of_improvement,
    probability_of_improvement_interval,
)

__all__ = [
    "ConfidenceBand",
    "ConfidenceInterval",
    "Smoother",
    "final_performance",
    "iqm",
    "iqm_interval",
    "mean_with_band",
    "mean_with_interval",
    "probability_of_improvement",
    "probability_of_improvement_interval",
    "resample",
    "smooth",
]
