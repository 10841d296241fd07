"""Where actors meet environments. So far: a policy is evaluated."""

from mosaic.arena.evaluate import Episode, Policy, evaluate
from mosaic.arena.statistics import pooled, summarise

__all__ = ["Episode", "Policy", "evaluate", "pooled", "summarise"]
