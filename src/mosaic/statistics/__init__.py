"""How sure a comparison of runs is: pure functions over numpy arrays, the same for the window and the command line."""

from mosaic.statistics.curves import Smoother, Spread, mean_interval, resample, smoothed
from mosaic.statistics.scores import (
    Interval,
    bootstrap_mean,
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
    "bootstrap_mean",
    "final_performance",
    "iqm",
    "iqm_interval",
    "mean_interval",
    "probability_of_improvement",
    "probability_of_improvement_interval",
    "resample",
    "smoothed",
]
