"""Sweeps: searches for the settings of an algorithm."""

from mosaic.base.features import Command, Feature

FEATURE = Feature(
    commands=(
        Command("sweep", "Train", 6, "cli:sweep", "Search for the best settings of an algorithm, from a YAML file."),
        Command("sweeps", "Inspect", 3, "cli:sweeps", "List the sweeps of this workspace."),
    ),
)
