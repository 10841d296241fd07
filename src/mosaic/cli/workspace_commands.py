"""`mosaic workspace [trust|untrust]`."""

from __future__ import annotations

import sys

import click

from mosaic.cli import output
from mosaic.cli.cli_context import TRUST_HINT, CliContext, command, pass_context
from mosaic.contracts.errors import BadInput
from mosaic.formatting import count_noun, describe_read_only


@command()
@click.argument("change", type=click.Choice(("trust", "untrust")), required=False)
@click.option("--yes", is_flag=True, help="Do not ask before trusting it.")
@pass_context
def workspace(context: CliContext, change: str | None, yes: bool) -> None:
    """Shows whether the workspace is yours, or read-only because somebody else made it.

    What is read-only can be listed, shown, compared, exported and replayed; nothing in it is started or changed.
    'trust' makes it yours, as after you copied your own from another machine: what waits in its queue starts.
    'untrust' makes it read-only again.
    """
    if change is not None:
        context.use_local()
    trainer = context.trainer()
    status = trainer.get_status()
    if change == "trust" and status.is_read_only and not yes:
        if not sys.stdin.isatty():
            raise BadInput("The workspace was not trusted: there is no terminal to confirm in. Use --yes.")
        from mosaic.cli.runs_commands import RunsTable

        queued = trainer.runs(status=("queued",))
        output.console(is_stderr=True).print(RunsTable(queued) if queued else "No runs are queued.")
        output.confirm(f"Trust what is in {status.workspace}, and start {count_noun(len(queued), 'run')}?")
    if change is not None:
        status = trainer.trust_workspace(change == "trust")
    texts = [f"Workspace {status.workspace}: yours.", status.trust_problem]
    if status.is_read_only:
        texts = [f"Workspace {status.workspace}: read-only.", describe_read_only(status), TRUST_HINT]
    context.print_result(status, "\n".join(filter(None, texts)))
