"""Writing a file so that a reader sees the old one or the new one, never a part. Standard library only."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from mosaic.contracts.errors import BadInput


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_json(path: Path, data: Any, mode: int = 0o644) -> None:
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n", mode)


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name when it is whole."""
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
