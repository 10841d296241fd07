"""What a daemon needs to be reached from other machines: key, certificate and a lasting token."""

from __future__ import annotations

import datetime
import secrets
import stat
from pathlib import Path
from typing import NamedTuple

from mosaic.base.certificates import CERTIFICATE_NAME, compute_fingerprint
from mosaic.base.files import write_text
from mosaic.contracts.errors import BadInput, MissingExtra
from mosaic.contracts.folder import Workspace

_KEY_END = "-----END PRIVATE KEY-----\n"


class TlsIdentity(NamedTuple):
    key: str
    certificate: str
    """Both as PEM."""
    token: str
    """For clients on other machines. It stays the same when the daemon restarts."""

    @property
    def fingerprint(self) -> str:
        return compute_fingerprint(self.certificate)


def load_or_create_identity(workspace: Workspace) -> TlsIdentity:
    """The identity of the workspace's daemon, made at the first call."""
    text = _read_private(workspace.tls_identity)
    if text is None:
        text = _create_key_pair()
        write_text(workspace.tls_identity, text, mode=0o600, is_durable=True)
    key, end, certificate = text.partition(_KEY_END)
    try:
        compute_fingerprint(certificate)
    except ValueError:
        raise BadInput(
            f"{workspace.tls_identity} is damaged; expected a key and a certificate. Delete it: the daemon then makes "
            "another one, which every client has to accept again."
        ) from None
    return TlsIdentity(key + end, certificate, _load_or_create_token(workspace.remote_token))


def load_or_create_metrics_identity(workspace: Workspace) -> TlsIdentity:
    """The same with the token that reads the metrics and nothing else. The certificate is written without its key."""
    identity = load_or_create_identity(workspace)
    write_text(workspace.certificate, identity.certificate)
    return identity._replace(token=_load_or_create_token(workspace.metrics_token))


def _load_or_create_token(path: Path) -> str:
    token = _read_private(path)
    if token is None:
        token = secrets.token_hex(32)
        write_text(path, token + "\n", mode=0o600, is_durable=True)
    if not token.strip():
        raise BadInput(f"{path} is empty. Delete it: the daemon then makes another token.")
    return token.strip()


def _read_private(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o600)
    return text


def _create_key_pair() -> str:
    """Key and certificate as PEM, one after the other."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise MissingExtra(
            "--listen and --metrics-listen make a certificate at their first use, for which cryptography is needed: "
            "pip install 'mosaic-rl[remote]'"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, CERTIFICATE_NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clients compare the certificate itself, so its age means nothing; their clocks may be wrong. The end is
        # RFC 5280's for certificates that have none.
        .not_valid_before(datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(CERTIFICATE_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private.decode() + certificate.public_bytes(serialization.Encoding.PEM).decode()
