"""The rows of a large replay buffer as files, a block of rows each, so that a checkpoint need not write them all.

A block is written when the buffer has filled it, while the training goes on; a checkpoint links the files and writes
only what has changed since. So saving takes about the same time however large the buffer is, and a run that is told to
stop has little left to do.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mosaic.run.checkpoints import PARTS, Part, link

Array = npt.NDArray[Any]
BLOCK_BYTES = 16 << 20
PREFIX = "replay.block."


class Blocks:
    """Of arrays [environments, rows, …] that belong together."""

    def __init__(self, checkpoints: Path, arrays: Mapping[str, Array]) -> None:
        self._folder = checkpoints / PARTS
        self._arrays = list(arrays.values())
        row_bytes = sum(part[:, :1].nbytes for part in self._arrays)
        self.rows = max(1, BLOCK_BYTES // row_bytes)
        """Of each block, but perhaps the last."""
        self._kept: dict[int, Part] = {}
        """Files that say what the blocks of these numbers hold."""

    def touch(self, row: int) -> None:
        """It is about to change, or has just changed."""
        kept = self._kept.pop(row // self.rows, None)
        if kept is not None:
            kept.path.unlink(missing_ok=True)

    def forget(self) -> None:
        for number in list(self._kept):
            self.touch(number * self.rows)

    def settle(self, row: int) -> None:
        """The block of that row will stay as it is for some time. Where the disk is full, the checkpoint will tell."""
        with contextlib.suppress(OSError):
            self._part(row // self.rows)

    def parts(self, used: int) -> dict[str, Part]:
        """All blocks of the first so many rows."""
        return {f"{PREFIX}{number}": self._part(number) for number in range(-(-used // self.rows))}

    def _part(self, number: int) -> Part:
        kept = self._kept.get(number)
        if kept is None:
            kept = self._kept[number] = self._write(number)
        return kept

    def _write(self, number: int) -> Part:
        path = self._new_path()
        digest, size = hashlib.sha256(), 0
        try:
            with open(path, "wb") as file:
                for rows in self._rows(number):
                    data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
                    digest.update(data)
                    file.write(data)
                    size += data.nbytes
                file.flush()
                if hasattr(os, "posix_fadvise"):
                    # The disk may begin now: then a checkpoint has little to wait for.
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return Part(path, size, digest.hexdigest())

    def _new_path(self) -> Path:
        """No name is used twice: a file that checkpoints share must stay as it is."""
        self._folder.mkdir(exist_ok=True)
        return self._folder / secrets.token_hex(8)

    def _rows(self, number: int) -> list[Array]:
        return [part[:, number * self.rows : (number + 1) * self.rows] for part in self._arrays]

    def adopt(self, parts: Mapping[str, Part]) -> None:
        """The files of a checkpoint say what the blocks hold now."""
        self.forget()
        for name, part in parts.items():
            if name.startswith(PREFIX):
                path = self._new_path()
                link(part.path, path)
                self._kept[int(name.removeprefix(PREFIX))] = part._replace(path=path)


def read_blocks(arrays: Mapping[str, Array], parts: Mapping[str, Part], block_rows: int, used: int, total: int) -> None:
    """Gets the first `used` rows of the arrays back from blocks of so many rows each, of a buffer of `total` rows."""
    for begins in range(0, used, block_rows):
        data = np.fromfile(parts[f"{PREFIX}{begins // block_rows}"].path, np.uint8)
        count = min(block_rows, total - begins)
        for part in arrays.values():
            shape = (part.shape[0], count, *part.shape[2:])
            size = math.prod(shape) * part.itemsize
            found, data = data[:size].view(part.dtype).reshape(shape), data[size:]
            target = part[:, begins : min(begins + count, used)]
            target[...] = found[:, : target.shape[1]]
