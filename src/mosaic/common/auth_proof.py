"""Keys of call metadata, and how client and daemon prove that they know the token. Standard library only."""

from __future__ import annotations

import hashlib
import hmac

TOKEN_KEY = "x-mosaic-token"
"""Call metadata: the token itself, sent only to a daemon that has proved that it knows it."""
NONCE_KEY = "x-mosaic-nonce"
PROOF_KEY = "x-mosaic-proof"
"""Call metadata of Identify: a number used once, and proof that the caller knows the token."""
PROBLEMS_KEY = "x-mosaic-problems-bin"
"""Trailing metadata of a refusal: `[[path, problem], …]` as JSON."""


def compute_proof(token: str, side: str, nonce: str) -> str:
    """The answer to `nonce` that only a holder of the token can compute."""
    return hmac.new(token.encode(), f"{side}:{nonce}".encode(), hashlib.sha256).hexdigest()


def identify_metadata(token: str, nonce: str) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of a call to Identify: the daemon checks it before it reads the request."""
    return (NONCE_KEY, nonce), (PROOF_KEY, compute_proof(token, "client", nonce))


def constant_time_equals(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
