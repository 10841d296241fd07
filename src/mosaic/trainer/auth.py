"""Authentication: every call must carry the token, which is checked before its content is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import structlog

from mosaic.common.auth_proof import PROOF_KEY, TOKEN_KEY, constant_time_equals

log = structlog.get_logger("mosaic.trainer.auth")

IDENTIFY_METHOD = "/mosaic.v1.Trainer/Identify"


class TokenInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    def __init__(self, token: str) -> None:
        self._token = token

    def intercept_service(self, continuation: Callable[[grpc.HandlerCallDetails], Any], details: Any) -> Any:
        given = {key: value for key, value in details.invocation_metadata if isinstance(value, str)}
        # Identify carries a proof instead of the token; the method itself checks it against the nonce.
        if constant_time_equals(given.get(TOKEN_KEY, ""), self._token) or (
            details.method == IDENTIFY_METHOD and given.get(PROOF_KEY)
        ):
            return continuation(details)
        log.warning("call_refused", method=details.method, has_token=TOKEN_KEY in given)
        return _refusing_handler(continuation(details))


def _abort_unauthenticated(_: Any, context: grpc.ServicerContext) -> Any:
    context.abort(
        grpc.StatusCode.UNAUTHENTICATED, "IdentityFailed: this daemon answers only to its own workspace's token."
    )


def _refusing_handler(handler: Any) -> Any:
    """A refusal of the same shape as the method that was called."""
    shapes = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    shape = next((name for name in shapes if getattr(handler, name, None) is not None), shapes[0])
    return getattr(grpc, f"{shape}_rpc_method_handler")(_abort_unauthenticated)
