"""The files and the logs of runs."""

from __future__ import annotations

import asyncio
import fnmatch
import glob
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mosaic.common.files import path_inside
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import UnknownName
from mosaic.contracts.folder import RunFolder
from mosaic.trainer.records import Records
from mosaic.trainer.run_logs import LogPart, RunLogs, find_error, text_finder
from mosaic.trainer.server import Context, run_in
from mosaic.trainer.services import Services
from mosaic.workers import get_worker

if TYPE_CHECKING:
    from mosaic.contracts.trainer_pb2_verbs import Handlers

CHUNK_BYTES = 1 << 20
LOG_POLL_S = 0.1


def list_files(services: Services, request: pb.FilesRequest) -> pb.FilesReply:
    folder = services.records.folder(services.records.resolve(request.run))
    return pb.FilesReply(files=find_files(folder, request.pattern))


def find_files(folder: RunFolder, pattern: str) -> Iterator[pb.RunFile]:
    """Yields the files and links that match, sorted by folder; links out of the folder are left out."""
    root = folder.path.resolve()
    found: Iterable[tuple[str, list[str], list[str]]] = os.walk(root)
    if pattern and not glob.has_magic(pattern):  # the name of one file: nothing is searched
        path = root / pattern
        is_file = path.is_relative_to(root) and ".." not in path.parts and (path.is_symlink() or path.is_file())
        found = [(str(path.parent), [], [path.name])] if is_file else []
    for parent, folders, names in found:
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for path in sorted(Path(parent, name) for name in (*names, *links)):
            name = path.relative_to(root).as_posix()
            if fnmatch.fnmatchcase(name, pattern or "*") and path.resolve().is_relative_to(root):
                try:
                    yield _describe(path, name)
                except FileNotFoundError:
                    continue  # a run that is active also deletes files


def _describe(path: Path, name: str) -> pb.RunFile:
    status = path.lstat()
    target = os.readlink(path) if path.is_symlink() else ""
    return pb.RunFile(name=name, size_bytes=status.st_size, modified_at=status.st_mtime, link_target=target)


def read_file(services: Services, request: pb.FileRequest) -> Iterator[pb.FileReply]:
    folder = services.records.folder(services.records.resolve(request.run))
    return (pb.FileReply(data=data) for data in read_parts(folder, request.name, request.offset))


def read_parts(folder: RunFolder, name: str, offset: int) -> Iterator[bytes]:
    """Yields the content from `offset` on; refuses whatever is not a regular file inside the folder."""
    path = path_inside(folder.path, name)
    if not path.is_file():
        raise UnknownName(f"Run {folder.run_id} has no file {name!r}. List them: mosaic show {folder.run_id}")
    with open(path, "rb") as file:
        file.seek(max(0, offset))
        while data := file.read(CHUNK_BYTES):
            yield data


# --- logs


async def read_log(services: Services, request: pb.LogRequest, context: Context) -> AsyncIterator[pb.LogReply]:
    records, pool = services.records, services.threads.streams
    run_id, logs = await run_in(pool, _find_logs, records, request)
    offset = request.offset
    if offset < 0:
        offset = max(0, offset + await run_in(pool, lambda: logs.size(_has_ended(records, run_id))))
    await context.send_initial_metadata(())  # the reader knows that it follows, though the log may be empty
    while not services.feed.is_closed:
        parts, has_ended = await run_in(pool, _read_parts, records, run_id, logs, offset)
        for part in parts:
            offset += len(part.data)
            yield pb.LogReply(data=part.data, offset=offset, is_stderr=part.is_stderr)
        if not parts:
            if not request.follow or has_ended:
                return
            await asyncio.sleep(LOG_POLL_S)


def search_log(services: Services, request: pb.LogSearchRequest) -> Iterator[pb.LogSearchReply]:
    run_id, logs = _find_logs(services.records, request)
    find = find_error if request.is_errors else text_finder(request.text)
    return logs.search(find, _has_ended(services.records, run_id))


def _find_logs(records: Records, request: pb.LogRequest | pb.LogSearchRequest) -> tuple[str, RunLogs]:
    run_id = records.resolve(request.run)
    folder = records.folder(run_id)
    name = get_worker(records.get(run_id).worker).log_prefix
    paths = folder.stdout_log(name), folder.stderr_log(name), folder.log_order(name)
    return run_id, RunLogs(*paths, request.is_stderr, request.is_both)


def _has_ended(records: Records, run_id: str) -> bool:
    return not records.get(run_id).is_active


def _read_parts(records: Records, run_id: str, logs: RunLogs, offset: int) -> tuple[list[LogPart], bool]:
    has_ended = _has_ended(records, run_id)  # before reading, so that everything written until its end is still read
    return logs.read(offset, has_ended), has_ended


HANDLERS: Handlers = {"ListFiles": list_files, "ReadFile": read_file, "ReadLog": read_log, "SearchLog": search_log}
