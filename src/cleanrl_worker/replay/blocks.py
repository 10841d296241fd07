"""Block files of a large replay buffer, so that a checkpoint does not have to write all rows.

A block is written to a file as soon as it is full, during training; a checkpoint links the files and writes only the
blocks that have changed since. Saving therefore takes about the same time for any buffer size, and a run that has to
stop is done quickly.
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

from mosaic.base.checkpoint_files import hard_link
from mosaic.contracts.folder import PENDING_PARTS_DIR, REPLAY_PREFIX
from mosaic.worker.checkpoints import CheckpointPart

Array = npt.NDArray[Any]
BLOCK_BYTES = 16 << 20
BLOCK_PREFIX = f"{REPLAY_PREFIX}block."


class ReplayBlocks:
    """Block files of arrays [environments, rows, …] that belong together."""

    def __init__(self, checkpoints: Path, arrays: Mapping[str, Array]) -> None:
        self._folder = checkpoints / PENDING_PARTS_DIR
        self._arrays = list(arrays.values())
        row_bytes = sum(part[:, :1].nbytes for part in self._arrays)
        self.block_rows = max(1, BLOCK_BYTES // row_bytes)
        """Rows per block; the last one may have fewer."""
        self._block_files: dict[int, CheckpointPart] = {}
        """Up-to-date files by block number."""

    def invalidate(self, row: int) -> None:
        """Discard the file of the row's block, because the row changes."""
        part = self._block_files.pop(row // self.block_rows, None)
        if part is not None:
            part.path.unlink(missing_ok=True)

    def invalidate_all(self) -> None:
        for number in list(self._block_files):
            self.invalidate(number * self.block_rows)

    def write_block(self, row: int) -> None:
        """Write the row's block, which will not change for some time. The next checkpoint reports a full disk."""
        with contextlib.suppress(OSError):
            self._block_part(row // self.block_rows)

    def parts(self, row_count: int) -> dict[str, CheckpointPart]:
        """Return the files of all blocks of the first `row_count` rows, writing those that are missing."""
        return {
            f"{BLOCK_PREFIX}{number}": self._block_part(number) for number in range(-(-row_count // self.block_rows))
        }

    def _block_part(self, number: int) -> CheckpointPart:
        part = self._block_files.get(number)
        if part is None:
            part = self._block_files[number] = self._write_block_file(number)
        return part

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
                    # Start writing to disk now, so that a checkpoint's fsync has little left to do.
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return CheckpointPart(path, size, digest.hexdigest())

    def _new_path(self) -> Path:
        """Return a new path. Names are never reused, because checkpoints share these files."""
        self._folder.mkdir(exist_ok=True)
        return self._folder / secrets.token_hex(8)

    def _block_arrays(self, number: int) -> list[Array]:
        return [part[:, number * self.block_rows : (number + 1) * self.block_rows] for part in self._arrays]

    def adopt(self, parts: Mapping[str, CheckpointPart]) -> None:
        """Use the files of a checkpoint as the current block files."""
        self.invalidate_all()
        for name, part in parts.items():
            if name.startswith(BLOCK_PREFIX):
                path = self._new_path()
                hard_link(part.path, path)
                self._block_files[int(name.removeprefix(BLOCK_PREFIX))] = part._replace(path=path)


def read_blocks(
    arrays: Mapping[str, Array], parts: Mapping[str, CheckpointPart], block_rows: int, row_count: int, total_rows: int
) -> None:
    """Read the first `row_count` rows of the arrays from block files of a buffer with `total_rows` rows."""
    for first_row in range(0, row_count, block_rows):
        data = np.fromfile(parts[f"{BLOCK_PREFIX}{first_row // block_rows}"].path, np.uint8)
        count = min(block_rows, total_rows - first_row)
        for part in arrays.values():
            shape = (part.shape[0], count, *part.shape[2:])
            size = math.prod(shape) * part.itemsize
            rows, data = data[:size].view(part.dtype).reshape(shape), data[size:]
            target = part[:, first_row : min(first_row + count, row_count)]
            target[...] = rows[:, : target.shape[1]]
