"""Connections to the daemon of a workspace, which is started where none runs."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from mosaic.base.caller_environment import TRACKING_PREFIX
from mosaic.base.files import describe_full_disk, file_size
from mosaic.base.processes import is_alive, start_time
from mosaic.contracts.errors import AlreadyRunning, BadInput, IdentityFailed, NoDaemon
from mosaic.contracts.folder import Workspace
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.trainer.client.daemon_channel import IDENTIFY_TIMEOUT_S, DaemonMissing, ProofRefused, open_verified
from mosaic.trainer.client.trainer_client import TrainerClient

START_TIMEOUT_S = 20.0
RETRY_S = 0.1
RECONNECT_PAUSE_S = 0.5

Result = TypeVar("Result")


class DaemonAddress(NamedTuple):
    """The content of `daemon.json`."""

    address: str
    token: str
    process: ProcessIdentity
    started_at: float
    version: str
    workspace: str = ""
    """With all links resolved; empty in the files of earlier versions."""


def read_daemon_address(workspace: Workspace) -> DaemonAddress | None:
    """The address of the workspace's daemon; None where no such process runs, or the file was copied."""
    workspace.require_own()
    try:
        fields = json.loads(workspace.daemon_file.read_bytes())
        address = DaemonAddress(**{name: fields[name] for name in DaemonAddress._fields if name in fields})
        is_copy = address.workspace not in ("", os.path.realpath(workspace.root))
        return address if is_alive(address.process) and not is_copy else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable_workspace(workspace, error) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NoDaemon(
            f"{workspace.daemon_file} cannot be read ({error}). If no daemon runs, delete that file and try again."
        ) from None


def read_lock_owner(workspace: Workspace) -> ProcessIdentity | None:
    """The living process that daemon.lock names: the workspace's daemon, also where daemon.json is gone or damaged."""
    try:
        with open(workspace.daemon_lock, encoding="utf-8") as file:
            content = json.load(file)
            # Earlier versions write the number only.
            owner: ProcessIdentity = {"pid": content, "start": "", "boot_id": ""} if type(content) is int else content
            if owner["start"] and start_time(os.getpid()):
                return owner if is_alive(owner) else None
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
    except BlockingIOError:  # held by whoever wrote it
        return owner
    except (OSError, ValueError, KeyError, TypeError):
        return None


def connect(workspace: Workspace, may_start: bool = True, daemon_arguments: Sequence[str] = ()) -> TrainerClient:
    """A connection to the workspace's daemon, whose identity has been checked; a new one gets `daemon_arguments`.

    A daemon that ends or dies meanwhile is replaced: only what the newest daemon.json says counts.
    """
    deadline = time.monotonic() + IDENTIFY_TIMEOUT_S
    while True:
        address = read_daemon_address(workspace)
        if address is None:
            if not may_start:
                raise NoDaemon(f"No daemon runs for {workspace.root}. Start one: mosaic daemon start")
            try:
                address = start_daemon(workspace, daemon_arguments)
            except OSError as error:
                raise _unusable_workspace(workspace, error) from None
        try:
            return _connect_verified(address.address, address.token, f"pid {address.process['pid']}, ")
        except NoDaemon as error:
            time.sleep(RETRY_S)  # the files of a process that is killed close a moment before it is seen as dead
            is_same = read_daemon_address(workspace) == address
            if is_same and (isinstance(error, IdentityFailed) or time.monotonic() > deadline):
                raise


def _unusable_workspace(workspace: Workspace, error: OSError) -> BadInput:
    return BadInput(
        f"The workspace {workspace.root} cannot be used: {error.strerror}. Name another: --var DIR or MOSAIC_VAR"
    )


def _connect_verified(address: str, token: str, daemon_label: str) -> TrainerClient:
    restart = "mosaic daemon stop && mosaic daemon start"
    try:
        channel, _ = open_verified(address, token)
    except DaemonMissing:
        raise NoDaemon(f"The daemon ({daemon_label}{address}) does not answer. Restart it: {restart}") from None
    except ProofRefused as error:
        if error.is_server:
            raise IdentityFailed(
                f"Identity check failed: what answers on {address} does not know this workspace's token. "
                f"Nothing was sent to it. Restart the daemon: {restart}"
            ) from None
        raise IdentityFailed(
            f"Identity check failed: what answers on {address} is not this workspace's daemon "
            f"({error}). Restart it: {restart}"
        ) from None
    return TrainerClient(channel, token)


def start_daemon(workspace: Workspace, arguments: Sequence[str] = ()) -> DaemonAddress:
    """Starts a daemon that outlives this process, and waits until it listens."""
    workspace.create_private()
    console = workspace.daemon_console
    printed_before = file_size(console)
    with open(console, "ab", opener=partial(os.open, mode=0o600)) as output:
        # A run is tracked as the shell says that submits it, not as the one that happened to start the daemon.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(TRACKING_PREFIX)}
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mosaic.trainer", "--var", str(workspace.root), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env={**inherited, "PYTHONUNBUFFERED": "1"},
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        address = read_daemon_address(workspace)
        if address is not None:
            return address
        # Another process may have won the race to start it; then ours ends and theirs appears.
        if process.poll() is not None and process.returncode != AlreadyRunning.exit_code:
            break
        time.sleep(0.01)
    full_disk = describe_full_disk(workspace.root)
    if full_disk:
        raise NoDaemon(f"The daemon did not start. {full_disk}")
    printed = console.read_bytes()[printed_before:].decode(errors="replace").strip().splitlines()
    reason = f" {printed[-1].rstrip('.')}." if printed else ""
    if process.returncode is not None and process.returncode < 0:
        reason = f"{reason} It was killed by signal {-process.returncode}."
    raise NoDaemon(f"The daemon did not start.{reason} Its output: {console}")


class ReconnectingClient:
    """`open_client` connects; `read_address` returns where the daemon is now, None where that cannot be read."""

    def __init__(
        self,
        open_client: Callable[[], TrainerClient],
        read_address: Callable[[], DaemonAddress | None],
        retry_s: float = 0.0,
    ) -> None:
        """`retry_s`: how long a connection that broke is tried again, where nothing can be started instead."""
        self._open_client = open_client
        self._read_address = read_address
        self._retry_s = retry_s
        self._trainer: TrainerClient | None = None
        self._connected_address: DaemonAddress | None = None

    def trainer(self) -> TrainerClient:
        """Return the connection, opening it first where there is none."""
        if self._trainer is None:
            self._trainer = self._open_client()
            self._connected_address = self._read_address()
        return self._trainer

    def call(
        self,
        call: Callable[[TrainerClient], Result],
        retry_s: float | None = None,
        is_interrupted: Callable[[], bool] = lambda: False,
    ) -> Result:
        """Make a call that may safely be made twice: where the daemon has died, it is started and called again."""
        retry_s = self._retry_s if retry_s is None else retry_s
        if self._trainer is not None and self._read_address() != self._connected_address:
            self.close()  # another process may have taken the port, and does not know our token
        has_connected = self._trainer is not None
        deadline = time.monotonic() + retry_s
        try:
            trainer = self.trainer()
            has_connected = True
            return call(trainer)
        except NoDaemon:
            self.close()
            if is_interrupted() or (not has_connected and self._retry_s):
                raise  # in the second case, it was never reached
        while True:
            try:
                return call(self.trainer())
            except NoDaemon as error:
                self.close()
                if isinstance(error, IdentityFailed) or time.monotonic() >= deadline or is_interrupted():
                    raise
                time.sleep(RECONNECT_PAUSE_S)

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.close()
            self._trainer = None
