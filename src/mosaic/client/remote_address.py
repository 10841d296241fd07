"""The address and token of a daemon on another machine."""

from __future__ import annotations

import ipaddress
import json
import os
from pathlib import Path

from mosaic.contracts.errors import BadInput

TOKEN_VARIABLE = "MOSAIC_TOKEN"


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
                f"${TOKEN_VARIABLE} to it, or name a copy of that file: mosaic gui --token-file FILE"
            )
        return token
    try:
        token = json.loads(file.read_text())["token"]
    except OSError as error:
        raise BadInput(f"--token-file {file} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"--token-file {file} has no token; expected a copy of a trainer's daemon.json.") from None
    return str(token)
