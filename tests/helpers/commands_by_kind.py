"""The commands of the table with those below them, which of them show something, and what these need."""

from __future__ import annotations

from collections.abc import Iterator

import click

from mosaic.cli.main import COMMANDS, cli
from mosaic.features.train.cli import AlgorithmGroup

CHANGING = {
    *(
        "gui",
        "demo",
        "train",
        "run",
        "check",
        "submit",
        "experiment check",
        "experiment run",
        "sweep run",
        "sweep init",
    ),
    *(
        "sweep save-preset",
        "sweep dashboard",
        "eval",
        "play",
        "duel",
        "cancel",
        "pause",
        "resume",
        "resubmit",
        "rename",
    ),
    *("archive", "delete", "import", "push", "pull", "llm login", "llm logout", "wandb login", "wandb logout"),
    *("wandb sync", "wandb probe", "daemon run", "daemon stop", "daemon install-service", "daemon uninstall-service"),
    *("trainer add", "trainer remove", "trainer use", "trainer show", "completion", "doctor"),
}
"""Commands that start or change something, or show nothing of a run; all others are tested, also those to come."""
EXTRA = {
    "diff": ["--json"],
    "export": ["--csv", "{out}/out.csv", "--episodes", "{out}/out.jsonl", "--zip", "{out}/out.zip"],
    "plot": ["--out", "{out}/plot.png"],
    "sweep plot": ["--out", "{out}/sweep.png"],
}


def list_commands() -> list[tuple[str, list[str]]]:
    """Every command that has none below it, and its required arguments."""

    def leaves(name: str, command: click.Command) -> Iterator[tuple[str, list[str]]]:
        if isinstance(command, click.Group) and not isinstance(command, AlgorithmGroup):
            context = click.Context(command)
            for child in command.list_commands(context):
                found = command.get_command(context, child)
                assert found is not None
                yield from leaves(f"{name} {child}", found)
        else:
            yield name, [str(one.name) for one in command.params if isinstance(one, click.Argument) and one.required]

    context = click.Context(cli)
    found: list[tuple[str, list[str]]] = []
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        found += leaves(name, command)
    return found


ALL = list_commands()
READING = [(name, parameters) for name, parameters in ALL if name not in CHANGING]
