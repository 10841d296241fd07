"""`mosaic daemon install-service|uninstall-service`: the daemon as a service of systemd, of this user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click

from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.cli.systemd_unit import build_unit
from mosaic.common.files import write_error
from mosaic.contracts.errors import MosaicError, NotAllowed
from mosaic.contracts.options import EXECUTORS

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
