"""Generates the protobuf stubs of the trainer's service: when the package is built or installed, and by `make stubs`.

The stubs are written next to `trainer.proto` and are not committed; see docs/decisions/0007-generated-files.md.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path(__file__).parents[1] / "src"
PROTO = "mosaic/contracts/trainer.proto"


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
            current = (SOURCE / PROTO).parent / new.name
            if not current.exists() or current.read_bytes() != new.read_bytes():
                new.replace(current)


class StubsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs before hatch collects the files of a wheel, also of an editable one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        update_stubs()


if __name__ == "__main__":
    update_stubs()
