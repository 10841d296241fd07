"""The certificate by which a trainer on another machine is recognized, as SSH does by a host key.

Standard library only.
"""

from __future__ import annotations

import base64
import hashlib

CERTIFICATE_NAME = "mosaic-trainer"
"""In every trainer's certificate, whatever its host is called: clients compare the certificate itself."""


def compute_fingerprint(certificate: str) -> str:
    """`SHA256:…` of a certificate in PEM, written as SSH writes those of host keys."""
    import ssl  # takes a while, and most commands do not need it

    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.strip() + "\n")).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def fetch_certificate(host: str, port: int, timeout_s: float) -> str:
    """The certificate in PEM that is shown on a port; nothing is verified or sent.

    Raises ssl.SSLError or ConnectionError where something without TLS answers, else OSError.
    """
    import socket
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])  # gRPC ends connections without it
    with (
        socket.create_connection((host, port), timeout_s) as connection,
        context.wrap_socket(connection, server_hostname=CERTIFICATE_NAME) as secured,
    ):
        certificate = secured.getpeercert(binary_form=True)
    if certificate is None:
        raise ssl.SSLError("no certificate was sent")
    return ssl.DER_cert_to_PEM_cert(certificate)


def split_address(address: str, default_port: int) -> tuple[str, int] | None:
    """Host and port of `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`; None where the text is none of these."""
    host, port = address, str(default_port)
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return None
        port = rest[1:] or port
    elif address.count(":") == 1:
        host, _, port = address.partition(":")
    is_valid = host and not any(char.isspace() or char in "/@[]" for char in host)
    if not is_valid or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        return None
    return host, int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
