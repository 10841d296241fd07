"""Runs the servicer's methods on an asyncio server: blocking ones in threads; errors become a gRPC status.

A method may be a plain function or generator, which runs in a thread, or an async one, which must never block.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError, Message

from mosaic.common.auth_proof import PROBLEMS_KEY
from mosaic.common.disk_space import is_disk_full_error
from mosaic.contracts.errors import BadInput, DiskFull, MosaicError, StorageFailed
from mosaic.contracts.trainer_pb2_grpc import TrainerServicer

log = structlog.get_logger("mosaic.trainer.rpc_calls")

METHOD_PREFIX = "/mosaic."
THREADS = 16
MAX_MESSAGE_LENGTH = 4000
"""Of an error: gRPC drops answers whose headers are too long."""
SLOW_CALLS = ("SubmitRun", "CheckRun", "ImportRun", "AskWorker")
"""Calls that may take long, because they wait for a checker or unpack files."""

READING_CALLS = ("Ask", "Get", "Identify", "List", "Read", "Search", "StopDaemon", "Stream", "Trust", "Watch")
"""Begin the names of calls that are answered in a workspace of somebody else's; others could start or change things."""

Context = grpc.aio.ServicerContext[Any, Any]
Item = TypeVar("Item")
Result = TypeVar("Result")
AnyServicer = TypeVar("AnyServicer", bound=type[TrainerServicer])
_END = object()


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


class CallHost(Protocol):
    """What a servicer needs so that its methods can be guarded."""

    calls: CallCounter
    threads: CallThreads
    require_writable: Callable[[], None]
    """Raises where the workspace is somebody else's."""


class DecodingInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Passes a request that is not a valid message to the guard of its method, which refuses it with a sentence."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None or handler.request_streaming or not details.method.startswith(METHOD_PREFIX):
            return handler  # a stream raises the error where it is read, inside the guard
        return handler._replace(request_deserializer=functools.partial(_decode, handler.request_deserializer))


def _decode(decode: Callable[[bytes], Message], data: bytes) -> Message | DecodeError:
    try:
        return decode(data)
    except DecodeError as error:
        return error


def guard_calls(servicer: AnyServicer) -> AnyServicer:
    """Makes the methods of a servicer count their calls and answer errors with a gRPC status."""
    for name in servicer.__dict__.keys() & TrainerServicer.__dict__.keys():
        if not name.startswith("_"):
            setattr(servicer, name, _guard(getattr(servicer, name)))
    return servicer


def _guard(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def call(self: CallHost, request: Any, context: Context) -> Any:
        with self.calls:
            try:
                if isinstance(request, DecodeError):
                    raise request
                if not method.__name__.startswith(READING_CALLS):
                    self.require_writable()
                return await _answer(self.threads, method, self, request, context)
            except grpc.aio.AbortError:
                raise
            except grpc.aio.InternalError as error:  # the caller left while a reply was on its way
                log.info("caller_left", method=method.__name__, error=str(error))
            except Exception as error:
                await _abort(context, error)

    return call


async def _answer(
    threads: CallThreads, method: Callable[..., Any], self: CallHost, request: Any, context: Context
) -> Any:
    if inspect.iscoroutinefunction(method):
        return await method(self, request, context)
    if inspect.isasyncgenfunction(method):
        replies = method(self, request, context)
    elif inspect.isgeneratorfunction(method):
        replies = iterate_in(threads.streams, method(self, request, context))
    else:
        pool = threads.slow if method.__name__ in SLOW_CALLS else threads.control
        return await run_in(pool, method, self, request, context)
    async with aclosing(replies):
        async for reply in replies:
            await context.write(reply)
    return None


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
