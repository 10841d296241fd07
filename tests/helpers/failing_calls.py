"""Makes the n-th write, fsync, rename, open or mmap of a child process fail, with a library that is compiled here."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).with_name("failing_calls.c")
ERRORS = {
    "write": (errno.ENOSPC, errno.EIO),
    "fsync": (errno.EIO, errno.ENOSPC),
    "rename": (errno.ENOSPC, errno.EIO),
    "create": (errno.ENOSPC, errno.EMFILE),
    "open": (errno.EMFILE, errno.EIO),
    "mmap": (errno.ENOMEM,),
}
"""What each kind of call may fail with; `create` opens a file that need not exist."""


class Failure(NamedTuple):
    """Which call of a process fails."""

    call: str
    error: int
    number: int
    """Counted from 1, among the calls of its kind on files below the folder."""
    times: int = 1
    """How many calls in a row fail."""

    def __str__(self) -> str:
        return f"{self.call}-{errno.errorcode[self.error]}-{self.number}"

    def variables(self, program: str, folder: Path, report: Path) -> dict[str, str]:
        """Return environment variables for a process, whose children inherit them.

        They have an effect on programs whose command line contains `program`. Each failed call adds a line to `report`.
        """
        return {
            "LD_PRELOAD": str(failing_library()),
            "FAIL_PROGRAM": program,
            "FAIL_FOLDER": str(folder),
            "FAIL_REPORT": str(report),
            "FAIL_CALL": self.call,
            "FAIL_ERRNO": str(self.error),
            "FAIL_NUMBER": str(self.number),
            "FAIL_COUNT": str(self.times),
        }


@functools.cache
def failing_library() -> Path:
    """Compile the library once; skip the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not os.path.isdir("/proc/self/fd"):
        pytest.skip("Failing calls need a C compiler and /proc.")
    path = Path(tempfile.mkdtemp(prefix="mosaic-test-")) / "failing_calls.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", path, SOURCE, "-ldl"], check=True)
    return path
