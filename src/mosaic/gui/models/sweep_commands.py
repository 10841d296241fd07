"""Starts, stops and draws sweeps by the command line: only its processes import Optuna."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QProcess

from mosaic.api.sweeps.sweep_folder import SweepFolder
from mosaic.common.processes import identify
from mosaic.contracts.errors import MosaicError, NotAllowed, StorageFailed
from mosaic.contracts.folder import Workspace
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.trainer_profiles import LOCAL

COMMAND_TIMEOUT_S = 180.0
"""Longer than a sweep that is cancelled may take to end."""
MAX_SHOWN_LINES = 6


class SweepCommands:
    """For the sweeps of a workspace, with the trainer that the window is connected to."""

    def __init__(self, workspace: Workspace, trainer_name: Callable[[], str] = lambda: "") -> None:
        """`trainer_name`: of a trainer on another machine; empty for that of this one."""
        self._workspace = workspace
        self._trainer_name = trainer_name

    @property
    def _trainer(self) -> str:
        return self._trainer_name() or LOCAL

    def folder(self, name: str) -> SweepFolder:
        return SweepFolder(self._workspace.sweeps / name)

    def shown_command(self, name: str) -> str:
        """What a person types to continue a sweep."""
        options = ["--var", str(self._workspace.root)]
        options += ["--trainer", self._trainer] if self._trainer != LOCAL else []
        return shlex.join(["mosaic", "sweep", str(self.folder(name).config), *options])

    def start(self, name: str) -> ProcessIdentity:
        """Start a process that continues a sweep, also when the window is closed."""
        folder = self.folder(name)
        # The shell only opens the files: it is replaced by the program, which keeps its id and has its own session.
        script = 'exec "$@" > "$0" 2>&1 < /dev/null'
        arguments = ["-c", script, str(folder.log), *self._command("sweep", "run", str(folder.config))]
        is_started, pid = QProcess.startDetached("/bin/sh", arguments, str(Path.cwd()))
        if not is_started:
            raise StorageFailed(f"The sweep {name!r} cannot be started: no process can be created.")
        return identify(int(pid))

    def read_log(self, name: str) -> str:
        """Return the last lines of the process that was started last."""
        try:
            lines = self.folder(name).log.read_text(errors="replace", encoding="utf-8").splitlines()
        except OSError:
            return ""
        return "\n".join([line for line in lines if line.strip()][-MAX_SHOWN_LINES:])

    def cancel(self, name: str) -> str:
        """End the process that runs a sweep, and cancel its running trials; for another thread."""
        folder = self.folder(name)
        count = json.loads(self._run("sweep", "run", str(folder.config), "--cancel", "--json"))["cancelled"]
        if not count:
            return f"No trial of {name} was running any more, so none was cancelled."
        trials = "1 running trial is" if count == 1 else f"{count} running trials are"
        return f"{name}: {trials} cancelled. Continue starts others in place of them."

    def plot(self, name: str, path: Path) -> str:
        """Draw a sweep into a file; for another thread."""
        self._run("sweep", "plot", name, "--out", str(path))
        return f"Wrote {path}."

    def _command(self, *arguments: str) -> list[str]:
        options = ["--var", str(self._workspace.root), "--trainer", self._trainer]
        return [sys.executable, "-P", "-m", "mosaic.cli", *arguments, *options]

    def _run(self, *arguments: str) -> str:
        """Return the output of a command; raises with its error message where it fails."""
        try:
            done = subprocess.run(
                self._command(*arguments),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NotAllowed(f"mosaic {' '.join(arguments[:2])} took more than {COMMAND_TIMEOUT_S:.0f} s.") from None
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise MosaicError("\n".join(lines[-MAX_SHOWN_LINES:]) or f"It ended with exit code {done.returncode}.")
        return done.stdout
