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

from mosaic.run.checkpoints import PENDING_PARTS_DIR, CheckpointPart, hard_link

Array = npt.NDArray[Any]
BLOCK_BYTES = 16 << 20
BLOCK_PREFIX = "replay.block."


class ReplayBlocks:
    """Of arrays [environments, rows, …] that belong together."""

    def __init__(self, checkpoints: Path, arrays: Mapping[str, Array]) -> None:
        self._folder = checkpoints / PENDING_PARTS_DIR
        self._arrays = list(arrays.values())
        row_bytes = sum(part[:, :1].nbytes for part in self._arrays)
        self.block_rows = max(1, BLOCK_BYTES // row_bytes)
        """Of each block, but perhaps the last."""
        self._block_files: dict[int, CheckpointPart] = {}
        """Files that say what the blocks of these numbers hold."""

    def invalidate(self, row: int) -> None:
        """It is about to change, or has just changed."""
        kept = self._block_files.pop(row // self.block_rows, None)
        if kept is not None:
            kept.path.unlink(missing_ok=True)

    def invalidate_all(self) -> None:
        for number in list(self._block_files):
            self.invalidate(number * self.block_rows)

    def write_block(self, row: int) -> None:
        """The block of that row will stay as it is for some time. Where the disk is full, the checkpoint will tell."""
        with contextlib.suppress(OSError):
            self._block_part(row // self.block_rows)

    def parts(self, row_count: int) -> dict[str, CheckpointPart]:
        """All blocks of the first so many rows."""
        return {
            f"{BLOCK_PREFIX}{number}": self._block_part(number) for number in range(-(-row_count // self.block_rows))
        }

    def _block_part(self, number: int) -> CheckpointPart:
        kept = self._block_files.get(number)
        if kept is None:
            kept = self._block_files[number] = self._write_block_file(number)
        return kept

    def _write_block_file(self, number: int) -> CheckpointPart:
        path = self._new_path()
        digest, size = hashlib.sha256(), 0
        try:
            with open(path, "wb") as file:
                for rows in self._block_arrays(number):
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
        return CheckpointPart(path, size, digest.hexdigest())

    def _new_path(self) -> Path:
        """No name is used twice: a file that checkpoints share must stay as it is."""
        self._folder.mkdir(exist_ok=True)
        return self._folder / secrets.token_hex(8)

    def _block_arrays(self, number: int) -> list[Array]:
        return [part[:, number * self.block_rows : (number + 1) * self.block_rows] for part in self._arrays]

    def adopt(self, parts: Mapping[str, CheckpointPart]) -> None:
        """The files of a checkpoint say what the blocks hold now."""
        self.invalidate_all()
        for name, part in parts.items():
            if name.startswith(BLOCK_PREFIX):
                path = self._new_path()
                hard_link(part.path, path)
                self._block_files[int(name.removeprefix(BLOCK_PREFIX))] = part._replace(path=path)


def read_blocks(
    arrays: Mapping[str, Array], parts: Mapping[str, CheckpointPart], block_rows: int, row_count: int, total_rows: int
) -> None:
    """Gets the first `used` rows of the arrays back from blocks of so many rows each, of a buffer of `total` rows."""
    for begins in range(0, row_count, block_rows):
        data = np.fromfile(parts[f"{BLOCK_PREFIX}{begins // block_rows}"].path, np.uint8)
        count = min(block_rows, total_rows - begins)
        for part in arrays.values():
            shape = (part.shape[0], count, *part.shape[2:])
            size = math.prod(shape) * part.itemsize
            found, data = data[:size].view(part.dtype).reshape(shape), data[size:]
            target = part[:, begins : min(begins + count, row_count)]
            target[...] = found[:, : target.shape[1]]
