"""The `mosaic` command as a user runs it: a process of its own, on Linux forked from one that has imported it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from tests.helpers.command_server import can_fork, command_server

from mosaic.contracts.folder import Workspace

PATIENCE_S = 110.0
MOSAIC = str(Path(sys.executable).with_name("mosaic"))


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        (line,) = self.out.splitlines()
        return json.loads(line)


def mosaic(workspace: Workspace, *arguments: str, **variables: str) -> CommandResult:
    argv = [MOSAIC, *arguments]
    environment = {**os.environ, "MOSAIC_VAR": str(workspace.root), "COLUMNS": "100", **variables}
    if can_fork(environment):
        with TemporaryFile("w+", encoding="utf-8") as out, TemporaryFile("w+", encoding="utf-8") as err:
            process = command_server().start(argv, environment, out.fileno(), err.fileno())
            try:
                code = process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            out.seek(0)
            err.seek(0)
            return CommandResult(code, out.read(), err.read())
    done = subprocess.run(
        argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)
