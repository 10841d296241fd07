"""The daemon, trainers on other machines, workspaces, and what this machine has."""

from mosaic.base.features import Command, Feature

FEATURE = Feature(
    commands=(
        Command("doctor", "Start here", 3, "cli_doctor:doctor", "Check this machine and show how to fix each problem."),
        Command("daemon", "MOSAIC itself", 3, "cli:daemon", "Start, stop or inspect the daemon that manages the runs."),
        Command(
            "workspace",
            "MOSAIC itself",
            4,
            "cli:workspace",
            "Show whose the workspace is, or trust one of somebody else's.",
        ),
        Command("trainer", "MOSAIC itself", 5, "cli_trainers:trainer", "Add and choose trainers on other machines."),
    ),
)
