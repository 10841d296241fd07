"""Evaluation of trained policies, and the leaderboard."""

from mosaic.base.features import Command, Feature

FEATURE = Feature(
    commands=(Command("eval", "Train", 7, "cli:evaluate", "Evaluate a run's policy on fresh seeds."),),
)
