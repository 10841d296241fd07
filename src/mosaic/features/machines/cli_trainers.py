"""`mosaic trainer add|list|show|use|remove`: trainers on other machines."""

from __future__ import annotations

import sys
from typing import Any

import click

from mosaic.base.certificates import join_address, split_address
from mosaic.base.handshake import PORT
from mosaic.base.secret_store import delete_secret, find_secret, put_secret, secret_location
from mosaic.base.trainer_profiles import (
    LOCAL,
    TrainerProfile,
    check_profile_name,
    profiles_path,
    read_profiles,
    remove_profile,
    save_profile,
    set_default,
)
from mosaic.cli import output
from mosaic.cli.context import CliContext, command, common_options, pass_context
from mosaic.contracts.errors import BadInput, MosaicError, NotAllowed


@click.group(params=common_options())
def trainer() -> None:
    """Adds and chooses trainers on other machines, which run 'mosaic daemon run --listen HOST:PORT'."""


@command()
@click.argument("name")
@click.argument("address", metavar="HOST[:PORT]")
@click.option("--replace", is_flag=True, help="Replace the trainer of that name: accept its new certificate or token.")
@pass_context
def add(context: CliContext, name: str, address: str, replace: bool) -> None:
    """Adds a trainer: shows the fingerprint of its certificate, lets it prove that it knows its token, stores both.

    The token is in trainer/remote_token of its workspace. It is asked for, or read from a copy: --token-file FILE
    It is sent only to a trainer that knows it.
    """
    from mosaic.trainer.client.remote_trainer import connect_remote, fetch_trainer_certificate, from_profile, read_token

    check_profile_name(name)
    parts = split_address(address, PORT)
    if parts is None:
        raise BadInput(f"The address {address!r} is not valid; expected HOST or HOST:PORT, such as gpu:{PORT}.")
    known = read_profiles().trainers.get(name)
    if known is not None and not replace:
        raise NotAllowed(f"There is a trainer {name!r} already, at {known.address}. To replace it, add --replace.")
    profile = TrainerProfile(name, join_address(*parts), fetch_trainer_certificate(join_address(*parts)))
    output.print_message(f"The trainer at {profile.address} shows the fingerprint {profile.fingerprint}")
    if known is not None and known.fingerprint != profile.fingerprint:
        output.print_message(f"The one that was pinned for {name} is              {known.fingerprint}")
    output.print_message("It must be the one that 'mosaic daemon status' prints there.")
    stored = find_secret(profile.secret_name) if known is not None else None
    if context.token_file is not None:
        token = read_token(context.token_file, is_remote=True)
    elif sys.stdin.isatty():
        token = _ask_for_token(stored)
    else:
        token = stored or read_token(is_remote=True)
    with connect_remote(from_profile(profile, token)) as client:
        status = client.get_status()
    place = put_secret(profile.secret_name, token)
    save_profile(profile)
    message = (
        f"Added {name}: {profile.address}, MOSAIC {status.version}. It knows the token, which is now in the "
        f"{_describe_place(place)}.\n"
        f"Use it: mosaic runs --trainer {name}   or for all commands: mosaic trainer use {name}"
    )
    context.print_result(_to_fields(profile), message)


def _ask_for_token(stored: str | None) -> str:
    kept = " (Enter keeps the stored one)" if stored else ""
    question = f"Token, from trainer/remote_token there{kept}"
    return output.ask_hidden(question, stored or None)


def _describe_place(place: str) -> str:
    return "system keyring" if place == "keyring" else "file secrets.json, readable by you only"


def _to_fields(profile: TrainerProfile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "address": profile.address,
        "fingerprint": profile.fingerprint,
        "is_default": read_profiles().default == profile.name,
    }


@command("list")
@pass_context
def list_trainers(context: CliContext) -> None:
    """Lists the trainers that were added; the one that commands use is marked."""
    profiles = read_profiles()
    if context.is_json:
        output.print_json([_to_fields(profile) for profile in profiles.trainers.values()])
        return
    rows = [(LOCAL, "this machine's own"), *((name, each.address) for name, each in profiles.trainers.items())]
    for name, address in rows:
        mark = "*" if name == (profiles.default or LOCAL) else " "
        output.echo(f"{mark} {name:<{max(len(row[0]) for row in rows)}}  {address}")
    if not profiles.trainers:
        output.print_message("Add one: mosaic trainer add NAME HOST[:PORT]")


@command()
@click.argument("name")
@pass_context
def show(context: CliContext, name: str) -> None:
    """Shows a trainer, its fingerprint, and whether it can be reached."""
    from mosaic.trainer.client.remote_trainer import connect_remote, find_remote_trainer

    profile = read_profiles().get(name)
    state, version = "reachable", None
    try:
        with connect_remote(find_remote_trainer(name, context.token_file)) as client:
            version = client.get_status().version
    except MosaicError as error:
        state = str(error)
    if context.is_json:
        output.print_json({**_to_fields(profile), "state": state, "version": version})
        return
    place = secret_location(profile.secret_name)
    output.print_fields(
        [
            ("trainer", profile.name),
            ("address", profile.address),
            ("fingerprint", profile.fingerprint),
            ("token", f"in the {_describe_place(place)}" if place else "not stored"),
            ("profile", str(profiles_path())),
            ("version", version),
            ("state", state),
        ]
    )


@command()
@click.argument("name", metavar=f"NAME|{LOCAL}")
@pass_context
def use(context: CliContext, name: str) -> None:
    """Sets the trainer that commands and the window use where none is named."""
    set_default(None if name == LOCAL else name)
    which = "this machine's own trainer" if name == LOCAL else f"the trainer {name}"
    context.print_result({"default": name}, f"Commands use {which} now; --trainer names another.")


@command()
@click.argument("name")
@pass_context
def remove(context: CliContext, name: str) -> None:
    """Forgets a trainer, its certificate and its token. Its runs are not touched."""
    profile = remove_profile(name)
    delete_secret(profile.secret_name)
    context.print_result({"removed": name}, f"Removed {name} ({profile.address}) and its token.")


for each in (add, list_trainers, show, use, remove):
    trainer.add_command(each)
