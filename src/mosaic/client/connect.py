"""Find the daemon of a workspace, make sure it is the right one, or start it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from typing import NamedTuple

import grpc

from mosaic.client.trainer_client import TrainerClient
from mosaic.common.auth_proof import PROOF_KEY, compute_proof, constant_time_equals
from mosaic.common.processes import is_alive
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import AlreadyRunning, IdentityFailed, NoDaemon
from mosaic.contracts.folder import Workspace
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.contracts.trainer_pb2_grpc import TrainerStub

CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # users may be behind a proxy; the daemon is local
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)
START_TIMEOUT_S = 20.0


class DaemonAddress(NamedTuple):
    """The content of `daemon.json`."""

    address: str
    token: str
    process: ProcessIdentity
    started_at: float
    version: str


def read_daemon_address(workspace: Workspace) -> DaemonAddress | None:
    """The daemon that lives in this workspace; none when its process is gone."""
    try:
        said = json.loads(workspace.daemon_file.read_text())
        address = DaemonAddress(said["address"], said["token"], said["process"], said["started_at"], said["version"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise NoDaemon(
            f"{workspace.daemon_file} cannot be read ({error}). If no daemon runs, delete that file and try again."
        ) from None
    return address if is_alive(address.process) else None


def connect(workspace: Workspace, may_start: bool = True) -> TrainerClient:
    """A connection to the workspace's daemon, whose identity has been checked."""
    address = read_daemon_address(workspace)
    if address is None:
        if not may_start:
            raise NoDaemon(f"No daemon runs for {workspace.root}. Start one: mosaic daemon start")
        address = start_daemon(workspace)
    return _connect_verified(address.address, address.token, f"pid {address.process['pid']}, ")


def connect_remote(address: str, token: str) -> TrainerClient:
    """A connection to a daemon of another machine, whose port a tunnel brings here. Nothing is ever started."""
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
            metadata=((PROOF_KEY, compute_proof(token, "client", nonce)),),
            timeout=10,
            wait_for_ready=True,
        )
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
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


def start_daemon(workspace: Workspace) -> DaemonAddress:
    """Starts a daemon that outlives us and waits until it listens."""
    workspace.logs.mkdir(parents=True, exist_ok=True)
    console = workspace.logs / "trainer.console.log"
    with open(console, "ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "mosaic.trainer", "--var", str(workspace.root)],
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
    raise NoDaemon(f"The daemon did not start. Its last words are in {console}")
