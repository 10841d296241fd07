"""Authentication: every call must carry the token, which is checked before its content is read."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import grpc
import structlog

from mosaic.base.handshake import CERTIFICATE_KEY, NONCE_KEY, PROOF_KEY, TOKEN_KEY, compute_proof, constant_time_equals

log = structlog.get_logger("mosaic.trainer.auth")

IDENTIFY_METHOD = "/mosaic.v1.Trainer/Identify"
REPORT_INTERVAL_S = 60.0


class Credentials(NamedTuple):
    """What callers have to know."""

    token: str
    """On this machine; new with every daemon."""
    remote_token: str = ""
    """On other machines; lasting. Empty where none of them is served, as is the next."""
    fingerprint: str = ""
    """Of the certificate that they are shown."""

    def knows(self, token: str) -> bool:
        is_local = constant_time_equals(token, self.token)
        return is_local or (bool(self.remote_token) and constant_time_equals(token, self.remote_token))

    def prove(self, side: str, nonce: str, certificate: str) -> str | None:
        """The proof for a caller that was shown this certificate; none for one that was shown another than ours."""
        if not certificate:
            return compute_proof(self.token, side, nonce)
        is_ours = bool(self.fingerprint) and constant_time_equals(certificate, self.fingerprint)
        return compute_proof(self.remote_token, side, nonce, certificate) if is_ours else None


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._refused_count = 0
        self._next_report_at = 0.0

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        given = {key: value for key, value in details.invocation_metadata if isinstance(value, str)}
        if self._is_authentic(details.method, given):
            return await continuation(details)
        self._report_refusal(details.method, has_token=TOKEN_KEY in given)
        # As a stream, whatever the method: its requests are not read.
        return grpc.stream_stream_rpc_method_handler(_abort_unauthenticated)

    def _is_authentic(self, method: str, given: Mapping[str, str]) -> bool:
        if method != IDENTIFY_METHOD:
            return self._credentials.knows(given.get(TOKEN_KEY, ""))
        # The caller does not know yet who answers, so it proves that it has the token instead of sending it.
        nonce = given.get(NONCE_KEY, "")
        proof = self._credentials.prove("client", nonce, given.get(CERTIFICATE_KEY, ""))
        return bool(nonce) and proof is not None and constant_time_equals(given.get(PROOF_KEY, ""), proof)

    def _report_refusal(self, method: str, *, has_token: bool) -> None:
        """Log the first refusal at once and then one line a minute: callers without the token cannot fill the disk."""
        self._refused_count += 1
        now = time.monotonic()
        if now >= self._next_report_at:
            log.warning("call_refused", method=method, has_token=has_token, count=self._refused_count)
            self._refused_count, self._next_report_at = 0, now + REPORT_INTERVAL_S


async def _abort_unauthenticated(_: Any, context: Any) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED, "IdentityFailed: this daemon answers only to its own workspace's token."
    )
