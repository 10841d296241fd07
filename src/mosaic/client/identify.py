"""The first call on a connection: client and daemon prove to each other that they know the token."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when grpc is imported; a refused certificate needs no lines

import grpc

from mosaic.common.auth_proof import compute_proof, constant_time_equals, identify_metadata
from mosaic.common.certificates import CERTIFICATE_NAME
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.trainer_pb2_grpc import TrainerStub

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.enable_http_proxy", 0),  # users may be behind a proxy, which does not lead to the daemon
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)
IDENTIFY_TIMEOUT_S = 10.0


class DaemonMissing(Exception):
    """Nothing answered, or nothing that could be talked to."""


class ProofRefused(Exception):
    """One side does not know the token."""

    def __init__(self, details: str, is_server: bool = False) -> None:
        super().__init__(details)
        self.is_server = is_server
        """The daemon's proof is wrong, rather than ours."""


def open_channel(address: str, options: Sequence[tuple[str, int]], certificate: str = "") -> grpc.Channel:
    """A channel that is encrypted where a certificate (PEM) is given, and then accepts that one only."""
    if not certificate:
        return grpc.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(root_certificates=certificate.encode())
    named = ("grpc.ssl_target_name_override", CERTIFICATE_NAME)
    return grpc.secure_channel(address, credentials, options=(*options, named))


def identify(channel: grpc.Channel, token: str, fingerprint: str = "") -> str:
    """Check both sides and return the daemon's version. The token itself is not sent.

    It does not wait for a channel to become ready: with a wrong certificate that would last until the timeout.
    """
    nonce = secrets.token_hex(16)
    try:
        reply = TrainerStub(channel).Identify(
            pb.IdentifyRequest(nonce=nonce),
            metadata=identify_metadata(token, nonce, fingerprint),
            timeout=IDENTIFY_TIMEOUT_S,
        )
    except grpc.RpcError as error:
        if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
            raise DaemonMissing(error.details()) from None
        raise ProofRefused(error.details() or "") from None
    if not constant_time_equals(reply.proof, compute_proof(token, "server", nonce, fingerprint)):
        raise ProofRefused("its proof is wrong", is_server=True)
    return str(reply.version)
