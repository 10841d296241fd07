"""Runs policies in environments: evaluation and video."""

from mosaic.arena.episode_summary import pool_summaries, summarize
from mosaic.arena.evaluate import Episode, EvaluablePolicy, evaluate

__all__ = ["Episode", "EvaluablePolicy", "evaluate", "pool_summaries", "summarize"]
