"""`mosaic wandb login|logout|status|sync|probe`. wandb itself is never imported here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, common_options, pass_context
from mosaic.cli.run_arguments import run_argument, runs_argument
from mosaic.contracts.errors import BadInput
from mosaic.contracts.folder import RunFolder

if TYPE_CHECKING:
    from mosaic.sidecar.wandb_diagnostics import Finding

Json = dict[str, Any]
API_KEY_NAME = "wandb_api_key"
MIN_KEY_LENGTH = 20
KEY_LOCATIONS = {
    "environment": "set in the environment (WANDB_API_KEY)",
    "keyring": "stored in the system keyring",
    "file": "stored in {path}",
}
_STYLES = {"ok": "green", "synced": "green", "online": "green", "fail": "red", "failed": "red", "syncing": "cyan"}
UPLOADABLE_STATES = ("offline", "failed")


@click.group(params=common_options())
def wandb() -> None:
    """Weights & Biases: the key, what is offline and what is synced, and whether the server can be reached."""


# --- the key


@command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.pass_context
@pass_context
def login(context: CliContext, ctx: click.Context) -> None:
    """Stores your W&B API key.

    It goes to the system keyring, else to a file that only you can read. You are asked for it at a prompt that shows
    nothing, or give it by stdin: mosaic wandb login < key.txt
    """
    from mosaic.secrets import put_secret, secret_location

    if ctx.args:
        # Not repeated: what was typed may well be the key.
        raise BadInput(
            "A key is never an argument: everybody on this machine can read those. "
            "Give it at the prompt, or by stdin: mosaic wandb login < key.txt"
        )
    key = _read_key()
    if len(key) < MIN_KEY_LENGTH:
        raise BadInput(f"That is no W&B key: it has {len(key)} characters, and they have 40 or more. Copy it again.")
    place = put_secret(API_KEY_NAME, key)
    if context.is_json:
        output.print_json({"stored_in": place})
        return
    click.echo(f"The key is {describe_key_location(place)}. Try it: mosaic wandb probe")
    if secret_location(API_KEY_NAME) == "environment":
        output.print_message("WANDB_API_KEY is set in this environment and comes before the stored one.")


def _read_key() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("W&B API key", hide_input=True, err=True)).strip()
    return sys.stdin.readline().strip()


@command()
@click.option("--all", "is_all", is_flag=True, help="Also the keys that configs brought along.")
@pass_context
def logout(context: CliContext, is_all: bool) -> None:
    """Forgets the stored W&B API key."""
    from mosaic.secrets import additional_secret_names, delete_secret, secret_location

    names = [API_KEY_NAME, *(additional_secret_names(API_KEY_NAME) if is_all else ())]
    number = sum(delete_secret(name) for name in names)
    if context.is_json:
        output.print_json({"forgotten": number})
        return
    click.echo(
        "The key is forgotten." if number == 1 else f"{number} keys are forgotten." if number else "No key was stored."
    )
    if secret_location(API_KEY_NAME) == "environment":
        output.print_message("WANDB_API_KEY is still set in this environment.")


def describe_key_location(location: str | None) -> str:
    from mosaic.secrets.secret_store import secrets_file_path

    return (
        "none is stored: mosaic wandb login"
        if location is None
        else KEY_LOCATIONS[location].format(path=secrets_file_path())
    )


# --- what is where


@command()
@runs_argument(required=False)
@pass_context
def status(context: CliContext, runs: tuple[str, ...]) -> None:
    """Shows which runs are offline, synced or failed. Without RUN: all that have anything of W&B's."""
    from mosaic.secrets import secret_location

    found = _load_states(context, runs)
    place = secret_location(API_KEY_NAME)
    if context.is_json:
        output.print_json({"key": place, "runs": found})
        return
    output.print_fields([("key", describe_key_location(place))])
    if not found:
        output.print_message("No run has anything of W&B's. Track one: mosaic train ppo --env-id CartPole-v1 --track")
        return
    _print_states(found)
    waiting = [state for state in found if state["state"] in UPLOADABLE_STATES]
    if waiting:
        output.print_message(f"{len(waiting)} {'waits' if len(waiting) == 1 else 'wait'}: mosaic wandb sync --all")


def _load_states(context: CliContext, runs: Iterable[str]) -> list[Json]:
    trainer = context.trainer()
    if not runs:
        return list(trainer.wandb())
    found: list[Json] = []
    for run in dict.fromkeys(runs):
        told = list(trainer.wandb(run))
        if not told:
            raise BadInput(f"Run {output.short_id(trainer.get(run)['run_id'])} has nothing of W&B's.")
        found += told
    return found


def _print_states(states: Sequence[Json]) -> None:
    from rich.text import Text

    ids = output.short_ids([state["run_id"] for state in states])
    table = output.create_table(
        "RUN", "WHAT", "STATE", "RECORDS", "SIZE", "WHERE", right_aligned=("RECORDS", "SIZE"), wrap=("WHERE",)
    )
    for state in states:
        folders = list(state["runs"].values())
        records = [folder["records"] for folder in folders if folder["records"] is not None]
        table.add_row(
            ids[state["run_id"]],
            " ".join(filter(None, (state.get("algo"), state.get("env_id")))) or state.get("run_name") or "",
            Text(state["state"], style=_STYLES.get(state["state"], "")),
            output.format_count(sum(records) if records else None),
            output.format_size(sum(folder["size_bytes"] for folder in folders)),
            state["error"] or state["url"] or "on this machine",
        )
    output.console().print(table)


# --- uploading


@command()
@runs_argument(required=False)
@click.option("--all", "is_all", is_flag=True, help="All runs that are offline or failed.")
@pass_context
def sync(context: CliContext, runs: tuple[str, ...], is_all: bool) -> int:
    """Uploads runs that are offline. Nothing is lost where it fails: it can be tried again. Exit code 1: one failed."""
    if bool(runs) == is_all:
        raise BadInput("Say which runs to upload, or --all. See what waits: mosaic wandb status")
    context.print_workspace()
    states = _load_states(context, runs)
    waiting = [state for state in states if state["state"] in UPLOADABLE_STATES]
    for state in states:
        if runs and state not in waiting:
            output.print_message(f"Run {output.short_id(state['run_id'])} is {state['state']} already.")
    ended = _upload_runs(context, waiting)
    if context.is_json:
        output.print_json([ended.get(state["run_id"], state) for state in states if runs or state in waiting])
    elif not waiting:
        click.echo("Nothing waits.")
    else:
        for state in ended.values():
            click.echo(_format_sync_result(state))
    return 0 if all(state["state"] == "synced" for state in ended.values()) else 1


def _format_sync_result(state: Json) -> str:
    run = output.short_id(state["run_id"])
    if state["state"] == "synced":
        return f"Run {run} is synced" + (f": {state['url']}" if state.get("url") else ".")
    return f"Run {run} is not synced. {state.get('error') or 'Nobody said why.'}"


def _upload_runs(context: CliContext, states: Sequence[Json]) -> dict[str, Json]:
    from mosaic.sidecar.upload_client import upload_runs

    folders = [RunFolder(context.workspace.run(state["run_id"]).path) for state in states]
    last: dict[str, Json] = {
        state["run_id"]: {**state, "state": "failed", "error": "The upload ended unexpectedly."} for state in states
    }
    if folders:
        with _upload_progress(len(folders)) as show:
            for said in upload_runs(folders):
                problems = said.pop("problems", [])
                if said.pop("is_last", False):
                    last[said["run_id"]] = {**last[said["run_id"]], **said}
                    for problem in problems:
                        output.print_message(problem)
                show(said)
    return last


@contextmanager
def _upload_progress(count: int) -> Iterator[Callable[[Json], None]]:
    """Bytes of the run that is at it; nothing where nobody sees it."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    console = output.console(is_stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    seen: list[str] = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("Uploading", total=None)

        def show(state: Json) -> None:
            if state["run_id"] not in seen:
                seen.append(state["run_id"])
            folders = list(state.get("runs", {}).values())
            progress.update(
                task,
                description=f"Uploading run {output.short_id(state['run_id'])} ({len(seen)} of {count})",
                completed=sum(folder["sent_bytes"] for folder in folders),
                total=sum(folder["size_bytes"] for folder in folders) or None,
            )

        yield show


# --- whether it can be reached


@command()
@run_argument(required=False)
@click.option("--vpn", "is_vpn", is_flag=True, help="Through the VPN's proxy, as .env or the settings name it.")
@pass_context
def probe(context: CliContext, run: str | None, is_vpn: bool) -> int:
    """Tells which of package, proxy, DNS, TLS and key keeps W&B away. With RUN, as that run would reach it."""
    from mosaic.secrets.proxies import PROXY_SWITCH_FIELD
    from mosaic.sidecar.wandb_diagnostics import run_diagnostics

    extras: Json = {}
    if run is not None:
        extras = context.trainer().config(run)["metadata"]["worker"]["config"].get("extras") or {}
    if is_vpn:
        extras = {**extras, PROXY_SWITCH_FIELD: True}
    found: list[Finding] = []
    for finding in run_diagnostics(context.workspace.root, extras):
        found.append(finding)
        if not context.is_json:
            _print_finding(finding)
    is_clear = all(finding.state == "ok" for finding in found)
    if context.is_json:
        output.print_json({"ok": is_clear, "findings": [asdict(finding) for finding in found]})
    return 0 if is_clear else 1


def _print_finding(finding: Finding) -> None:
    from rich.text import Text

    words = Text.assemble(
        f"{finding.name:<8} ", (f"{finding.state:<8} ", _STYLES.get(finding.state, "dim")), finding.found
    )
    if finding.todo:
        words.append(f". {finding.todo}", style=_STYLES["fail"])
    output.console().print(words, soft_wrap=True)


for each in (login, logout, status, sync, probe):
    wandb.add_command(each)
