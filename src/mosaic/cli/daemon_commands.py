"""`mosaic daemon start|stop|status|run`."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import click

from mosaic import formatting
from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, common_options, pass_context
from mosaic.common.processes import is_alive
from mosaic.contracts.errors import BadInput, NoDaemon

if TYPE_CHECKING:
    from mosaic.client import DaemonAddress
    from mosaic.contracts.views import DaemonStatus

STOP_TIMEOUT_S = 10.0
CANCEL_TIMEOUT_S = 60.0


@click.group(params=common_options())
def daemon() -> None:
    """Starts, stops or inspects the daemon that manages the runs. It starts automatically when needed."""


@command()
@pass_context
def start(context: CliContext) -> None:
    """Starts the daemon, if none runs."""
    is_new = context.daemon_address() is None
    context.print_workspace()
    status = context.trainer().status()
    message = f"The daemon {'has started' if is_new else 'runs already'}: pid {status.pid}, {status.address}"
    context.print_result(status, message)


@command()
@pass_context
def status(context: CliContext) -> None:
    """Shows whether the daemon is running, and its state. Exit code 4: it is not running."""
    if context.daemon_address() is None:
        if context.is_json:
            output.print_json(
                {"pid": None, "address": None, "started_at": None, "workspace": str(context.workspace.root)}
            )
        raise NoDaemon(f"No daemon runs for {context.workspace.root}. It starts with the next command that needs it.")
    status = context.trainer(may_start=False).status()
    if context.is_json:
        output.print_json(status)
    else:
        output.print_fields(status_rows(status, str(context.workspace.daemon_log)))


def status_rows(status: DaemonStatus, log: str) -> list[tuple[str, str | None]]:
    runs = ", ".join(f"{number} {stage}" for stage, number in status.runs.items() if number)
    slots = status.slots
    return [
        ("daemon", f"pid {status.pid} at {status.address}"),
        ("started", f"{formatting.format_timestamp(status.started_at)} ({formatting.format_ago(status.started_at)})"),
        ("version", status.version),
        ("workspace", status.workspace),
        ("runs", runs or "none"),
        ("busy", f"{slots.busy} of {slots.runs} slots; {slots.cpus} CPUs, {slots.gpus} GPUs"),
        ("state", "draining: no further run is started" if status.is_draining else None),
        ("paused", status.paused),
        ("log", log),
    ]


@command("continue")
@pass_context
def continue_queue(context: CliContext) -> None:
    """Continues a queue that was paused because several runs in a row failed at once."""
    trainer = context.trainer(may_start=False)
    was_paused = trainer.status().paused is not None
    status = trainer.continue_queue()
    waiting = status.slots.queued
    message = f"The queue continues; waiting: {waiting}." if was_paused else "The queue is not paused."
    context.print_result(status, message)


@command()
@click.option("--runs", "cancel_runs", is_flag=True, help="Cancel its runs first; otherwise they continue.")
@click.option("--drain", is_flag=True, help="Start no further run and stop after the last one; returns at once.")
@pass_context
def stop(context: CliContext, cancel_runs: bool, drain: bool) -> None:
    """Stops the daemon. Runs continue without it, and the next daemon adopts them."""
    if cancel_runs and drain:
        raise BadInput("--runs and --drain exclude each other: cancel the runs or let them end.")
    context.print_workspace()
    address = context.daemon_address()
    if address is None:
        context.print_result({"stopped": None}, "No daemon runs.")
        return
    if drain:
        context.trainer(may_start=False).stop_daemon(drain=True)
        message = "The daemon starts no further run and stops after its last one."
        context.print_result({"stopped": None}, message)
        return
    pid = address.process["pid"]
    try:
        context.trainer(may_start=False).stop_daemon(cancel_runs)
    except NoDaemon as error:
        if cancel_runs:
            raise
        output.print_message(f"{error} It is ended by signal.")
        os.kill(pid, signal.SIGTERM)
    if not _wait_until_gone(address, CANCEL_TIMEOUT_S if cancel_runs else STOP_TIMEOUT_S):
        os.kill(pid, signal.SIGKILL)
        if not _wait_until_gone(address, STOP_TIMEOUT_S):
            raise NoDaemon(f"The daemon (pid {pid}) does not end, not even when killed.")
    context.print_result({"stopped": pid}, f"The daemon (pid {pid}) has ended.")


def _wait_until_gone(address: DaemonAddress, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while is_alive(address.process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@command(has_json=False)
@pass_context
def run(context: CliContext) -> int:
    """Runs the daemon in the foreground, until Ctrl-C."""
    from mosaic.trainer.__main__ import main

    context.print_workspace()
    return main(["--var", str(context.workspace.root), "--idle-s", "inf"])


for each in (start, stop, status, continue_queue, run):
    daemon.add_command(each)
