"""`mosaic daemon start|stop|status|run`."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import click

from mosaic.cli import output
from mosaic.cli.door import Door, command, common_options, pass_door
from mosaic.contracts.errors import BadInput, NoDaemon
from mosaic.contracts.processes import is_alive

if TYPE_CHECKING:
    from mosaic.client import DaemonAddress

Json = dict[str, Any]
STOP_PATIENCE_S = 10.0
CANCEL_PATIENCE_S = 60.0


@click.group(params=common_options())
def daemon() -> None:
    """Starts, stops or looks at the daemon that holds the runs. It starts by itself when it is needed."""


@command()
@pass_door
def start(door: Door) -> None:
    """Starts the daemon, if none runs."""
    is_new = door.address() is None
    door.announce()
    status = door.trainer().status()
    if door.is_json:
        output.print_json(status)
        return
    click.echo(f"The daemon {'has started' if is_new else 'runs already'}: pid {status['pid']}, {status['address']}")


@command()
@pass_door
def status(door: Door) -> int:
    """Says whether the daemon runs and what it does. Exit code 4: none runs."""
    if door.address() is None:
        if door.is_json:
            output.print_json({"pid": None, "address": None, "started_at": None, "workspace": str(door.workspace.root)})
        raise NoDaemon(f"No daemon runs for {door.workspace.root}. It starts with the next command that needs it.")
    found = door.trainer(may_start=False).status()
    if door.is_json:
        output.print_json(found)
        return 0
    output.print_facts(status_rows(found, str(door.workspace.daemon_log)))
    return 0


def status_rows(status: Json, log: str) -> list[tuple[str, str | None]]:
    runs = ", ".join(f"{number} {stage}" for stage, number in (status.get("runs") or {}).items() if number)
    slots = status.get("slots") or {}
    machine = f"{slots.get('cpus', '?')} CPUs, {slots.get('gpus', 0)} GPUs"
    return [
        ("daemon", f"pid {status['pid']} at {status['address']}"),
        ("started", f"{output.moment(status['started_at'])} ({output.age(status['started_at'])} ago)"),
        ("version", status.get("version")),
        ("workspace", status.get("workspace")),
        ("runs", runs or "none"),
        ("busy", f"{slots.get('busy', 0)} of {slots.get('runs', '?')} slots; {machine}" if slots else None),
        ("state", "draining: no further run is started" if status.get("is_draining") else None),
        ("paused", status.get("paused")),
        ("log", log),
    ]


@command("continue")
@pass_door
def go_on(door: Door) -> None:
    """Lets the queue go on that was paused because several runs in a row failed at once."""
    trainer = door.trainer(may_start=False)
    was_paused = trainer.status().get("paused") is not None
    status = trainer.continue_queue()
    if door.is_json:
        output.print_json(status)
        return
    waiting = status["slots"]["queued"]
    click.echo(f"The queue goes on; waiting: {waiting}." if was_paused else "The queue is not paused.")


@command()
@click.option("--runs", "cancel_runs", is_flag=True, help="Cancel its runs first; otherwise they go on.")
@click.option("--drain", is_flag=True, help="Start nothing more and end behind the last run; returns at once.")
@pass_door
def stop(door: Door, cancel_runs: bool, drain: bool) -> None:
    """Stops the daemon. Runs go on without it, and the next daemon takes them up."""
    if cancel_runs and drain:
        raise BadInput("--runs and --drain exclude each other: cancel the runs or let them end.")
    door.announce()
    address = door.address()
    if address is None:
        _stopped(door, None, "No daemon runs.")
        return
    if drain:
        door.trainer(may_start=False).stop_daemon(drain=True)
        _stopped(door, None, "The daemon starts nothing more and ends behind its last run.")
        return
    try:
        door.trainer(may_start=False).stop_daemon(cancel_runs)
    except NoDaemon as error:
        if cancel_runs:
            raise
        output.say(f"{error} It is ended by signal.")
        os.kill(address.process["pid"], signal.SIGTERM)
    if not _is_gone(address, CANCEL_PATIENCE_S if cancel_runs else STOP_PATIENCE_S):
        os.kill(address.process["pid"], signal.SIGKILL)
        if not _is_gone(address, STOP_PATIENCE_S):
            raise NoDaemon(f"The daemon (pid {address.process['pid']}) does not end, not even when killed.")
    _stopped(door, address.process["pid"], f"The daemon (pid {address.process['pid']}) has ended.")


def _stopped(door: Door, pid: int | None, sentence: str) -> None:
    if door.is_json:
        output.print_json({"stopped": pid})
    else:
        click.echo(sentence)


def _is_gone(address: DaemonAddress, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while is_alive(address.process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@command(has_json=False)
@pass_door
def run(door: Door) -> int:
    """Runs the daemon in the foreground, until Ctrl-C."""
    from mosaic.trainer.__main__ import main

    door.announce()
    return main(["--var", str(door.workspace.root)])


for each in (start, stop, status, go_on, run):
    daemon.add_command(each)
