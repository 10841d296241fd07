"""The files of runs."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from mosaic.base.files import path_inside
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import UnknownName
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.trainer_pb2_handlers import Handlers
from mosaic.trainer.services import Services

CHUNK_BYTES = 1 << 20


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


HANDLERS: Handlers = {"ListFiles": list_files, "ReadFile": read_file}
