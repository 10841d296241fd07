"""Best-effort registration with the daemon, which stores the same as the handshake: the journal's first event."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading

from mosaic import __version__
from mosaic.contracts.folder import TOKEN_VARIABLE
from mosaic.contracts.names import CONTRACT_VERSION

REGISTRATION_DELAY_S = 5.0
"""Importing grpc costs a tenth of a second of training and 20 MB; a shorter run never pays for it."""
_RPC_TIMEOUT_S = 3.0


def schedule_registration(
    target: str, run_id: str, capabilities: tuple[str, ...], delay_s: float = REGISTRATION_DELAY_S
) -> threading.Timer:
    """Register the run after a delay, unless cancelled. A target that is gone or not our daemon is ignored."""
    timer = threading.Timer(delay_s, _try_to_register, (target, run_id, capabilities))
    timer.daemon = True
    timer.start()
    return timer


def _try_to_register(target: str, run_id: str, capabilities: tuple[str, ...]) -> None:
    # Registration is optional: whatever a stale target does, training continues.
    with contextlib.suppress(Exception):
        _register(target, os.environ[TOKEN_VARIABLE], run_id, capabilities)


def _register(target: str, token: str, run_id: str, capabilities: tuple[str, ...]) -> None:
    import grpc

    from mosaic.base.handshake import TOKEN_KEY, compute_proof, constant_time_equals, identify_metadata
    from mosaic.contracts import trainer_pb2 as pb
    from mosaic.contracts.trainer_pb2_grpc import TrainerStub

    nonce = secrets.token_hex(16)
    with grpc.insecure_channel(target, options=(("grpc.enable_http_proxy", 0),)) as channel:
        stub = TrainerStub(channel)
        reply = stub.Identify(
            pb.IdentifyRequest(nonce=nonce),
            metadata=identify_metadata(token, nonce),
            timeout=_RPC_TIMEOUT_S,
        )
        if not constant_time_equals(reply.proof, compute_proof(token, "server", nonce)):
            return  # another program listens there now and must not get the token
        stub.RegisterWorker(
            pb.RegisterRequest(
                run=run_id,
                worker="cleanrl",
                version=__version__,
                pid=os.getpid(),
                capabilities=capabilities,
                contract=CONTRACT_VERSION,
            ),
            metadata=((TOKEN_KEY, token),),
            timeout=_RPC_TIMEOUT_S,
        )
