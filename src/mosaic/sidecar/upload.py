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
from mosaic.probe.launch import wandb_variables
from mosaic.sidecar.reach import Trouble, from_words, server_url

MISSING = Trouble("W&B's package is not installed", True, "Install it: pip install 'mosaic-rl[wandb]'.")
_BOUNDS = {
    f"WANDB__{part}_{name}": value
    for part in ("GRAPHQL", "FILE_STREAM", "FILE_TRANSFER")
    for name, value in (("RETRY_MAX", "3"), ("RETRY_WAIT_MIN_SECONDS", "1"), ("RETRY_WAIT_MAX_SECONDS", "5"))
}
"""By itself the client tries again for minutes to days. What fails now is tried again when it is asked for."""
_TIMEOUTS = {"WANDB__GRAPHQL_TIMEOUT_SECONDS": "20", "WANDB__FILE_STREAM_TIMEOUT_SECONDS": "30"}
_UNSENT = re.compile(r"WANDB_(?:SERVICE|MODE|MONITOR_GYM|RUN_ID|RESUME|NAME|DISABLED|SILENT|QUIET|_.*)|MOSAIC_TOKEN")
"""Of the caller's environment: what would point it at another process, another run, or no server at all."""
_ERROR = re.compile(r"^wandb: (?:ERROR|error)\s+(.*)$", re.MULTILINE)
_URL = re.compile(r"^wandb: .*View run .* at (\S+)\s*$", re.MULTILINE)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_TAIL_BYTES = 1 << 16


class Result(NamedTuple):
    trouble: Trouble | None
    url: str | None


def is_installed() -> bool:
    return importlib.util.find_spec("wandb") is not None


def client_environment(env: Mapping[str, str], folder: RunFolder) -> dict[str, str]:
    """Of a process that talks to W&B for this run."""
    kept = {name: value for name, value in env.items() if not _UNSENT.fullmatch(name)}
    bounds = {**_BOUNDS, **_TIMEOUTS, "WANDB_ERROR_REPORTING": "false", "PYTHONUNBUFFERED": "1"}
    # Its address before its folders: the user's own settings file lies where they would point away from.
    return {**kept, **bounds, "WANDB_BASE_URL": server_url(env), **wandb_variables(folder)}


class Upload:
    """`is_live`: follows a folder that is still written to, until its writer says that it is done."""

    def __init__(self, folder: RunFolder, path: Path, env: Mapping[str, str], is_live: bool = False) -> None:
        self.path = path
        self.is_live = is_live
        self._forget_state()
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
        found = _URL.findall(self._said())
        return found[-1] if found else None

    def poll(self) -> Result | None:
        """None while it is under way."""
        if self._process.poll() is None:
            return None
        said, url = self._said(), self.url
        self._close()
        return Result(self._judged(said), url)

    def end(self) -> None:
        """With whatever it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close()
        self._forget_state()

    def _judged(self, said: str) -> Trouble | None:
        """Its exit status is 0 and its mark is set even where it gave up: what counts is that it named no error."""
        errors = _ERROR.findall(said)
        if not errors and self._process.returncode == 0 and self._marks("*.wandb.synced"):
            return None
        self._forget_state()
        last = said.strip().splitlines()[-1:] or [""]
        return from_words(" ".join(errors) if errors else last[0])

    def _marks(self, pattern: str) -> list[Path]:
        return list(self.path.glob(pattern))

    def _forget_state(self) -> None:
        """What a broken upload believes to have sent would be left out of the next one."""
        for mark in (*self._marks("*.wandb.synced"), *self._marks("*.wandb.syncstate")):
            with suppress(OSError):
                mark.unlink()

    def _said(self) -> str:
        try:
            with open(self._log.name, "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return _ESCAPE.sub("", file.read().decode(errors="replace"))
        except OSError:
            return ""

    def _close(self) -> None:
        self._log.close()
