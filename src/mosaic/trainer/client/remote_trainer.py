"""Connections to a trainer on another machine: by TLS with a pinned certificate, or through a tunnel."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import ssl
from pathlib import Path
from typing import NamedTuple

from mosaic import __version__
from mosaic.base.certificates import compute_fingerprint, fetch_certificate, join_address, split_address
from mosaic.base.handshake import KEEPALIVE_S, KEEPALIVE_TIMEOUT_S, PORT
from mosaic.base.secret_store import find_secret
from mosaic.base.trainer_profiles import TrainerProfile, read_profiles
from mosaic.contracts.errors import BadInput, IdentityFailed, NoDaemon, TokenRefused, VersionMismatch, similar_names
from mosaic.contracts.folder import TOKEN_VARIABLE
from mosaic.trainer.client.daemon_channel import CHANNEL_OPTIONS, DaemonMissing, ProofRefused, open_verified
from mosaic.trainer.client.trainer_client import TrainerClient

PROBE_TIMEOUT_S = 5.0
REMOTE_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)


class RemoteTrainer(NamedTuple):
    """What is needed to connect to a trainer on another machine."""

    address: str
    token: str
    certificate: str = ""
    """The one it has to show, as PEM. Empty: the connection is not encrypted, and ends at a tunnel on this machine."""
    name: str = ""
    """Of its profile; empty where it is used by its address."""

    @property
    def label(self) -> str:
        return f"{self.name} ({self.address})" if self.name else self.address

    @property
    def option(self) -> str:
        """What follows --trainer in a command for it."""
        return self.name or self.address


# --- which trainer


def find_remote_trainer(text: str, token_file: Path | None = None, token: str = "") -> RemoteTrainer:
    """The trainer that a user names, by a profile's name or by `HOST[:PORT]`.

    A token that is given proves the identity of a trainer that was never added: it is never sent to one that does not
    know it. Without TLS only addresses of this machine are accepted, where a tunnel ends.
    """
    profiles = read_profiles()
    given = token or (read_token(token_file, is_remote=True) if token_file else "")
    parts = split_address(text, PORT)
    address = join_address(*parts) if parts else text
    profile = profiles.trainers.get(text) or profiles.find_by_address(address)
    if profile is not None:
        stored = given or find_secret(profile.secret_name) or os.environ.get(TOKEN_VARIABLE, "")
        if not stored:
            raise BadInput(
                f"The token of the trainer {profile.name} is not stored. Add it again: "
                f"mosaic trainer add {profile.name} {profile.address}"
            )
        return RemoteTrainer(profile.address, stored, profile.certificate, profile.name)
    if parts is None:
        raise BadInput(f"The trainer {text!r} is neither a known name nor HOST:PORT, such as gpu.example.org:{PORT}.")
    if is_loopback(parts[0]):
        return RemoteTrainer(address, token or read_token(token_file))
    given = given or os.environ.get(TOKEN_VARIABLE, "")
    if not given:
        near = similar_names(text, profiles.trainers)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise BadInput(f"The trainer {text!r} is not known.{hint} Add it: mosaic trainer add NAME {text}")
    return RemoteTrainer(address, given, fetch_trainer_certificate(address))


def from_profile(profile: TrainerProfile, token: str) -> RemoteTrainer:
    return RemoteTrainer(profile.address, token, profile.certificate, profile.name)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(file: Path | None = None, is_remote: bool = False) -> str:
    """Return the token of a copied daemon.json or remote_token, or of the environment.

    A daemon.json may have two: `is_remote` chooses that for TLS, which stays the same when the daemon restarts.
    """
    if file is None:
        token = os.environ.get(TOKEN_VARIABLE, "")
        if not token:
            where = "trainer/remote_token" if is_remote else "trainer/daemon.json"
            raise BadInput(
                f"A trainer on another machine needs its token, which is in {where} of its workspace. Set "
                f"${TOKEN_VARIABLE} to it, or name a copy of that file: --token-file FILE"
            )
        return token
    try:
        text = file.read_text(encoding="utf-8").strip()
        fields = json.loads(text) if text[:1] in ("{", "[") else {"token": text}
        token = str((is_remote and fields.get("remote_token")) or fields["token"])
        if not token or any(char.isspace() for char in token):
            raise ValueError(token)
    except OSError as error:
        raise BadInput(f"--token-file {file} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(
            f"--token-file {file} has no token; expected a copy of a trainer's daemon.json or remote_token."
        ) from None
    return token


# --- connecting


def connect_remote(remote: RemoteTrainer) -> TrainerClient:
    """A connection to a daemon on another machine. Nothing is ever started."""
    try:
        channel, version = open_verified(remote.address, remote.token, REMOTE_OPTIONS, remote.certificate)
    except DaemonMissing:
        raise _diagnose(remote) from None
    except ProofRefused as error:
        raise _describe_refusal(remote, error) from None
    if mismatch := _find_mismatch(remote, version):
        channel.close()
        raise mismatch
    return TrainerClient(channel, remote.token, is_local=False, trainer_label=remote.label)


def fetch_trainer_certificate(address: str) -> str:
    """The certificate that the trainer at `HOST:PORT` shows; raises NoDaemon with the reason where none does."""
    host, port = split_address(address, PORT) or (address, PORT)
    try:
        return fetch_certificate(host, port, PROBE_TIMEOUT_S)
    except (socket.gaierror, UnicodeError):  # the latter for a name that no host can have
        raise NoDaemon(f"There is no host {host!r}. Check its name: getent hosts {host}") from None
    except ConnectionRefusedError:
        raise NoDaemon(
            f"Nobody listens on {address}. On that machine, start: mosaic daemon run --listen 0.0.0.0:{port}"
        ) from None
    except TimeoutError:
        raise NoDaemon(
            f"{address} did not answer within {PROBE_TIMEOUT_S:g} s. Check the network, and that a firewall lets the "
            f"port {port} through."
        ) from None
    except (ssl.SSLError, ConnectionError):
        raise NoDaemon(
            f"What listens on {address} does not speak TLS: another program, or a daemon that serves its own machine "
            f"only. There, start one for others: mosaic daemon run --listen 0.0.0.0:PORT   or use a tunnel: "
            f"ssh -L {port}:127.0.0.1:{port} {host}"
        ) from None
    except OSError as error:
        raise NoDaemon(f"{address} cannot be reached: {error.strerror or error}. Check the network.") from None


def _diagnose(remote: RemoteTrainer) -> NoDaemon:
    """Say why a trainer could not be reached. gRPC's own words for a wrong certificate vary, so it is compared here."""
    if not remote.certificate:
        return _diagnose_tunnel(remote)
    try:
        shown = compute_fingerprint(fetch_trainer_certificate(remote.address))
    except NoDaemon as error:
        return error
    pinned = compute_fingerprint(remote.certificate)
    if shown == pinned:
        return NoDaemon(f"The trainer {remote.label} does not answer. Try again, or restart it on its machine.")
    return IdentityFailed(
        f"The certificate of the trainer {remote.label} has changed. Nothing was sent to it.\n"
        f"  pinned: {pinned}\n"
        f"  shown:  {shown}\n"
        "Either its workspace is new, or somebody else answers in its place. Compare with the fingerprint that "
        "'mosaic daemon status' prints there. To accept the new one: "
        f"mosaic trainer add {remote.name or 'NAME'} {remote.address} --replace"
    )


def _diagnose_tunnel(remote: RemoteTrainer) -> NoDaemon:
    host, port = split_address(remote.address, PORT) or (remote.address, PORT)
    try:
        fetch_certificate(host, port, PROBE_TIMEOUT_S)
    except ConnectionRefusedError:
        return NoDaemon(
            f"Nobody listens on {remote.address}. Forward the trainer's port first: ssh -L {port}:127.0.0.1:PORT HOST"
        )
    except (OSError, UnicodeError):
        return NoDaemon(
            f"The trainer {remote.address} does not answer. Check the tunnel, and the daemon at its other end."
        )
    return NoDaemon(f"The trainer {remote.address} speaks TLS. Add it first: mosaic trainer add NAME {remote.address}")


def _describe_refusal(remote: RemoteTrainer, error: ProofRefused) -> IdentityFailed:
    where = "remote_token" if remote.certificate else "daemon.json"
    if error.is_server:
        return IdentityFailed(
            f"What answers on {remote.address} does not know the token of the trainer. Nothing was sent to it. "
            f"Somebody else may answer in its place, or its token is new: it is in trainer/{where} there."
        )
    again = f"mosaic trainer add {remote.name} {remote.address} --replace" if remote.name else "--token-file FILE"
    relay = " (or somebody in between relays the connection, with another certificate)" if remote.certificate else ""
    return TokenRefused(
        f"The trainer {remote.label} refuses the token{relay}. The right one is in trainer/{where} of its workspace. "
        f"Give it: {again}"
    )


# --- versions


def _find_mismatch(remote: RemoteTrainer, daemon_version: str) -> VersionMismatch | None:
    older = older_side(__version__, daemon_version)
    if older is None:
        return None
    facts = (
        f"The trainer {remote.label} is of MOSAIC {daemon_version}, this program of {__version__}; "
        "the first two numbers must be the same."
    )
    if older == "client":
        minor = ".".join(daemon_version.split(".")[:2])
        return VersionMismatch(f"{facts} Upgrade this machine: pip install --upgrade 'mosaic-rl=={minor}.*'")
    minor = ".".join(__version__.split(".")[:2])
    return VersionMismatch(
        f"{facts} Upgrade the trainer's machine: pip install --upgrade 'mosaic-rl=={minor}.*'   and restart its "
        "daemon; its runs continue meanwhile."
    )


def older_side(client_version: str, daemon_version: str) -> str | None:
    """`client` or `daemon`, whichever has to be upgraded; None where they understand each other."""
    client, daemon = (_minor_version(version) for version in (client_version, daemon_version))
    if client == daemon:
        return None
    return "client" if client < daemon else "daemon"


def _minor_version(version: str) -> tuple[int, ...]:
    """The first two numbers; those of an unreadable version are lower than all others."""
    parts = version.split(".")[:2]
    is_readable = len(parts) == 2 and all(part.isdecimal() and len(part) < 10 for part in parts)
    return tuple(map(int, parts)) if is_readable else (-1,)
