"""`mosaic daemon start|stop|status|continue|run`."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mosaic.base import formatting
from mosaic.base.files import write_error
from mosaic.base.formatting import count_noun, describe_read_only
from mosaic.base.processes import is_alive
from mosaic.cli import output
from mosaic.cli.context import TRUST_HINT, CliContext, command, common_options, pass_context
from mosaic.contracts.commands import CHECKPOINT_LIMIT_S
from mosaic.contracts.errors import BadInput, MissingExtra, MosaicError, NoDaemon, NotAllowed
from mosaic.contracts.folder import EXECUTOR_VARIABLE
from mosaic.contracts.options import EXECUTORS, LOCAL_EXECUTOR

if TYPE_CHECKING:
    from mosaic.contracts.process_identity import ProcessIdentity
    from mosaic.contracts.views import DaemonStatus, SlotUsage
    from mosaic.trainer.client.connect import DaemonAddress

# --- The unit that lets systemd run a daemon.


RESTART_S = 5


def build_unit(command: Sequence[str], workspace: Path) -> str:
    """A user unit. `KillMode=process`: only the daemon ends with it, its runs continue."""
    return f"""\
[Unit]
Description=MOSAIC trainer of {_escape_specifiers(str(workspace))}
After=network.target
# A daemon that a command has started holds the workspace until it is idle; this one waits for that.
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={" ".join(map(quote_argument, command))}
Restart=on-failure
RestartSec={RESTART_S}
KillMode=process

[Install]
WantedBy=default.target
"""


def quote_argument(text: str) -> str:
    """An argument as systemd reads it: in quotes, with its escapes, specifiers and variables taken literally."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{_escape_specifiers(escaped)}"'


def _escape_specifiers(text: str) -> str:
    return text.replace("%", "%%")


# --- `mosaic daemon install-service|uninstall-service`: the daemon as a service of systemd, of this user.


UNIT_NAME = "mosaic-trainer.service"
SYSTEMCTL_TIMEOUT_S = 30.0


def unit_path() -> Path:
    """Where systemd looks for the units of this user."""
    config_home = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(config_home) if os.path.isabs(config_home) else Path.home() / ".config"
    return base / "systemd" / "user" / UNIT_NAME


@command("install-service", has_json=False)
@click.option(
    "--listen", metavar="HOST[:PORT]", help="Serve other machines there, by TLS. Without it: this machine only."
)
@click.option(
    "--metrics-listen", metavar="HOST[:PORT]", help="Serve metrics for a Prometheus on another machine there."
)
@click.option("--max-runs", metavar="N", type=click.IntRange(1), help="How many runs at a time.")
@click.option("--executor", type=click.Choice(EXECUTORS), help="Where runs are started that name no executor.")
@click.option("--ray-address", metavar="HOST:PORT", help="The Ray cluster of --executor ray.")
@click.option("--slurm", metavar="'KEY=VALUE …'", help="Settings of the jobs of --executor slurm.")
@click.option("--port", metavar="N", type=click.IntRange(0, 65535), help="The first port to try on this machine.")
@click.option("--print", "is_printed", is_flag=True, help="Print the unit; write nothing.")
@pass_context
def install_service(
    context: CliContext,
    listen: str | None,
    metrics_listen: str | None,
    max_runs: int | None,
    executor: str | None,
    ray_address: str | None,
    slurm: str | None,
    port: int | None,
    is_printed: bool,
) -> None:
    """Lets systemd run the daemon of this workspace: from login on, again after a failure. Runs survive its restarts.

    So that it runs without a login, too: loginctl enable-linger
    """
    context.use_local()
    from mosaic.trainer.listeners import METRICS_FLAG, parse_listen_address

    given = {
        "--listen": None if listen is None else parse_listen_address(listen),
        METRICS_FLAG: None if metrics_listen is None else parse_listen_address(metrics_listen, METRICS_FLAG),
        "--max-runs": max_runs,
        "--executor": executor,
        "--ray-address": ray_address,
        "--slurm": slurm,
        "--port": port,
    }
    arguments = [text for flag, value in given.items() if value is not None for text in (flag, str(value))]
    root = context.workspace.root
    daemon = [sys.executable, "-P", "-m", "mosaic.trainer", "--var", str(root), "--idle-s", "inf"]
    unit = build_unit([*daemon, *arguments], root)
    if is_printed:
        output.echo(unit, has_newline=False)
        return
    path = unit_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(unit, encoding="utf-8")
    except OSError as error:
        raise write_error(path, error) from None
    output.echo(f"Wrote {path}")
    if not _has_systemd():
        output.print_message(
            "systemd does not run for this user here. Where it does: "
            f"systemctl --user daemon-reload && systemctl --user enable --now {UNIT_NAME}"
        )
        return
    _systemctl("daemon-reload")
    _systemctl("enable", "--now", UNIT_NAME)
    output.echo(f"Started. Its state: systemctl --user status {UNIT_NAME}   Remove it: mosaic daemon uninstall-service")


@command("uninstall-service", has_json=False)
@pass_context
def uninstall_service(context: CliContext) -> None:
    """Stops the service and removes its unit. Runs continue, and the next daemon adopts them."""
    context.use_local()
    path = unit_path()
    if not path.exists():
        raise NotAllowed(f"There is no service: {path} does not exist.")
    if _has_systemd():
        _systemctl("disable", "--now", UNIT_NAME)
    path.unlink()
    if _has_systemd():
        _systemctl("daemon-reload")
    output.echo(f"Removed {path}")


def _has_systemd() -> bool:
    """Whether systemd manages services of this user."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    return bool(shutil.which("systemctl")) and Path(runtime, "systemd").is_dir()


def _systemctl(*arguments: str) -> None:
    done = subprocess.run(
        ["systemctl", "--user", *arguments],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=SYSTEMCTL_TIMEOUT_S,
    )
    if done.returncode:
        raise MosaicError(f"systemctl --user {' '.join(arguments)} failed: {done.stderr.strip() or done.returncode}")


# --- `mosaic daemon start|stop|status|continue|run`.


STOP_TIMEOUT_S = 10.0
CANCEL_TIMEOUT_S = 60.0
EXECUTOR_PACKAGES = {"ray": "ray", "slurm": "submitit"}
"""What each executor other than the local one imports; the extra has its name."""


@click.group(params=common_options())
def daemon() -> None:
    """Starts, stops or inspects the daemon that manages the runs. It starts automatically when needed."""


def _daemon_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags of a new daemon, passed as `options`."""
    for option in (
        click.option("--port", metavar="N", type=click.IntRange(0, 65535), help="The first port to try; 0: any."),
        click.option(
            "--max-runs",
            metavar="N",
            type=click.IntRange(1),
            help="How many runs at a time.  [default: $MOSAIC_MAX_RUNS, or as many as there are cores]",
        ),
        click.option(
            "--idle-s",
            metavar="SECONDS",
            type=click.FloatRange(min=0),
            help="End after this time without runs or callers; inf: never.",
        ),
        click.option(
            "--executor",
            type=click.Choice(EXECUTORS),
            help="Where runs are started that name no executor.  [default: $MOSAIC_EXECUTOR, or local]",
        ),
        click.option(
            "--ray-address",
            metavar="HOST:PORT",
            help="The Ray cluster of --executor ray.  [default: $RAY_ADDRESS, or one started on this machine]",
        ),
        click.option(
            "--slurm",
            metavar="'KEY=VALUE …'",
            help="Settings of the jobs of --executor slurm, such as 'partition=gpu account=lab'.  "
            "[default: $MOSAIC_SLURM]",
        ),
        click.option(
            "--metrics-port",
            metavar="PORT",
            type=click.IntRange(0, 65535),
            help="Serve metrics for Prometheus at http://127.0.0.1:PORT/metrics; 0: any free port.",
        ),
    ):
        function = option(function)
    return function


def _to_arguments(options: Mapping[str, float | str | None]) -> list[str]:
    if options["metrics_port"] is not None or options.get("metrics_listen"):
        from mosaic.trainer.metrics_server import require_metrics_extra

        require_metrics_extra()
    executor = options["executor"] or os.environ.get(EXECUTOR_VARIABLE)
    package = EXECUTOR_PACKAGES.get(str(executor))
    if package is not None and importlib.util.find_spec(package) is None:
        raise MissingExtra(f"Runs on {executor} need the extra {executor!r}: pip install 'mosaic-rl[{executor}]'.")
    given = {f"--{name.replace('_', '-')}": str(value) for name, value in options.items() if value is not None}
    return [text for pair in given.items() for text in pair]


def _metrics_url(address: str | None) -> str | None:
    return f"{address if '://' in address else f'http://{address}'}/metrics" if address else None


@command()
@_daemon_options
@pass_context
def start(context: CliContext, /, **options: float | None) -> None:
    """Starts the daemon. It ends after ten minutes without runs or callers, unless --idle-s is given."""
    context.use_local()
    is_new = context.daemon_address() is None
    arguments = _to_arguments(options)
    context.print_workspace()
    if arguments and not is_new:
        raise NotAllowed(f"A daemon runs already, so {arguments[0]} has no effect. Stop it first: mosaic daemon stop")
    context.daemon_arguments = arguments
    status = context.trainer().get_status()
    message = f"The daemon {'has started' if is_new else 'runs already'}: pid {status.pid}, {status.address}"
    context.print_result(status, message)


@command()
@pass_context
def status(context: CliContext) -> None:
    """Shows whether the daemon is running, and its state. Exit code 4: it is not running."""
    if not context.is_remote and context.daemon_address() is None:
        if context.is_json:
            output.print_json(
                {"pid": None, "address": None, "started_at": None, "workspace": str(context.workspace.root)}
            )
        raise NoDaemon(f"No daemon runs for {context.workspace.root}. It starts with the next command that needs it.")
    status = context.trainer(may_start=False).get_status()
    if context.is_json:
        output.print_json(status)
    else:
        output.print_fields(status_rows(status))


def status_rows(status: DaemonStatus) -> list[tuple[str, str | None]]:
    runs = ", ".join(f"{number} {stage}" for stage, number in status.runs.items() if number)
    return [
        ("daemon", f"pid {status.pid} at {status.address}"),
        ("listen", f"{status.listen}, by TLS" if status.listen else None),
        ("fingerprint", status.fingerprint),
        ("started", f"{formatting.format_timestamp(status.started_at)} ({formatting.format_ago(status.started_at)})"),
        ("version", status.version),
        ("workspace", status.workspace),
        ("runs", runs or "none"),
        *slot_rows(status.slots),
        *((executor.name, formatting.describe_executor(executor)) for executor in status.executors),
        ("executor", status.default_executor if status.default_executor != LOCAL_EXECUTOR else None),
        ("state", "draining: no further run is started" if status.is_draining else None),
        ("paused", status.paused),
        ("metrics", _metrics_url(status.metrics_address)),
        ("disk", status.full_disk),
        ("index", status.rebuilt_index),
        ("log", status.log),
    ]


def slot_rows(slots: SlotUsage) -> list[tuple[str, str | None]]:
    """How many slots are busy, and which runs hold the CPUs and each GPU."""
    short = formatting.short_ids([holder.run_id for holder in slots.holders])
    cpus = [f"{short[holder.run_id]} {holder.cpus}" for holder in slots.holders]
    used = f"{slots.busy_cpus} of {slots.cpus} busy" + (f": {', '.join(cpus)}" if cpus else "")
    rows: list[tuple[str, str | None]] = [("busy", f"{slots.busy} of {slots.runs} slots"), ("CPUs", used)]
    for gpu, name in enumerate(slots.gpu_names):
        sample = slots.gpu_sample(gpu)
        measured = f" ({formatting.format_gpu_sample(sample)})" if sample else ""
        holders = formatting.describe_gpu_holders(slots, gpu, short)
        rows.append((f"GPU {gpu}", f"{name}{measured}: {holders or 'free'}"))
    return rows


@command("continue")
@pass_context
def continue_queue(context: CliContext) -> None:
    """Continues a queue that was paused because several runs in a row failed at once."""
    trainer = context.trainer(may_start=False)
    was_paused = trainer.get_status().paused is not None
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
    context.use_local()
    context.print_workspace()
    address, process = _find_daemon(context)
    if process is None:
        context.print_result({"stopped": None}, "No daemon runs.")
        return
    pid = process["pid"]
    try:
        if address is None:
            raise NoDaemon(
                f"The daemon (pid {pid}) cannot be asked, as {context.workspace.daemon_file} is missing or damaged. "
                "It writes it again within seconds."
            )
        context.trainer(may_start=False).stop_daemon(cancel_runs, drain=drain)
    except MosaicError as error:
        if cancel_runs or drain:
            raise
        output.print_message(f"{error} It is ended by signal.")
        _send_signal(pid, signal.SIGTERM)
    if drain:
        message = "The daemon starts no further run and stops after its last one."
        context.print_result({"stopped": None}, message)
        return
    is_gone = _wait_until_gone(context, process, CANCEL_TIMEOUT_S if cancel_runs else STOP_TIMEOUT_S)
    if not is_gone and cancel_runs:
        limit = f"{CHECKPOINT_LIMIT_S / 60:g} minutes"
        output.print_message(f"Runs are still ending; one that is saving a checkpoint has up to {limit}.")
        is_gone = _wait_until_gone(context, process, CHECKPOINT_LIMIT_S)
    if not is_gone:
        _send_signal(pid, signal.SIGKILL)
        if not _wait_until_gone(context, process, STOP_TIMEOUT_S):
            raise NoDaemon(f"The daemon (pid {pid}) does not end, not even when killed.")
    context.print_result({"stopped": pid}, f"The daemon (pid {pid}) has ended.")


def _find_daemon(context: CliContext) -> tuple[DaemonAddress | None, ProcessIdentity | None]:
    """The workspace's daemon: as daemon.json says or, where that cannot be read, daemon.lock, which has no address."""
    from mosaic.trainer.client.connect import read_lock_owner

    try:
        address = context.daemon_address()
    except MosaicError:
        address = None
    return address, address.process if address else read_lock_owner(context.workspace)


def _send_signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait_until_gone(context: CliContext, process: ProcessIdentity, timeout_s: float) -> bool:
    from mosaic.trainer.client.connect import read_lock_owner

    deadline = time.monotonic() + timeout_s
    while is_alive(process) or read_lock_owner(context.workspace) == process:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@command(has_json=False)
@_daemon_options
@click.option(
    "--listen",
    metavar="HOST[:PORT]",
    help="Also serve other machines there, by TLS and with a token. 0.0.0.0: on all addresses.",
)
@click.option(
    "--metrics-listen",
    metavar="HOST[:PORT]",
    help="Serve metrics for a Prometheus on another machine there, by TLS and with a token of their own.",
)
@pass_context
def run(context: CliContext, /, **options: Any) -> int:
    """Runs the daemon in the foreground, until Ctrl-C, or as --idle-s says.

    With --listen, other machines can use it: it prints the fingerprint and where its token is.
    """
    from mosaic.trainer.__main__ import main

    context.use_local()
    context.print_workspace()
    output.print_message(f"Ctrl-C stops the daemon; runs continue. Its log: {context.workspace.daemon_log}")
    if options["metrics_listen"]:
        output.print_message(
            f"A Prometheus that reads the metrics needs {context.workspace.metrics_token} and "
            f"{context.workspace.certificate}."
        )
    if options["idle_s"] is None:
        options["idle_s"] = math.inf
    return main(["--var", str(context.workspace.root), *_to_arguments(options)])


for each in (start, stop, status, continue_queue, run, install_service, uninstall_service):
    daemon.add_command(each)


# --- `mosaic workspace [trust|untrust]`.


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
        from mosaic.cli.runs_table import RunsTable

        queued = trainer.runs(status=("queued",))
        output.console(is_stderr=True).print(RunsTable(queued) if queued else "No runs are queued.")
        output.confirm(f"Trust what is in {status.workspace}, and start {count_noun(len(queued), 'run')}?")
    if change is not None:
        status = trainer.trust_workspace(change == "trust")
    texts = [f"Workspace {status.workspace}: yours.", status.trust_problem]
    if status.is_read_only:
        texts = [f"Workspace {status.workspace}: read-only.", describe_read_only(status), TRUST_HINT]
    context.print_result(status, "\n".join(filter(None, texts)))
