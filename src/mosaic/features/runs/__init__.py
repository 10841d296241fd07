"""Runs: the list of them, the page of one, their logs, metrics, settings and files, and what can be done with them."""

from mosaic.base.features import Command, Feature

FEATURE = Feature(
    commands=(
        Command("runs", "Inspect", 1, "cli:runs", "List runs, newest first."),
        Command("show", "Inspect", 4, "cli:show", "Show everything about a run."),
        Command("logs", "Inspect", 6, "cli_files:logs", "Print what a run wrote to its console."),
        Command("metrics", "Inspect", 7, "cli_files:metrics", "Print the metrics of a run."),
        Command("config", "Inspect", 8, "cli:config", "Print the config that made a run."),
        Command("diff", "Inspect", 9, "cli:diff", "Show which settings of two runs differ."),
        Command("cancel", "Control", 1, "cli_control:cancel", "Stop runs, each with a checkpoint."),
        Command("pause", "Control", 2, "cli_control:pause", "Pause running runs."),
        Command("resume", "Control", 3, "cli_control:resume", "Resume paused, stopped, failed or lost runs."),
        Command(
            "resubmit", "Control", 4, "cli_control:resubmit", "Start new runs from the configs of others, with changes."
        ),
        Command("tag", "Organize", 1, "cli_control:tag", "Add tags to a run or remove them."),
        Command("note", "Organize", 2, "cli_control:note", "Write or read a run's note."),
        Command("rename", "Organize", 3, "cli_control:rename", "Give a run another name."),
        Command("archive", "Organize", 4, "cli_control:archive", "Hide runs from the list without deleting them."),
        Command("delete", "Organize", 5, "cli_control:delete", "Move finished runs to the trash."),
        Command(
            "export",
            "Organize",
            7,
            "cli_files:export",
            "Write a run's episodes, metrics, curve or whole folder to a file.",
        ),
        Command("import", "Organize", 8, "cli_files:import_", "Import a run that was exported as a zip."),
    ),
)
