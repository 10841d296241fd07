"""Authentication: every call must carry the token, which is checked before its content is read."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import structlog

from mosaic.common.auth_proof import NONCE_KEY, PROOF_KEY, TOKEN_KEY, compute_proof, constant_time_equals

log = structlog.get_logger("mosaic.trainer.auth")

IDENTIFY_METHOD = "/mosaic.v1.Trainer/Identify"
REPORT_INTERVAL_S = 60.0


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    def __init__(self, token: str) -> None:
        self._token = token
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
            return constant_time_equals(given.get(TOKEN_KEY, ""), self._token)
        # The caller does not know yet who answers, so it proves that it has the token instead of sending it.
        nonce = given.get(NONCE_KEY, "")
        return bool(nonce) and constant_time_equals(
            given.get(PROOF_KEY, ""), compute_proof(self._token, "client", nonce)
        )

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
