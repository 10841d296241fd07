"""`mosaic completion`, and what RUN and environment arguments complete to."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mosaic.cli.cli_context import CliContext, command
from mosaic.contracts.errors import BadInput, MosaicError

SHELLS = ("bash", "zsh", "fish")
COMPLETE_VARIABLE = "_MOSAIC_COMPLETE"
MAX_RUNS_OFFERED = 50
_INSTALL_COMMANDS = {
    "bash": "mosaic completion bash > ~/.local/share/bash-completion/completions/mosaic",
    "zsh": "mosaic completion zsh > ~/.zfunc/_mosaic    (with ~/.zfunc in fpath before compinit)",
    "fish": "mosaic completion fish > ~/.config/fish/completions/mosaic.fish",
}


@command(has_json=False)
@click.argument("shell", type=click.Choice(SHELLS), required=False)
def completion(shell: str | None) -> None:
    """Prints the script that completes commands, settings and runs in your shell.

    \b
    bash: mosaic completion bash > ~/.local/share/bash-completion/completions/mosaic
    zsh:  mosaic completion zsh > ~/.zfunc/_mosaic
    fish: mosaic completion fish > ~/.config/fish/completions/mosaic.fish
    """
    from click.shell_completion import get_completion_class

    from mosaic.cli.main import PROGRAM_NAME, cli

    shell = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(shell) if shell in SHELLS else None
    if kind is None:
        raise BadInput(f"Your shell ({shell or 'unknown'}) is none of {', '.join(SHELLS)}; name one of them.")
    source = kind(cli, {}, PROGRAM_NAME, COMPLETE_VARIABLE)
    click.echo(source.source_template % source.source_vars())
    click.echo(f"To install it: {_INSTALL_COMMANDS[shell]}", err=True)


def _cli_context(ctx: click.Context) -> CliContext:
    """Parses the words before the cursor without calling a command."""
    return ctx.find_object(CliContext) or CliContext()


def run_ids(ctx: click.Context) -> list[str]:
    """The newest runs, where a daemon is running: pressing Tab does not start one."""
    try:
        with _cli_context(ctx).connect(may_start=False) as trainer:
            return ["last", *(view.run_id for view in trainer.runs(limit=MAX_RUNS_OFFERED))]
    except MosaicError:
        return ["last"]


def env_ids(ctx: click.Context) -> list[str]:
    try:
        with _cli_context(ctx).connect(may_start=False) as trainer:
            found = trainer.ask_worker("cleanrl", {"ask": "environments"})["environments"]
            return [env["id"] for env in found if env["is_installed"]]
    except (MosaicError, KeyError):
        return []
