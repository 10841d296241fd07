"""Connections to the daemon of a workspace, which is started where none runs, or to one on another machine."""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import grpc

from mosaic.client.trainer_client import TrainerClient
from mosaic.common.auth_proof import compute_proof, constant_time_equals, identify_metadata
from mosaic.common.disk_space import describe_full_disk
from mosaic.common.files import file_size
from mosaic.common.processes import is_alive
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import AlreadyRunning, BadInput, IdentityFailed, NoDaemon
from mosaic.contracts.folder import TOKEN_VARIABLE, Workspace
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.contracts.trainer_pb2_grpc import TrainerStub

CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # users may be behind a proxy; the daemon is local
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)
START_TIMEOUT_S = 20.0
IDENTIFY_TIMEOUT_S = 10.0
RETRY_S = 0.1

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


def connect_remote(address: str, token: str) -> TrainerClient:
    """A connection to a daemon on another machine, whose port a tunnel forwards. Nothing is ever started."""
    return _connect_verified(address, token, "", is_local=False)


def _connect_verified(address: str, token: str, daemon_label: str, is_local: bool = True) -> TrainerClient:
    channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    try:
        _check_identity(channel, address, token, daemon_label)
    except BaseException:
        channel.close()
        raise
    return TrainerClient(channel, token, is_local)


def _check_identity(channel: grpc.Channel, address: str, token: str, daemon_label: str) -> None:
    nonce = secrets.token_hex(16)
    try:
        reply = TrainerStub(channel).Identify(
            pb.IdentifyRequest(nonce=nonce),
            metadata=identify_metadata(token, nonce),
            timeout=IDENTIFY_TIMEOUT_S,
        )
    except grpc.RpcError as error:
        if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
            raise NoDaemon(
                f"The daemon ({daemon_label}{address}) does not answer. "
                "Restart it: mosaic daemon stop && mosaic daemon start"
            ) from None
        raise IdentityFailed(
            f"Identity check failed: what answers on {address} is not this workspace's daemon "
            f"({error.details()}). Restart it: mosaic daemon stop && mosaic daemon start"
        ) from None
    if not constant_time_equals(reply.proof, compute_proof(token, "server", nonce)):
        raise IdentityFailed(
            f"Identity check failed: what answers on {address} does not know this workspace's token. "
            "Nothing was sent to it. Restart the daemon: mosaic daemon stop && mosaic daemon start"
        )


def start_daemon(workspace: Workspace, arguments: Sequence[str] = ()) -> DaemonAddress:
    """Starts a daemon that outlives this process, and waits until it listens."""
    workspace.create_private()
    console = workspace.logs / "trainer.console.log"
    printed_before = file_size(console)
    with open(console, "ab", opener=partial(os.open, mode=0o600)) as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mosaic.trainer", "--var", str(workspace.root), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
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
    raise NoDaemon(f"The daemon did not start. {printed[-1] if printed else ''} See its output: {console}")


class ReconnectingClient:
    """`open_client` connects; `read_address` returns where the daemon is now, None where that cannot be read."""

    def __init__(
        self, open_client: Callable[[], TrainerClient], read_address: Callable[[], DaemonAddress | None]
    ) -> None:
        self._open_client = open_client
        self._read_address = read_address
        self._trainer: TrainerClient | None = None
        self._connected_address: DaemonAddress | None = None

    def trainer(self) -> TrainerClient:
        """Return the connection, opening it first where there is none."""
        if self._trainer is None:
            self._trainer = self._open_client()
            self._connected_address = self._read_address()
        return self._trainer

    def call(self, call: Callable[[TrainerClient], Result]) -> Result:
        """Make a call that may safely be made twice: where the daemon has died, it is started and called again."""
        if self._trainer is not None and self._read_address() != self._connected_address:
            self.close()  # another process may have taken the port, and does not know our token
        try:
            return call(self.trainer())
        except NoDaemon:
            self.close()
            return call(self.trainer())

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.close()
            self._trainer = None


# --- a daemon on another machine


def check_loopback_address(address: str) -> str:
    """Return the address; connections are not encrypted, so only the end of a tunnel on this machine is accepted."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadInput(f"The trainer's address {address!r} is not valid; expected HOST:PORT, such as 127.0.0.1:50055.")
    try:
        is_here = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        is_here = host == "localhost"
    if not is_here:
        raise BadInput(
            f"The trainer's address {address}: the connection would not be encrypted, so only addresses of this "
            f"machine are accepted. Forward its port first: ssh -L {port}:127.0.0.1:{port} {host or 'HOST'}   "
            f"and then use 127.0.0.1:{port}."
        )
    return address


def read_token(file: Path | None = None) -> str:
    """Return the token of a copied daemon.json, or of the environment."""
    if file is None:
        token = os.environ.get(TOKEN_VARIABLE, "")
        if not token:
            raise BadInput(
                "A trainer on another machine needs its token, which is in its trainer/daemon.json. Set "
                f"${TOKEN_VARIABLE} to it, or name a copy of that file: --token-file FILE"
            )
        return token
    try:
        token = json.loads(file.read_text())["token"]
    except OSError as error:
        raise BadInput(f"--token-file {file} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"--token-file {file} has no token; expected a copy of a trainer's daemon.json.") from None
    return str(token)
