"""Live frames of a run: in the window, in a terminal, as a video."""

from mosaic.base.features import Command, Feature

FEATURE = Feature(
    commands=(Command("watch", "Inspect", 5, "cli:watch", "Watch a run's environments, live."),),
)
