"""Serves the verbs of trainer.proto: a table of handlers on an asyncio server, with errors as a gRPC status.

A handler takes the daemon's services and a request, and returns what the .proto says of its verb: the contract, or the
reply's message. Plain functions and generators run in a thread; async ones also take the call's context, and must never
block.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, NoReturn, TypeVar

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message

from mosaic.base.files import is_disk_full_error
from mosaic.base.handshake import PROBLEMS_KEY
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadInput, DiskFull, MosaicError, StorageFailed

log = structlog.get_logger("mosaic.trainer.server")

THREADS = 16
MAX_MESSAGE_LENGTH = 4000
"""Of an error: gRPC drops answers whose headers are too long."""

Context = grpc.aio.ServicerContext[Any, Any]
Item = TypeVar("Item")
Result = TypeVar("Result")
_END = object()


# --- threads


class CallThreads:
    """Threads for blocking work. Each kind has its own, so that neither streams nor slow calls delay a control call."""

    def __init__(self) -> None:
        self.control = ThreadPoolExecutor(THREADS, thread_name_prefix="rpc-control")
        self.slow = ThreadPoolExecutor(THREADS, thread_name_prefix="rpc-slow")
        self.streams = ThreadPoolExecutor(THREADS, thread_name_prefix="rpc-streams")
        self.frames = ThreadPoolExecutor(THREADS, thread_name_prefix="rpc-frames")

    def close(self) -> None:
        for pool in (self.control, self.slow, self.streams, self.frames):
            pool.shutdown(wait=False, cancel_futures=True)


async def run_in(pool: Executor, function: Callable[..., Result], *args: Any) -> Result:
    return await asyncio.get_running_loop().run_in_executor(pool, functools.partial(function, *args))


async def iterate_in(pool: Executor, items: Iterator[Item]) -> AsyncGenerator[Item, None]:
    """Yields the items of a blocking generator. No thread is held while the consumer handles one."""
    step: asyncio.Future[Any] | None = None
    try:
        while True:
            step = asyncio.ensure_future(run_in(pool, next, items, _END))
            item = await asyncio.shield(step)  # a generator can be closed only when it does not run
            if item is _END:
                return
            yield item
    finally:
        if step is not None:
            await asyncio.wait([step])
            step.exception()  # marks it as seen, where the call was cancelled meanwhile
        try:
            await run_in(pool, items.close)  # type: ignore[attr-defined]
        except RuntimeError:  # the daemon ends, and its threads take no more work
            items.close()  # type: ignore[attr-defined]


# --- calls


class CallCounter:
    """How many calls are open, and when the last one ended."""

    def __init__(self) -> None:
        self.open = 0
        self.last_ended_at = time.monotonic()

    def __enter__(self) -> None:
        self.open += 1

    def __exit__(self, *_: object) -> None:
        self.open -= 1
        self.last_ended_at = time.monotonic()


class VerbServer:
    """Makes gRPC methods of handlers: calls are counted, refused where they must be, and answered in their threads."""

    def __init__(
        self, handlers: Mapping[str, Any], services: Any, threads: CallThreads, require_writable: Callable[[], None]
    ) -> None:
        """`require_writable` raises where the workspace is somebody else's."""
        self.calls = CallCounter()
        self._handlers = handlers
        self._services = services
        self._threads = threads
        self._require_writable = require_writable

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve the verbs that have a handler; gRPC itself refuses others."""
        service = pb.DESCRIPTOR.services_by_name["Trainer"]
        methods = {verb.name: self._make_method(verb) for verb in service.methods if verb.name in self._handlers}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, methods),))

    def _make_method(self, verb: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
        facts = verb.GetOptions().Extensions[pb.verb]
        answer = self._make_answer(verb, facts)

        async def call(request: Any, context: Context) -> Any:
            with self.calls:
                try:
                    if isinstance(request, DecodeError):
                        raise request
                    if not facts.is_allowed_read_only:
                        self._require_writable()
                    return await answer(request, context)
                except grpc.aio.AbortError:
                    raise
                except grpc.aio.InternalError as error:  # the caller left while a reply was on its way
                    log.info("caller_left", method=verb.name, error=str(error))
                except Exception as error:
                    await _abort(context, error)

        kind = "_".join("stream" if many else "unary" for many in (verb.client_streaming, verb.server_streaming))
        request, reply = getattr(pb, verb.input_type.name), getattr(pb, verb.output_type.name)
        # A stream raises what is not valid where it is read: inside of the call.
        decode = request.FromString if verb.client_streaming else functools.partial(_decode, request)
        make: Callable[..., grpc.RpcMethodHandler[Any, Any]] = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(call, request_deserializer=decode, response_serializer=reply.SerializeToString)

    def _make_answer(self, verb: MethodDescriptor, facts: pb.Verb) -> Callable[[Any, Context], Awaitable[Any]]:
        handler, encode = self._handlers[verb.name], _make_encoder(verb, facts)
        pool = self._threads.slow if facts.is_slow else self._threads.control
        is_async = inspect.iscoroutinefunction(handler) or inspect.isasyncgenfunction(handler)

        def compute(request: Any) -> Message:
            return encode(handler(self._services, request))

        def generate(request: Any) -> Iterator[Message]:
            for reply in handler(self._services, request):
                yield encode(reply)

        async def answer(request: Any, context: Context) -> Message:
            if is_async:
                return encode(await handler(self._services, request, context))
            return await run_in(pool, compute, request)

        async def stream(request: Any, context: Context) -> None:
            if is_async:
                replies = handler(self._services, request, context)
            else:
                replies = iterate_in(self._threads.streams, generate(request))
            async with aclosing(replies):
                async for reply in replies:
                    await context.write(encode(reply) if is_async else reply)

        return stream if verb.server_streaming else answer


def _decode(kind: type[Message], data: bytes) -> Message | DecodeError:
    """Pass on what is not a valid message, to be refused with a sentence."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        return error


def _make_encoder(verb: MethodDescriptor, facts: pb.Verb) -> Callable[[Any], Message]:
    """What makes the reply's message of what a handler returns."""
    if not facts.contract:
        return lambda message: message
    kind = getattr(pb, verb.output_type.name)
    [field] = verb.output_type.fields
    if field.is_repeated:
        return lambda models: kind(**{field.name: [model.model_dump_json() for model in models]})
    return lambda model: kind(**{field.name: model.model_dump_json()})


async def _abort(context: Context, error: Exception) -> NoReturn:
    if isinstance(error, DecodeError):
        error = BadInput(f"The request is not a valid message ({error}). Do client and daemon have the same version?")
    if is_disk_full_error(error):
        error = DiskFull(f"The disk is full ({error}). Free some space, then try again.")
    elif isinstance(error, (OSError, sqlite3.OperationalError)):
        log.warning("files_unusable", exc_info=error)
        error = StorageFailed(
            f"The daemon could not read or write a file ({error}). Check the workspace's disk, then try again."
        )
    code = grpc.StatusCode.INTERNAL
    if isinstance(error, MosaicError):
        code = grpc.StatusCode.INVALID_ARGUMENT if isinstance(error, BadInput) else grpc.StatusCode.FAILED_PRECONDITION
        log.info("request_refused", error=type(error).__name__, log_code=error.log_code, message=str(error))
        if error.problems:
            context.set_trailing_metadata(((PROBLEMS_KEY, json.dumps(error.problems).encode()),))
    else:
        log.exception("call_failed", exc_info=error)
    await context.abort(code, f"{type(error).__name__}: {error}"[:MAX_MESSAGE_LENGTH])
