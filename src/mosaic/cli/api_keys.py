"""API keys on the command line: read without being shown or named in arguments, and where they are stored."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mosaic.base.secret_store import SECRET_VARIABLES, put_secret, secret_location, secrets_path
from mosaic.cli import output
from mosaic.cli.context import CliContext
from mosaic.contracts.errors import BadInput

KEY_LOCATIONS = {
    "environment": "set in the environment ({variable})",
    "keyring": "stored in the system keyring",
    "file": "stored in {path}",
}


def read_key(prompt: str, login_command: str, arguments: Sequence[str]) -> str:
    """Read a key from a hidden prompt, or from stdin where that is not a terminal."""
    if arguments:
        # The argument is not repeated: it may be the key.
        raise BadInput(
            "The key must not be an argument: all users of this machine can read those. "
            f"Enter it at the prompt or pass it by stdin: {login_command} < key.txt"
        )
    if sys.stdin.isatty():
        return output.ask_hidden(prompt)
    return sys.stdin.readline().strip()


def store_key(context: CliContext, name: str, key: str, login_command: str, next_step: str = "") -> None:
    """Store a key and print where it is, and whether the environment has another that precedes it."""
    location = put_secret(name, key)
    message = f"The key is {describe_key_location(name, location, login_command)}.{next_step}"
    context.print_result({"stored_in": location}, message)
    if not context.is_json and secret_location(name) == "environment":
        output.print_message(f"{SECRET_VARIABLES[name]} is set in this environment and precedes the stored key.")


def describe_key_location(name: str, location: str | None, login_command: str) -> str:
    """Say where a key is, or the command that stores one."""
    if location is None:
        return f"none is stored: {login_command}"
    return KEY_LOCATIONS[location].format(path=secrets_path(), variable=SECRET_VARIABLES[name])
