"""`mosaic wandb login|logout|status|sync|probe`. wandb itself is never imported here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from mosaic.base import formatting
from mosaic.cli import output
from mosaic.cli.context import CliContext, command, common_options, pass_context
from mosaic.cli.parameters import find_run, find_runs, run_argument, runs_argument
from mosaic.contracts.errors import BadInput
from mosaic.contracts.folder import RunFolder

if TYPE_CHECKING:
    from mosaic.contracts.views import WandbStatus
    from mosaic.features.tracking.sidecar.wandb_connection import Finding

API_KEY_NAME = "wandb_api_key"
MIN_KEY_LENGTH = 20
LOGIN_COMMAND = "mosaic wandb login"
_STYLES = {"ok": "green", "synced": "green", "online": "green", "fail": "red", "failed": "red", "syncing": "cyan"}
UPLOADABLE_STATES = ("offline", "failed")
_BYTE_COUNTS = ("sent_bytes", "size_bytes")


@click.group(params=common_options())
def wandb() -> None:
    """Weights & Biases: the API key, the sync state of runs, and the connection to the server."""


# --- the key


@command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.pass_context
@pass_context
def login(context: CliContext, ctx: click.Context) -> None:
    """Stores your W&B API key.

    It is stored in the system keyring, else in a file that only you can read. It is read from a hidden prompt or from
    stdin: mosaic wandb login < key.txt
    """
    from mosaic.cli.api_keys import read_key, store_key

    key = read_key("W&B API key", LOGIN_COMMAND, ctx.args)
    if len(key) < MIN_KEY_LENGTH:
        raise BadInput(f"Not a valid W&B key: it has {len(key)} characters, expected 40 or more. Copy it again.")
    store_key(context, API_KEY_NAME, key, LOGIN_COMMAND, " Test it: mosaic wandb probe")


@command()
@click.option("--all", "is_all", is_flag=True, help="Also the keys that were submitted in configs.")
@pass_context
def logout(context: CliContext, is_all: bool) -> None:
    """Deletes the stored W&B API key."""
    from mosaic.base.secret_store import delete_secret, delete_with_config_keys, secret_location

    count = delete_with_config_keys(API_KEY_NAME) if is_all else int(delete_secret(API_KEY_NAME))
    message = "Deleted the key." if count == 1 else f"Deleted {count} keys." if count else "No key was stored."
    context.print_result({"forgotten": count}, message)
    if not context.is_json and secret_location(API_KEY_NAME) == "environment":
        output.print_message("WANDB_API_KEY is still set in this environment.")


# --- the sync state


@command()
@runs_argument(required=False)
@pass_context
def status(context: CliContext, runs: tuple[str, ...]) -> None:
    """Shows which runs are offline, synced or failed. Without RUN: all runs with W&B data."""
    from mosaic.base.secret_store import masked_config_keys, secret_location
    from mosaic.cli.api_keys import describe_key_location

    states = _load_states(context, runs)
    location, of_configs = secret_location(API_KEY_NAME), masked_config_keys(API_KEY_NAME)
    if context.is_json:
        output.print_json({"key": location, "config_keys": of_configs, "runs": states})
        return
    rows = [("your key", describe_key_location(API_KEY_NAME, location, LOGIN_COMMAND))]
    if of_configs:
        listed = ", ".join(f"{name} ({ending})" for name, ending in of_configs.items())
        rows.append(("keys of configs", f"{listed}; delete all keys: mosaic wandb logout --all"))
    output.print_fields(rows)
    if not states:
        output.print_message("No run has W&B data. Track one: mosaic train ppo --env-id CartPole-v1 --track")
        return
    _print_states(states)
    count = sum(state.state in UPLOADABLE_STATES for state in states)
    if count:
        output.print_message(f"{count} not uploaded: mosaic wandb sync --all")


def _load_states(context: CliContext, runs: Iterable[str]) -> list[WandbStatus]:
    if not runs:
        return [] if context.is_unused else list(context.trainer().read_wandb(""))
    states: list[WandbStatus] = []
    for view in find_runs(context, tuple(runs), lambda view: view.has_wandb):
        state = next(iter(context.trainer().read_wandb(view.run_id)), None)
        if state is None:
            raise BadInput(f"Run {formatting.short_id(view.run_id)} has no W&B data.")
        states.append(state)
    return states


def _print_states(states: Sequence[WandbStatus]) -> None:
    from rich.text import Text

    ids = formatting.short_ids([state.run_id for state in states])
    table = output.create_table(
        "RUN", "WHAT", "STATE", "RECORDS", "SIZE", "WHERE", right_aligned=("RECORDS", "SIZE"), wrap=("WHERE",)
    )
    for state in states:
        folders = list(state.runs.values())
        records = [folder.records for folder in folders if folder.records is not None]
        table.add_row(
            ids[state.run_id],
            " ".join(filter(None, (state.algo, state.env_id))) or state.run_name or "",
            Text(state.state, style=_STYLES.get(state.state, "")),
            formatting.format_count(sum(records) if records else None),
            formatting.format_size(sum(folder.size_bytes for folder in folders)),
            state.error or state.url or "on this machine",
        )
    output.console().print(table)


# --- uploading


@command()
@runs_argument(required=False)
@click.option("--all", "is_all", is_flag=True, help="All runs that are offline or failed.")
@pass_context
def sync(context: CliContext, runs: tuple[str, ...], is_all: bool) -> int:
    """Uploads offline runs. A failed upload can be repeated without loss. Exit code 1: an upload failed."""
    if bool(runs) == is_all:
        raise BadInput("Name the runs to upload, or use --all. List them: mosaic wandb status")
    context.print_workspace()
    states = _load_states(context, runs)
    offline = [state for state in states if state.state in UPLOADABLE_STATES]
    for state in states:
        if runs and state not in offline:
            output.print_message(f"Run {formatting.short_id(state.run_id)} is {state.state} already.")
    results = _upload_runs(context, offline)
    if context.is_json:
        output.print_json([results.get(state.run_id, state) for state in states if runs or state in offline])
    elif not offline:
        output.echo("Nothing to upload.")
    else:
        for state in results.values():
            output.echo(_format_sync_result(state))
    return 0 if all(state.state == "synced" for state in results.values()) else 1


def _format_sync_result(state: WandbStatus) -> str:
    run = formatting.short_id(state.run_id)
    if state.state == "synced":
        return f"Run {run} is synced" + (f": {state.url}" if state.url else ".")
    return f"Run {run} is not synced. {state.error or 'The reason is unknown.'}"


def _upload_runs(context: CliContext, states: Sequence[WandbStatus]) -> dict[str, WandbStatus]:
    from mosaic.contracts.views import WandbStatus as WandbStatusView
    from mosaic.features.tracking.sidecar.wandb_sync import sync_runs

    folders = [RunFolder(context.workspace.run(state.run_id).path) for state in states]
    unfinished = {"state": "failed", "error": "The upload ended unexpectedly."}
    last = {state.run_id: state.model_copy(update=unfinished) for state in states}
    if not folders:
        return last
    started: dict[str, None] = {}
    with output.progress_bar("Uploading") as show:

        def show_message(message: dict[str, Any]) -> None:
            problems, is_last = message.pop("problems", []), message.pop("is_last", False)
            status = WandbStatusView.model_validate({**last[message["run_id"]].model_dump(), **message})
            if is_last:
                last[status.run_id] = status
                for problem in problems:
                    output.print_message(problem)
            started[status.run_id] = None
            sent, size = (sum(getattr(one, name) for one in status.runs.values()) for name in _BYTE_COUNTS)
            run = formatting.short_id(status.run_id)
            show(sent, size, f"Uploading run {run} ({len(started)} of {len(folders)})")

        sync_runs(folders, show_message)
    return last


# --- the connection


@command()
@run_argument(required=False)
@click.option("--vpn", "is_vpn", is_flag=True, help="Use the VPN's proxy of .env or of the settings.")
@pass_context
def probe(context: CliContext, run: str | None, is_vpn: bool) -> int:
    """Checks package, server, proxy, DNS, TLS and key of the connection to W&B. With RUN: with its proxy and key."""
    from mosaic.features.tracking.sidecar.wandb_connection import run_diagnostics

    payload = None if run is None else context.trainer().payload(find_run(context, run).run_id)
    wandb = {} if payload is None else payload.artifacts.wandb.model_dump(exclude_unset=True)
    if is_vpn:
        wandb["use_vpn_proxy"] = True
    findings: list[Finding] = []
    for finding in run_diagnostics(context.workspace.root, wandb):
        findings.append(finding)
        if not context.is_json:
            _print_finding(finding)
    is_clear = all(finding.state == "ok" for finding in findings)
    if context.is_json:
        output.print_json({"ok": is_clear, "findings": [asdict(finding) for finding in findings]})
    return 0 if is_clear else 1


def _print_finding(finding: Finding) -> None:
    from rich.text import Text

    text = Text.assemble(
        f"{finding.name:<8} ", (f"{finding.state:<8} ", _STYLES.get(finding.state, "dim")), finding.found
    )
    if finding.todo:
        text.append(f". {finding.todo}", style=_STYLES["fail"])
    output.console().print(text, soft_wrap=True)


for each in (login, logout, status, sync, probe):
    wandb.add_command(each)
