"""What the workspace holds on the disk: how much, what can be removed, and the trash."""

from mosaic.base.features import Command, Feature

FEATURE = Feature(
    commands=(
        Command("restore", "Organize", 6, "cli:restore", "Restore deleted runs, or list the trash."),
        Command("disk", "MOSAIC itself", 1, "cli:disk", "Show what the workspace holds, by kind and by run."),
        Command(
            "prune", "MOSAIC itself", 2, "cli:prune", "Remove old checkpoints, replay buffers, videos and the trash."
        ),
    ),
)
