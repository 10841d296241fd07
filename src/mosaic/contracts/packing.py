"""Packs a run folder as a zip that another workspace can import. Standard library only."""

from __future__ import annotations

import os
import stat
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

_CHUNK_BYTES = 1 << 20


def pack(folder: Path, file: IO[bytes], on_progress: Callable[[int], object] = lambda _: None) -> None:
    """The folder under its own name; links stay links."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path in sorted(folder.rglob("*")):
            name = str(Path(folder.name) / path.relative_to(folder))
            if path.is_symlink():
                link = zipfile.ZipInfo(name, _zip_time(path))
                link.create_system = 3  # Unix: the upper half of external_attr is the file's mode
                link.external_attr = (stat.S_IFLNK | 0o777) << 16
                archive.writestr(link, os.readlink(path))
            elif path.is_dir():
                archive.mkdir(name)
            else:
                _pack_file(archive, path, name, on_progress)


def _pack_file(archive: zipfile.ZipFile, path: Path, name: str, on_progress: Callable[[int], object]) -> None:
    info = zipfile.ZipInfo(name, _zip_time(path))
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = path.stat().st_mode << 16
    info.file_size = path.stat().st_size  # tells the writer whether 64-bit sizes are needed
    with open(path, "rb") as source, archive.open(info, "w") as packed:
        while chunk := source.read(_CHUNK_BYTES):
            packed.write(chunk)
            on_progress(len(chunk))


def _zip_time(path: Path) -> tuple[int, int, int, int, int, int]:
    """Zip files know no time before 1980."""
    at = time.localtime(max(path.lstat().st_mtime, 315_619_200))
    return (at.tm_year, at.tm_mon, at.tm_mday, at.tm_hour, at.tm_min, at.tm_sec)
