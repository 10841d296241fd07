"""What a run wrote to stdout and stderr, apart or as one sequence: reads, follows and searches it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mosaic.base.files import file_size
from mosaic.base.log_order import LogOrder, LogSpan
from mosaic.base.worker_registry import get_worker
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadInput
from mosaic.contracts.trainer_pb2_handlers import Handlers
from mosaic.trainer.records import Records
from mosaic.trainer.server import Context, run_in
from mosaic.trainer.services import Services

READ_BYTES = 1 << 18
"""Read at a time."""
SEARCH_BYTES = 1 << 20
"""Searched at a time: other calls are answered in between."""
MAX_MATCHES = 10_000
"""Of each file."""
MAX_LINE_BYTES = 1 << 22
MAX_TEXT_BYTES = 1000
"""Of a line that matches."""
MAX_SEARCHED_TEXT = 1000
_ERROR = re.compile(
    rb"Traceback \(most recent call last\)|Fatal Python error|Segmentation fault|core dumped|CUDA error"
    rb"|\b[A-Z]\w*(?:Error|Exception)\b(?=:|\r?$)|\b(?:ERROR|CRITICAL|FATAL)\b|^(?:[Ee]rror|[Ff]atal|Killed)\b",
    re.MULTILINE,
)
"""In lines that report an error: of Python, of loggers, of the C library and of CUDA."""

Finder = Callable[[bytes, int], int]
"""Returns where the next match at or after an offset begins, or -1."""


@dataclass(frozen=True)
class RunLogs:
    stdout: Path
    stderr: Path
    order: Path
    is_stderr: bool = False
    is_both: bool = False
    """Both in the order of their writing; otherwise one of them."""

    def size(self, has_ended: bool) -> int:
        if not self.is_both:
            return file_size(self._path(self.is_stderr))
        with LogOrder(self.order) as order:
            return order.size(file_size(self.stdout), file_size(self.stderr), has_ended)

    def read(self, offset: int, has_ended: bool) -> list[pb.LogReply]:
        """Return what follows `offset`, of limited size; nothing at the end."""
        parts: list[pb.LogReply] = []
        size = 0
        for span in self._spans(offset, has_ended):
            data = _read_span(self._path(span.is_stderr), span, READ_BYTES - size)
            size += len(data)
            if data:
                parts.append(pb.LogReply(data=data, offset=offset + size, is_stderr=span.is_stderr))
            if size >= READ_BYTES or len(data) < span.end - span.begin:
                break
        return parts

    def search(self, find: Finder, has_ended: bool) -> Iterator[pb.LogSearchReply]:
        """Yields the lines that match, in one reply for each part that was searched."""
        for is_stderr in (False, True) if self.is_both else (self.is_stderr,):
            count = 0
            for matches in _search_file(self._path(is_stderr), find):
                count += len(matches)
                kept = matches[: len(matches) - max(0, count - MAX_MATCHES)]
                is_limited = len(kept) < len(matches)
                yield pb.LogSearchReply(matches=self._place(kept, is_stderr, has_ended), is_limited=is_limited)
                if is_limited:
                    break

    def _place(self, matches: list[pb.LogMatch], is_stderr: bool, has_ended: bool) -> Iterator[pb.LogMatch]:
        """Yields them with their stream and, of both, their offset in the sequence; without those not in it yet."""
        if not matches:
            return
        with LogOrder(self.order) as order:
            stdout_size = file_size(self.stdout)
            for match in matches:
                match.is_stderr = is_stderr
                if self.is_both:
                    offset = order.offset_in_both(is_stderr, match.offset, stdout_size, has_ended)
                    if offset is None:
                        return
                    match.offset = offset
                yield match

    def _path(self, is_stderr: bool) -> Path:
        return self.stderr if is_stderr else self.stdout

    def _spans(self, offset: int, has_ended: bool) -> Iterator[LogSpan]:
        if not self.is_both:
            yield LogSpan(self.is_stderr, offset, max(offset, file_size(self._path(self.is_stderr))))
            return
        with LogOrder(self.order) as order:
            yield from order.spans(offset, file_size(self.stdout), file_size(self.stderr), has_ended)


def _read_span(path: Path, span: LogSpan, limit: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(span.begin)
            return file.read(min(limit, span.end - span.begin))
    except FileNotFoundError:
        return b""


# --- searching


def text_finder(text: str) -> Finder:
    """Ignores the case of ASCII letters."""
    if not text or "\n" in text or len(text) > MAX_SEARCHED_TEXT:
        raise BadInput(f"The text to search for must be one line of 1 to {MAX_SEARCHED_TEXT:,} characters.")
    wanted = text.encode(errors="replace").lower()
    return lambda lowered, begin: lowered.find(wanted, begin)


def find_error(data: bytes, begin: int) -> int:
    match = _ERROR.search(data, begin)
    return -1 if match is None else match.start()


def _search_file(path: Path, find: Finder) -> Iterator[list[pb.LogMatch]]:
    """Yields the lines that match, for each part of the file, which is searched as far as it is written by now."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below, also where the caller stops early
    except FileNotFoundError:
        return
    with file:
        left = file_size(path)
        offset, line, rest = 0, 1, b""
        while left > 0 and (chunk := file.read(min(SEARCH_BYTES, left))):
            left -= len(chunk)
            data = rest + chunk
            end = data.rfind(b"\n") + 1
            if left <= 0 or (end == 0 and len(data) > MAX_LINE_BYTES):
                end = len(data)  # the last line may be incomplete, and an endless one is searched in parts
            data, rest = data[:end], data[end:]
            yield search_lines(data, offset, line, find)
            offset, line = offset + len(data), line + data.count(b"\n")


def search_lines(data: bytes, offset: int, line: int, find: Finder) -> list[pb.LogMatch]:
    """`offset` and `line` are those of the beginning of `data`."""
    matches: list[pb.LogMatch] = []
    searched = data if find is find_error else data.lower()
    counted = 0
    at = find(searched, 0)
    while at >= 0:
        begin = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        line += data.count(b"\n", counted, begin)
        counted = begin
        text = data[begin : min(end, begin + MAX_TEXT_BYTES)].decode(errors="replace")
        matches.append(pb.LogMatch(offset=offset + begin, line=line, text=text))
        at = find(searched, end + 1)
    return matches


LOG_POLL_S = 0.1


async def read_log(services: Services, request: pb.LogRequest, context: Context) -> AsyncIterator[pb.LogReply]:
    active, pool = services.records.active, services.threads.streams
    run_id, logs = await run_in(pool, _find_logs, services.records, request)
    offset = request.offset
    if offset < 0:
        offset = max(0, offset + await run_in(pool, logs.size, run_id not in active))
    await context.send_initial_metadata(())  # the reader knows that it follows, though the log may be empty
    while not services.feed.is_closed:
        has_ended = run_id not in active  # before reading, so that everything written until its end is still read
        parts = await run_in(pool, logs.read, offset, has_ended)
        for part in parts:
            yield part
            offset = part.offset
        if not parts:
            if not request.follow or has_ended:
                return
            await asyncio.sleep(LOG_POLL_S)


def search_log(services: Services, request: pb.LogSearchRequest) -> Iterator[pb.LogSearchReply]:
    run_id, logs = _find_logs(services.records, request)
    find = find_error if request.is_errors else text_finder(request.text)
    return logs.search(find, has_ended=run_id not in services.records.active)


def _find_logs(records: Records, request: pb.LogRequest | pb.LogSearchRequest) -> tuple[str, RunLogs]:
    run_id = records.resolve(request.run)
    folder = records.folder(run_id)
    name = get_worker(records.get(run_id).worker).log_prefix
    paths = folder.stdout_log(name), folder.stderr_log(name), folder.log_order(name)
    return run_id, RunLogs(*paths, request.is_stderr, request.is_both)


HANDLERS: Handlers = {"ReadLog": read_log, "SearchLog": search_log}
