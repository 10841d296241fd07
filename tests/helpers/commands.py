"""The `mosaic` command as a user runs it: a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

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
    done = subprocess.run(
        [MOSAIC, *arguments],
        env={**os.environ, "MOSAIC_VAR": str(workspace.root), "COLUMNS": "100", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)
