"""`mosaic llm login|logout|status`: the API key of the actor `llm`."""

from __future__ import annotations

import click

from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, common_options, pass_context
from mosaic.contracts.play import LLM_KEY_NAME

LOGIN_COMMAND = "mosaic llm login"


@click.group(params=common_options())
def llm() -> None:
    """Language models as actors: the API key of an OpenAI-compatible server."""


@command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.pass_context
@pass_context
def login(context: CliContext, ctx: click.Context) -> None:
    """Stores the API key of the server that has your models. Servers on this machine usually need none.

    It is stored in the system keyring, else in a file that only you can read. It is read from a hidden prompt or from
    stdin: mosaic llm login < key.txt
    """
    from mosaic.cli.api_keys import read_key, store_key

    store_key(context, LLM_KEY_NAME, read_key("API key", LOGIN_COMMAND, ctx.args), LOGIN_COMMAND)


@command()
@pass_context
def logout(context: CliContext) -> None:
    """Deletes the stored API key."""
    from mosaic.secrets import delete_secret, secret_location

    is_deleted = delete_secret(LLM_KEY_NAME)
    context.print_result({"forgotten": int(is_deleted)}, "Deleted the key." if is_deleted else "No key was stored.")
    if not context.is_json and secret_location(LLM_KEY_NAME) == "environment":
        output.print_message("OPENAI_API_KEY is still set in this environment.")


@command()
@pass_context
def status(context: CliContext) -> None:
    """Shows where the API key is stored, never the key itself."""
    from mosaic.cli.api_keys import describe_key_location
    from mosaic.secrets import secret_location

    location = secret_location(LLM_KEY_NAME)
    context.print_result({"key": location}, f"key  {describe_key_location(LLM_KEY_NAME, location, LOGIN_COMMAND)}")


for _command in (login, logout, status):
    llm.add_command(_command)
