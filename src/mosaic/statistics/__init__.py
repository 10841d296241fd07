"""How sure a comparison of runs is: pure functions over numpy arrays, the same for the window and the command line."""

from mosaic.statistics.curves import Interval, Smoother, Spread, mean_interval, mean_of, resample, smoothed
from mosaic.statistics.scores import (
    final_performance,
    iqm,
    iqm_interval,
    probability_of_improvement,
    probability_of_improvement_interval,
)

__all__ = [
    "Interval",
    "Smoother",
    "Spread",
    "final_performance",
    "iqm",
    "iqm_interval",
    "mean_interval",
    "mean_of",
    "probability_of_improvement",
    "probability_of_improvement_interval",
    "resample",
    "smoothed",
]
