"""One upload of one of wandb's offline folders: W&B's own program, as a child that may fail, hang or crash alone."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from mosaic.contracts.folder import RunFolder
from mosaic.probe.script_env import wandb_variables
from mosaic.sidecar.wandb_connection import WandbProblem, problem_from_output, server_url

NOT_INSTALLED_PROBLEM = WandbProblem(
    "W&B's package is not installed", True, "Install it: pip install 'mosaic-rl[wandb]'."
)
_RETRY_LIMITS = {
    f"WANDB__{part}_{name}": value
    for part in ("GRAPHQL", "FILE_STREAM", "FILE_TRANSFER")
    for name, value in (("RETRY_MAX", "3"), ("RETRY_WAIT_MIN_SECONDS", "1"), ("RETRY_WAIT_MAX_SECONDS", "5"))
}
"""By itself the client tries again for minutes to days. What fails now is tried again when it is asked for."""
_TIMEOUTS = {"WANDB__GRAPHQL_TIMEOUT_SECONDS": "20", "WANDB__FILE_STREAM_TIMEOUT_SECONDS": "30"}
_REMOVED_VARIABLES = re.compile(
    r"WANDB_(?:SERVICE|MODE|MONITOR_GYM|RUN_ID|RESUME|NAME|DISABLED|SILENT|QUIET|_.*)|MOSAIC_TOKEN"
)
"""Of the caller's environment: what would point it at another process, another run, or no server at all."""
_ERROR = re.compile(r"^wandb: (?:ERROR|error)\s+(.*)$", re.MULTILINE)
_URL = re.compile(r"^wandb: .*View run .* at (\S+)\s*$", re.MULTILINE)
_ANSI_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_TAIL_BYTES = 1 << 16


class UploadResult(NamedTuple):
    problem: WandbProblem | None
    url: str | None


def is_wandb_installed() -> bool:
    return importlib.util.find_spec("wandb") is not None


def client_environment(env: Mapping[str, str], folder: RunFolder) -> dict[str, str]:
    """Of a process that talks to W&B for this run."""
    kept = {name: value for name, value in env.items() if not _REMOVED_VARIABLES.fullmatch(name)}
    bounds = {**_RETRY_LIMITS, **_TIMEOUTS, "WANDB_ERROR_REPORTING": "false", "PYTHONUNBUFFERED": "1"}
    # Its address before its folders: the user's own settings file lies where they would point away from.
    return {**kept, **bounds, "WANDB_BASE_URL": server_url(env), **wandb_variables(folder)}


class WandbUpload:
    """`is_live`: follows a folder that is still written to, until its writer says that it is done."""

    def __init__(self, folder: RunFolder, path: Path, env: Mapping[str, str], is_live: bool = False) -> None:
        self.path = path
        self.is_live = is_live
        self._remove_markers()
        self._log: IO[bytes] = open(folder.wandb / f"{path.name}.sync.log", "wb")  # noqa: SIM115 - closed by `_close`
        live = ["--live"] if is_live else []
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "wandb", "beta", "sync", *live, "--no-skip-synced", str(path)],
                cwd=folder.path,
                env=client_environment(env, folder),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError:
            self._log.close()
            raise

    @property
    def url(self) -> str | None:
        """Where the run can be looked at, as soon as W&B has said so."""
        found = _URL.findall(self._log_tail())
        return found[-1] if found else None

    def poll(self) -> UploadResult | None:
        """None while it is under way."""
        if self._process.poll() is None:
            return None
        said, url = self._log_tail(), self.url
        self._close_log()
        return UploadResult(self._find_problem(said), url)

    def kill(self) -> None:
        """With whatever it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close_log()
        self._remove_markers()

    def _find_problem(self, output: str) -> WandbProblem | None:
        """Its exit status is 0 and its mark is set even where it gave up: what counts is that it named no error."""
        errors = _ERROR.findall(output)
        if not errors and self._process.returncode == 0 and self._marker_files("*.wandb.synced"):
            return None
        self._remove_markers()
        last = output.strip().splitlines()[-1:] or [""]
        return problem_from_output(" ".join(errors) if errors else last[0])

    def _marker_files(self, pattern: str) -> list[Path]:
        return list(self.path.glob(pattern))

    def _remove_markers(self) -> None:
        """What a broken upload believes to have sent would be left out of the next one."""
        for mark in (*self._marker_files("*.wandb.synced"), *self._marker_files("*.wandb.syncstate")):
            with suppress(OSError):
                mark.unlink()

    def _log_tail(self) -> str:
        try:
            with open(self._log.name, "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return _ANSI_ESCAPE.sub("", file.read().decode(errors="replace"))
        except OSError:
            return ""

    def _close_log(self) -> None:
        self._log.close()
