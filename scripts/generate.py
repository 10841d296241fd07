"""Generates what is not committed: when the package is built or installed, and by `make stubs`.

The protobuf stubs of the trainer's service are written next to `trainer.proto`, and the optional library of the CleanRL
worker next to its C file; see docs/decisions/0007-generated-files.md.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path(__file__).parents[1] / "src"
PROTO = "mosaic/contracts/trainer.proto"
C_FILE = SOURCE / "cleanrl_worker" / "environments" / "classic_control.c"
LIBRARY = C_FILE.with_name("libclassic_control.so")  # without the prefix it would hide the Python module
C_FLAGS = ["-std=c99", "-O2", "-fPIC", "-shared", "-ffp-contract=off", "-fno-builtin"]
"""The results must be equal to Python's: no fused multiply-add, and powers by libm instead of products."""


def generate_stubs(target: Path) -> None:
    """Generate the modules and the type stubs of the .proto file into its package under `target`."""
    # protoc looks up the two plugins of mypy-protobuf on the path, which an environment need not be on.
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    outputs = [f"--{kind}_out={target}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    if protoc.main(["protoc", f"-I{SOURCE}", *outputs, PROTO]) != 0:
        sys.exit(f"protoc could not generate the stubs of {SOURCE / PROTO}; its messages are above.")


def update_stubs() -> None:
    """Bring the stubs of the source tree up to date; a file that would not change is not touched."""
    # Next to the target, so that a file is replaced by a rename: a process may be importing it.
    with TemporaryDirectory(dir=SOURCE, prefix=".stubs-") as folder:
        generate_stubs(Path(folder))
        for new in (Path(folder) / PROTO).parent.iterdir():
            _replace_if_changed((SOURCE / PROTO).parent / new.name, new)


def update_library() -> bool:
    """Compile the library of the source tree; return whether it exists, for which a C compiler is needed."""
    command = [*shlex.split(os.environ.get("CC") or "cc"), *C_FLAGS]
    with TemporaryDirectory(dir=SOURCE, prefix=".stubs-") as folder:
        new = Path(folder) / LIBRARY.name
        try:
            done = subprocess.run(
                [*command, str(C_FILE), "-o", str(new), "-lm"], capture_output=True, encoding="utf-8", errors="replace"
            )
            problem = f"{command[0]} ended with exit code {done.returncode}. {done.stderr}" if done.returncode else ""
        except OSError as error:
            problem = str(error)
        if problem:
            LIBRARY.unlink(missing_ok=True)  # of an earlier version of the source
            print(f"{C_FILE.name} is not compiled, so classic control trains more slowly: {problem}", file=sys.stderr)
            return False
        _replace_if_changed(LIBRARY, new)
        return True


def _replace_if_changed(current: Path, new: Path) -> None:
    if not current.exists() or current.read_bytes() != new.read_bytes():
        new.replace(current)


class GenerateHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs before hatch collects the files of a wheel, also of an editable one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        update_stubs()
        if update_library() and version == "standard":
            # The library does not depend on the version of Python.
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data |= {"pure_python": False, "tag": f"py3-none-{platform}"}


if __name__ == "__main__":
    update_stubs()
    update_library()
