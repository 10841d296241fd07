"""The files of a run's folder, for clients on any machine."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path

from mosaic.common.files import path_inside
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import UnknownName
from mosaic.contracts.folder import RunFolder

CHUNK_BYTES = 1 << 20


def list_files(folder: RunFolder, pattern: str) -> Iterator[pb.RunFile]:
    """Yields the files and links that match, sorted by folder; links out of the folder are left out."""
    root = folder.path.resolve()
    for parent, folders, names in os.walk(root):
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


def read_file(folder: RunFolder, name: str, offset: int) -> Iterator[bytes]:
    """Yields the content from `offset` on; refuses whatever is not a regular file inside the folder."""
    path = path_inside(folder.path, name)
    if not path.is_file():
        raise UnknownName(f"Run {folder.run_id} has no file {name!r}. List them: mosaic show {folder.run_id}")
    with open(path, "rb") as file:
        file.seek(max(0, offset))
        while data := file.read(CHUNK_BYTES):
            yield data
