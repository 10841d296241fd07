"""`python -m mosaic.trainer --var DIR`: the daemon in the foreground."""

from __future__ import annotations

import argparse
import gc
import math
import os
import resource
import sqlite3
import sys

import structlog

from mosaic.base.handshake import PORT
from mosaic.base.processes import own_identity
from mosaic.contracts.errors import BadInput, MosaicError, NotAllowed, StorageFailed
from mosaic.contracts.folder import EXECUTOR_VARIABLE, KEEPER_VARIABLE, Workspace
from mosaic.contracts.options import EXECUTORS, LOCAL_EXECUTOR
from mosaic.trainer.daemon import IDLE_TIMEOUT_S, Daemon, configure_logging, detect_slots
from mosaic.trainer.executors.slurm.settings import (
    CLUSTER_VARIABLE,
    SETTINGS_VARIABLE,
    SlurmSettings,
    parse_settings,
)
from mosaic.trainer.listeners import METRICS_FLAG, parse_listen_address

log = structlog.get_logger("mosaic.trainer")

MIN_OPEN_FILES = 64
SWITCH_S = 0.0005
"""How long the thread that reads a journal may keep the others from running: a call waits that long several times."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="mosaic daemon run", description=__doc__)
    parser.add_argument("--var", help="the workspace  [default: ./var]")
    parser.add_argument("--port", type=int, default=PORT, help="the first port to try")
    parser.add_argument("--max-runs", type=int, help="how many runs at a time; as many as there are cores by default")
    parser.add_argument("--idle-s", type=float, help="exit after this many seconds without runs or callers")
    parser.add_argument("--listen", help="also serve other machines on this HOST:PORT, by TLS")
    parser.add_argument("--executor", choices=EXECUTORS, help="where runs are started that name none  [local]")
    parser.add_argument("--ray-address", help="of the Ray cluster  [RAY_ADDRESS, or one on this machine]")
    parser.add_argument("--slurm", help="settings of Slurm jobs: 'partition=gpu account=lab'  [MOSAIC_SLURM]")
    parser.add_argument("--metrics-port", type=int, help="serve metrics for Prometheus on this port; 0: any")
    parser.add_argument("--metrics-listen", help="serve them to other machines on this HOST:PORT, by TLS")
    options = parser.parse_args(arguments)
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()  # what was imported stays: to search it for garbage would stop all threads for 40 ms, again and again
    os.environ.pop(KEEPER_VARIABLE, None)  # a daemon started from within a run does not belong to it
    umask = os.umask(0o077)  # files of a run are its owner's; users' scripts get theirs back
    max_runs = options.max_runs or int(os.environ.get("MOSAIC_MAX_RUNS", 0)) or None
    try:
        workspace = Workspace.resolve(options.var)
        workspace.create_private()
        configure_logging(workspace)
    except MosaicError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        return _print_unusable(workspace, error)
    try:
        _check_machine()
        listen = parse_listen_address(options.listen) if options.listen else None
        if options.metrics_listen and options.metrics_port is not None:
            raise BadInput("--metrics-port and --metrics-listen exclude each other.")
        metrics_listen = parse_listen_address(options.metrics_listen, METRICS_FLAG) if options.metrics_listen else None
        idle_s = (math.inf if listen else IDLE_TIMEOUT_S) if options.idle_s is None else options.idle_s
        Daemon(
            workspace,
            detect_slots(max_runs),
            options.port,
            idle_s,
            umask,
            options.metrics_port,
            listen,
            _default_executor(options.executor),
            options.ray_address,
            _slurm_settings(options.slurm),
            lambda address, fingerprint: _print_listening(workspace, address, fingerprint),
            metrics_listen,
        ).run()
    except MosaicError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except (OSError, sqlite3.Error) as error:
        log.exception("daemon_failed")
        return _print_unusable(workspace, error)
    return 0


def _check_machine() -> None:
    """Refuse to start where it could not work: with fewer files, gRPC ends this process without a word."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= files < MIN_OPEN_FILES:
        raise NotAllowed(
            f"This process may open {files} files, and the daemon needs {MIN_OPEN_FILES} at least. "
            "Raise the limit: ulimit -n 1024"
        )
    if not own_identity()["start"]:
        raise NotAllowed(
            "Neither /proc nor the command ps tells when a process was started, so the daemon could not recognize "
            "the processes of its runs. Mount /proc, then try again."
        )


def _default_executor(name: str | None) -> str:
    name = name or os.environ.get(EXECUTOR_VARIABLE) or LOCAL_EXECUTOR
    if name not in EXECUTORS:
        raise BadInput(f"{EXECUTOR_VARIABLE} is {name!r}; expected one of {', '.join(EXECUTORS)}.")
    return name


def _slurm_settings(text: str | None) -> SlurmSettings:
    text = os.environ.get(SETTINGS_VARIABLE, "") if text is None else text
    return parse_settings(text, os.environ.get(CLUSTER_VARIABLE) or "slurm")


def _print_listening(workspace: Workspace, address: str, fingerprint: str) -> None:
    print(
        f"Other machines reach this trainer at {address}, by TLS.\n"
        f"Fingerprint: {fingerprint}\n"
        f"Token:       in {workspace.remote_token}\n"
        f"There, run:  mosaic trainer add NAME HOST:{address.rpartition(':')[2]}",
        flush=True,
    )


def _print_unusable(workspace: Workspace, error: Exception) -> int:
    """Print why the daemon ends, and return its exit code."""
    print(f"The workspace {workspace.root} cannot be used: {error}. Check its disk, then try again.", file=sys.stderr)
    return StorageFailed.exit_code


if __name__ == "__main__":
    sys.exit(main())
