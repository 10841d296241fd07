"""The daemon's ports: plain on the loopback address for its own machine, with TLS for others."""

from __future__ import annotations

import grpc

from mosaic.base.certificates import join_address, split_address
from mosaic.base.handshake import KEEPALIVE_S, KEEPALIVE_TIMEOUT_S, PORT
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.trainer.tls_identity import TlsIdentity

MAX_PORT_ATTEMPTS = 100
MAX_MESSAGE_BYTES = 64 << 20
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
REMOTE_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Less than the interval of the clients' pings: more frequent ones end the connection.
    ("grpc.http2.min_ping_interval_without_data_ms", int(KEEPALIVE_S * 500)),
)
"""So that both sides notice a connection that was cut."""


METRICS_FLAG = "--metrics-listen"
METRICS_PORT = 9464
"""OpenTelemetry's for what Prometheus reads."""


def parse_listen_address(text: str, flag: str = "--listen") -> str:
    """Return `HOST:PORT` for the flag, with the default port where none is given."""
    port = METRICS_PORT if flag == METRICS_FLAG else PORT
    parts = split_address(text, port)
    if parts is None:
        raise BadInput(f"{flag} {text!r} is not valid; expected HOST or HOST:PORT, such as 0.0.0.0:{port}.")
    return join_address(*parts)


def bind_loopback(server: grpc.aio.Server, first: int) -> str:
    """The wanted port or the next free one, on the loopback address only."""
    for port in [*range(first, min(first + MAX_PORT_ATTEMPTS, 65536)), 0] if first else [0]:
        try:
            bound = server.add_insecure_port(f"127.0.0.1:{port}")
        except RuntimeError:
            continue
        if bound:
            return f"127.0.0.1:{bound}"
    raise MosaicError("127.0.0.1 has no free port. Close a program that listens on one, and try again.")


def bind_tls(server: grpc.aio.Server, address: str, identity: TlsIdentity) -> None:
    """Listen on exactly this address, encrypted."""
    pair = (identity.key.encode(), identity.certificate.encode())
    try:
        bound = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    except RuntimeError:
        bound = 0
    if not bound:
        raise BadInput(
            f"--listen {address}: this machine has no such address, or another program listens on that port. "
            "Its addresses: ip address   Who listens: ss -tlnp"
        )
