"""Calls to the daemon over one gRPC channel: token, deadlines, its errors as MosaicError, its answers decoded."""

from __future__ import annotations

import functools
import importlib
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when grpc is imported; a refused certificate needs no lines

import grpc
from pydantic import ValidationError

from mosaic.base.certificates import CERTIFICATE_NAME, compute_fingerprint
from mosaic.base.handshake import PROBLEMS_KEY, TOKEN_KEY, compute_proof, constant_time_equals, identify_metadata
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadReply, FieldProblem, MosaicError, NoDaemon, decode_problems, error_class
from mosaic.contracts.model import AnyContract, Contract, format_validation_error
from mosaic.contracts.trainer_pb2_verbs import Verbs

REPLY_TIMEOUT_S = 30.0
"""Every call is answered within this time, and every stream accepted; else the daemon hangs."""
SLOW_TIMEOUT_S = 300.0
"""Of verbs that may take long: a worker's checker may have to start first."""
MAX_STREAM_BYTES = 1 << 30
"""Of all replies of a stream that has an end, as their readers keep them in memory."""
MESSAGE_BYTES = 64
"""What a reply counts beside its content, so that a stream of empty ones ends, too."""
MAX_PROBLEM_LENGTH = 300
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.enable_http_proxy", 0),  # users may be behind a proxy, which does not lead to the daemon
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)
IDENTIFY_TIMEOUT_S = 10.0
_VERBS = pb.DESCRIPTOR.services_by_name["Trainer"].methods_by_name


class DaemonMissing(Exception):
    """Nothing answered, or nothing that could be talked to."""


class ProofRefused(Exception):
    """One side does not know the token."""

    def __init__(self, details: str, is_server: bool = False) -> None:
        super().__init__(details)
        self.is_server = is_server
        """The daemon's proof is wrong, rather than ours."""


def open_verified(
    address: str, token: str, options: Sequence[tuple[str, int]] = CHANNEL_OPTIONS, certificate: str = ""
) -> tuple[grpc.Channel, str]:
    """A channel to a daemon, and its version; client and daemon have proved to each other that they know the token.

    It is encrypted where a certificate (PEM) is given, and then accepts that one only.
    """
    if certificate:
        credentials = grpc.ssl_channel_credentials(root_certificates=certificate.encode())
        named = ("grpc.ssl_target_name_override", CERTIFICATE_NAME)
        channel = grpc.secure_channel(address, credentials, options=(*options, named))
    else:
        channel = grpc.insecure_channel(address, options=options)
    try:
        return channel, identify(channel, token, compute_fingerprint(certificate) if certificate else "")
    except BaseException:
        channel.close()
        raise


def identify(channel: grpc.Channel, token: str, fingerprint: str = "") -> str:
    """Check both sides and return the daemon's version. The token itself is not sent.

    It does not wait for a channel to become ready: with a wrong certificate that would last until the timeout.
    """
    nonce = secrets.token_hex(16)
    metadata = identify_metadata(token, nonce, fingerprint)
    try:
        reply = _open(channel, "Identify")(
            pb.IdentifyRequest(nonce=nonce), metadata=metadata, timeout=IDENTIFY_TIMEOUT_S
        )
    except grpc.RpcError as error:
        if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
            raise DaemonMissing(error.details()) from None
        raise ProofRefused(error.details() or "") from None
    if not constant_time_equals(reply.proof, compute_proof(token, "server", nonce, fingerprint)):
        raise ProofRefused("its proof is wrong", is_server=True)
    return str(reply.version)


def _open(channel: grpc.Channel, verb: str) -> Any:
    """What starts a call."""
    method = _VERBS[verb]
    kind = "_".join("stream" if many else "unary" for many in (method.client_streaming, method.server_streaming))
    request, reply = getattr(pb, method.input_type.name), getattr(pb, method.output_type.name)
    path = f"/{method.containing_service.full_name}/{verb}"
    return getattr(channel, kind)(path, request.SerializeToString, reply.FromString)


class DaemonChannel(Verbs):
    """Makes the calls of the verbs, and decodes replies whose contract trainer.proto states."""

    def __init__(self, channel: grpc.Channel, token: str, trainer_label: str = "") -> None:
        """`trainer_label` names a trainer on another machine, in errors."""
        self._channel = channel
        self._trainer_label = trainer_label
        self._metadata = ((TOKEN_KEY, token),)

    def close(self) -> None:
        self._channel.close()

    def call(self, verb: str, request: Any) -> Any:
        timeout_s = SLOW_TIMEOUT_S if _VERBS[verb].GetOptions().Extensions[pb.verb].is_slow else REPLY_TIMEOUT_S
        try:
            reply = _open(self._channel, verb)(request, metadata=self._metadata, timeout=timeout_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise _no_answer(timeout_s, self._trainer_label) from None
            raise self.to_error(error) from None
        return self._decode_reply(verb, reply)

    def send_stream(self, verb: str, requests: Iterator[Any]) -> Any:
        """Start a call that sends many requests and returns its one reply as a future."""
        return _open(self._channel, verb).future(requests, metadata=self._metadata)

    def to_error(self, error: grpc.RpcError) -> MosaicError:
        return _to_mosaic_error(error, self._trainer_label)

    def bad_reply(self, problem: str) -> BadReply:
        """The error for an answer that does not fit its contract; what is in it is used nowhere."""
        who = f"The trainer {self._trainer_label}" if self._trainer_label else "The daemon"
        return BadReply(
            f"{who} sent a reply that cannot be used: {problem[:MAX_PROBLEM_LENGTH].rstrip('.')}. Nothing of it was "
            "stored. If you do not know why, do not trust that trainer; else install the same version on both sides."
        )

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Raise BadReply where what this block decodes does not fit its model."""
        try:
            yield
        except ValidationError as error:
            raise self.bad_reply(format_validation_error(error)) from None

    def decode(self, kind: type[AnyContract], text: str | bytes) -> AnyContract:
        with self.decoding():
            return kind.model_validate_json(text)

    def decode_json(self, text: str | bytes) -> dict[str, Any]:
        """A reply that is an object whose content the caller checks."""
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise self.bad_reply("expected a JSON object")
        return answer

    def _decode_reply(self, verb: str, reply: Any) -> Any:
        contract = _find_contract(verb)
        if contract is None:
            return reply
        [field] = reply.DESCRIPTOR.fields
        content = getattr(reply, field.name)
        return (
            [self.decode(contract, text) for text in content] if field.is_repeated else self.decode(contract, content)
        )

    def stream(
        self, verb: str, request: Any, is_endless: bool = False, max_bytes: int | None = MAX_STREAM_BYTES
    ) -> Iterator[Any]:
        """Yield the replies; the call is cancelled when the caller stops reading.

        Each reply must come in time, and all together have at most `max_bytes` (None: the caller limits them); of an
        endless stream, only the call must be accepted in time.
        """
        size_bytes = 0
        call = _open(self._channel, verb)(request, metadata=self._metadata)
        guard = SilenceGuard(call, REPLY_TIMEOUT_S, self._trainer_label)
        try:
            if is_endless:
                with guard.awaiting():
                    call.initial_metadata()
                guard.close()
                yield from call
                return
            while True:
                with guard.awaiting():
                    reply = next(call, None)
                if reply is None:
                    return
                size_bytes += reply.ByteSize() + MESSAGE_BYTES
                if max_bytes is not None and size_bytes > max_bytes:
                    raise self.bad_reply(f"the answer to {verb} has more than {max_bytes:,} bytes")
                yield self._decode_reply(verb, reply)
        except grpc.RpcError as error:
            raise self.to_error(error) from None
        finally:
            guard.close()
            call.cancel()


@functools.cache
def _find_contract(verb: str) -> type[Contract] | None:
    """The model that a reply's JSON is decoded into; None where the reply is a message of its own."""
    module, _, name = _VERBS[verb].GetOptions().Extensions[pb.verb].contract.partition(".")
    return getattr(importlib.import_module(f"mosaic.contracts.{module}"), name) if module else None


class SilenceGuard:
    """Cancels a stream when one of its replies is awaited for too long. The reader's own time does not count."""

    def __init__(self, call: Any, timeout_s: float, trainer_label: str = "") -> None:
        self._call = call
        self._trainer_label = trainer_label
        self._timeout_s = timeout_s
        self._waiting_since: float | None = None
        self._has_expired = False
        self._is_closed = threading.Event()
        threading.Thread(target=self._watch, name="silence-guard", daemon=True).start()

    def close(self) -> None:
        self._is_closed.set()

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        """Raise NoDaemon where the block takes longer than the timeout."""
        self._waiting_since = time.monotonic()
        try:
            yield
        except grpc.RpcError:
            if not self._has_expired:
                raise
        finally:
            self._waiting_since = None
        if self._has_expired:
            raise _no_answer(self._timeout_s, self._trainer_label)

    def _watch(self) -> None:
        pause_s = self._timeout_s
        while not self._is_closed.wait(pause_s):
            since = self._waiting_since
            pause_s = self._timeout_s if since is None else since + self._timeout_s - time.monotonic()
            if pause_s <= 0:
                self._has_expired = True
                self._call.cancel()
                return


def _to_mosaic_error(error: grpc.RpcError, trainer_label: str) -> MosaicError:
    """The error as it was raised in the daemon."""
    details = error.details() or ""
    name, colon, message = details.partition(": ")
    kind = error_class(name)
    if colon and kind.__name__ == name:
        return kind(message, _problems(error))
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        if trainer_label:
            return NoDaemon(
                f"The connection to the trainer {trainer_label} broke ({details}). Its runs continue; try again."
            )
        return NoDaemon(f"The connection to the daemon broke ({details}). The next command starts it again.")
    return MosaicError(f"The daemon failed ({error.code().name}): {details}. Its log: logs/trainer.log")


def _no_answer(timeout_s: float, trainer_label: str) -> NoDaemon:
    if trainer_label:
        return NoDaemon(
            f"The trainer {trainer_label} did not answer within {timeout_s:g} s. Its runs continue; try again."
        )
    return NoDaemon(
        f"The daemon did not answer within {timeout_s:g} s. Try again, or restart it: "
        "mosaic daemon stop && mosaic daemon start"
    )


def _problems(error: grpc.RpcError) -> list[FieldProblem]:
    for key, value in cast("Sequence[tuple[str, bytes]]", error.trailing_metadata() or ()):
        if key == PROBLEMS_KEY:
            with suppress(ValueError, RecursionError):
                return decode_problems(json.loads(value))
    return []
