"""Tracking: Weights & Biases, trackio and TensorBoard."""

from mosaic.base.features import Command, Feature

FEATURE = Feature(
    commands=(
        Command(
            "wandb",
            "Organize",
            11,
            "cli:wandb",
            "Weights & Biases: store the API key, sync runs, diagnose the connection.",
        ),
    ),
)
