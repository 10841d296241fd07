"""Policies on the Hugging Face Hub."""

from mosaic.base.features import Command, Feature

FEATURE = Feature(
    commands=(
        Command("push", "Organize", 9, "cli:push", "Upload a run's policy to the Hugging Face Hub."),
        Command("pull", "Organize", 10, "cli:pull", "Download a policy from the Hugging Face Hub."),
    ),
)
