"""Writes files atomically and packs run folders. Standard library only."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from mosaic.contracts.errors import BadInput

_CHUNK_BYTES = 1 << 20


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace the file at once: a reader sees the old text or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, data: Any, mode: int = 0o644) -> None:
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n", mode)


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only when it is complete."""
    target = Path(path).absolute()
    part = target.with_name(f".{target.name}.part")
    try:
        with open(part, "wb") as file:
            yield file
        part.rename(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BadInput(f"{path} cannot be written: {error.strerror or error}.") from None
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def pack_folder(folder: Path, file: IO[bytes], on_progress: Callable[[int], object] = lambda _: None) -> None:
    """Write a zip that another workspace can import: the folder under its own name; links stay links."""
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
    """Return the modification time; zip files cannot store one before 1980."""
    at = time.localtime(max(path.lstat().st_mtime, 315_619_200))
    return (at.tm_year, at.tm_mon, at.tm_mday, at.tm_hour, at.tm_min, at.tm_sec)
