"""Experiments: groups of runs over algorithms, environments and seeds; their comparison and their figures."""

from mosaic.base.features import Command, Feature

FEATURE = Feature(
    commands=(
        Command("experiment", "Train", 5, "cli:experiment", "Run algorithms × environments × seeds from a YAML file."),
        Command("experiments", "Inspect", 2, "cli:experiments", "List groups of runs, with their numbers by status."),
        Command(
            "compare",
            "Inspect",
            10,
            "cli_compare:compare",
            "Compare runs or groups: scores, confidence intervals and settings that differ.",
        ),
        Command(
            "plot",
            "Inspect",
            11,
            "cli_compare:plot",
            "Draw learning curves or aggregates of runs and groups for a paper.",
        ),
        Command(
            "leaderboard",
            "Inspect",
            12,
            "cli_compare:leaderboard",
            "Rank all evaluated policies, for each environment.",
        ),
    ),
)
