"""What client and daemon agree on before they talk: the port, and how both prove that they know the token. Standard
library only.
"""

from __future__ import annotations

import hashlib
import hmac

TOKEN_KEY = "x-mosaic-token"
"""Call metadata: the token itself, sent only to a daemon that has proved that it knows it."""
NONCE_KEY = "x-mosaic-nonce"
PROOF_KEY = "x-mosaic-proof"
"""Call metadata of Identify: a number used once, and proof that the caller knows the token."""
CERTIFICATE_KEY = "x-mosaic-certificate"
"""Call metadata of Identify over TLS: the fingerprint of the certificate that the caller was shown."""
PROBLEMS_KEY = "x-mosaic-problems-bin"
"""Trailing metadata of a refusal: `[[path, problem], …]` as JSON."""


def compute_proof(token: str, side: str, nonce: str, fingerprint: str = "") -> str:
    """The answer to `nonce` that only a holder of the token can compute.

    It covers the certificate that the client sees: whoever relays a proof shows another one, and is found out.
    """
    text = f"{side}:{nonce}:{fingerprint}" if fingerprint else f"{side}:{nonce}"
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


def identify_metadata(token: str, nonce: str, fingerprint: str = "") -> tuple[tuple[str, str], ...]:
    """Returns the metadata of a call to Identify: the daemon checks it before it reads the request."""
    proof = (NONCE_KEY, nonce), (PROOF_KEY, compute_proof(token, "client", nonce, fingerprint))
    return (*proof, (CERTIFICATE_KEY, fingerprint)) if fingerprint else proof


def constant_time_equals(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


# --- What client and daemon have to agree on before they talk. Standard library only.


PORT = 50055
"""The daemon's port where no other is named."""
KEEPALIVE_S = 5.0
"""How often each side of a connection between machines checks that the other is there."""
KEEPALIVE_TIMEOUT_S = 3.0
"""How long it waits for the answer."""
REMOTE_RETRY_S = 60.0
"""How long a client tries to reach a trainer on another machine again after the connection broke."""
