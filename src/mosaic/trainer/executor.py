"""Starting a run on this machine: a keeper of its own, which outlives us."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from mosaic.contracts.folder import INBOX_OFFSET_VARIABLE, RUN_DIR_VARIABLE, RunFolder
from mosaic.contracts.payload import Payload
from mosaic.contracts.processes import ProcessIdentity, identify
from mosaic.keeper.launch import Launch, keeper_command
from mosaic.plugins import WorkerDescription

TOKEN_VARIABLE = "MOSAIC_TOKEN"
GRACE_S = {"stop": 8.0, "term": 4.0}
"""How long a run has to obey a stop, and then SIGTERM, before its tree is killed: 15 s in all, with room to spare."""


class LocalExecutor:
    def __init__(self, address: str, token: str) -> None:
        self._address = address
        self._token = token
        self._children: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        worker: WorkerDescription,
        folder: RunFolder,
        payload: Payload,
        config: Path,
        *,
        is_resume: bool,
        gpus: tuple[int, ...],
        inbox_offset: int,
    ) -> ProcessIdentity:
        """The keeper's identity. Never forks from here: gRPC does not survive it."""
        argv = [*worker.command, "--config", str(config), "--grpc", "--grpc-target", self._address]
        launch: Launch = {
            "folder": str(folder.path),
            "argv": [*argv, "--resume"] if is_resume else argv,
            "cwd": str(folder.path),
            "env": {**self._environment(folder, payload, gpus), INBOX_OFFSET_VARIABLE: str(inbox_offset)},
            "log_name": worker.log,
            "limits": {
                "seconds": payload.schedule.max_duration_seconds,
                "memory_mb": payload.resources.memory_mb,
            },
            "inbox_offset": inbox_offset,
            "grace_s": {"stop": GRACE_S["stop"], "term": GRACE_S["term"]},
        }
        folder.logs.mkdir(parents=True, exist_ok=True)
        with open(folder.logs / "keeper.log", "ab") as output:
            keeper = subprocess.Popen(
                keeper_command(),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd="/",
            )
        identity = identify(keeper.pid)
        self._children.append(keeper)
        assert keeper.stdin is not None
        with keeper.stdin as stdin:
            stdin.write(json.dumps(launch).encode())
        return identity

    def _environment(self, folder: RunFolder, payload: Payload, gpus: tuple[int, ...]) -> dict[str, str]:
        threads = str(payload.resources.cpus or 1)
        environment = {
            **os.environ,
            # All cores for one run is a trap: beside another one, spinning barriers slow both a hundredfold.
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "PYTHONUNBUFFERED": "1",
            RUN_DIR_VARIABLE: str(folder.path),
            TOKEN_VARIABLE: self._token,
        }
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        return environment

    def reap(self) -> None:
        """Collects the keepers that have ended, so that they leave no zombie."""
        self._children = [child for child in self._children if child.poll() is None]
