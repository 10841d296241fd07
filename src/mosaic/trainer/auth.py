"""Authentication: every call must carry the token, which is checked before its content is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import structlog

from mosaic.common.auth_proof import PROOF_KEY, TOKEN_KEY, constant_time_equals

log = structlog.get_logger("mosaic.trainer.auth")

IDENTIFY_METHOD = "/mosaic.v1.Trainer/Identify"


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        given = {key: value for key, value in details.invocation_metadata if isinstance(value, str)}
        # Identify carries a proof instead of the token; the method itself checks it against the nonce.
        if constant_time_equals(given.get(TOKEN_KEY, ""), self._token) or (
            details.method == IDENTIFY_METHOD and given.get(PROOF_KEY)
        ):
            return await continuation(details)
        log.warning("call_refused", method=details.method, has_token=TOKEN_KEY in given)
        # As a stream, whatever the method: its requests are not read.
        return grpc.stream_stream_rpc_method_handler(_abort_unauthenticated)


async def _abort_unauthenticated(_: Any, context: Any) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED, "IdentityFailed: this daemon answers only to its own workspace's token."
    )
