"""Starts a run on this machine, with a keeper that outlives the daemon."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from mosaic.common.processes import identify, without_working_directory
from mosaic.contracts.errors import NotAllowed
from mosaic.contracts.folder import (
    CALLER_VARIABLE,
    INBOX_OFFSET_VARIABLE,
    RUN_DIR_VARIABLE,
    TENSORBOARD_VARIABLE,
    TOKEN_VARIABLE,
    RunFolder,
    Workspace,
)
from mosaic.contracts.payload import Payload, ProbeParts, ScriptConfig
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.keeper.launch_spec import LaunchSpec, keeper_command
from mosaic.probe.script_env import script_environment
from mosaic.sidecar.sidecar_spec import build_sidecar_spec
from mosaic.trainer.gpus import DEVICES_VARIABLE, visible_devices
from mosaic.workers import WorkerDescription

GRACE_S = {"stop": 8.0, "term": 4.0}
"""How long a run has to obey a stop, and then SIGTERM, before its tree is killed: 15 s in all, with room to spare."""
SCRIPT_GRACE_S = {"stop": 6.0, "term": 5.0}
"""The same for a user's script, which does not read the inbox and is sent SIGINT at once."""


class LocalExecutor:
    def __init__(self, address: str, token: str, script_umask: int) -> None:
        self._address = address
        self._token = token
        self._script_umask = script_umask
        self._children: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        worker: WorkerDescription,
        folder: RunFolder,
        payload: Payload,
        config: Path,
        *,
        is_resume: bool,
        gpus: tuple[int, ...] | None,
        gpu_variables: Mapping[str, str],
        inbox_offset: int,
        environment: dict[str, str] | None = None,
    ) -> ProcessIdentity:
        """Starts a keeper and returns its identity. Nothing may fork here: gRPC does not support it.

        `gpus` are the indices of those that it may see; None where this machine has none to assign. `gpu_variables` are
        those of a GPU that it shares. `environment` is the caller's own, where it handed one over: a script of the
        caller's runs in it.
        """
        if worker.has_own_command:
            argv, cwd, env = _script_command(folder, payload, environment)
        else:
            argv = [*worker.command, "--config", str(config), "--grpc", "--grpc-target", self._address]
            argv, cwd = [*argv, "--resume"] if is_resume else argv, str(folder.path)
            env = self._environment(folder, payload, environment)
        asked = payload.resources.gpus
        is_chosen_by_caller = asked.requested is asked.device is None and DEVICES_VARIABLE in (environment or {})
        if gpus is not None and not is_chosen_by_caller:
            devices = visible_devices()
            env[DEVICES_VARIABLE] = ",".join(devices[gpu] if devices else str(gpu) for gpu in gpus)
            env |= gpu_variables
        # A caller that passes an environment runs its own program, which does not know MOSAIC.
        is_foreign = environment is not None
        is_attached = payload.metadata.worker.config.get("attached") is True
        probe = _probe_parts(worker, payload)
        is_script = is_foreign and not is_attached
        grace_s = SCRIPT_GRACE_S if is_script else GRACE_S
        launch: LaunchSpec = {
            "folder": str(folder.path),
            "argv": argv,
            "cwd": cwd,
            "env": {**env, INBOX_OFFSET_VARIABLE: str(inbox_offset)},
            "log_name": worker.log_prefix,
            "limits": {
                "seconds": payload.schedule.max_duration_seconds,
                "memory_mb": payload.resources.memory_mb,
            },
            "inbox_offset": inbox_offset,
            "grace_s": {"stop": grace_s["stop"], "term": grace_s["term"]},
            "reads_console": is_foreign and probe.console,
            "is_interrupted_first": is_script,
        }
        if is_foreign:
            launch["umask"] = self._script_umask
        sidecar = build_sidecar_spec(folder, payload, environment, is_foreign and probe.wandb)
        if sidecar is not None:
            launch["sidecar"] = sidecar
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

    def _environment(self, folder: RunFolder, payload: Payload, caller: dict[str, str] | None) -> dict[str, str]:
        """The daemon's, so that the caller's does not affect the worker; its script gets it."""
        threads = str(payload.resources.cpus or 1)
        return {
            **without_working_directory(os.environ),
            # Not all cores: next to another run, spinning barriers would slow both a hundredfold.
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "PYTHONUNBUFFERED": "1",
            RUN_DIR_VARIABLE: str(folder.path),
            TENSORBOARD_VARIABLE: str(folder.tensorboard),
            TOKEN_VARIABLE: self._token,
            **({} if caller is None else {CALLER_VARIABLE: json.dumps(caller)}),
        }

    def reap(self) -> None:
        """Collects the keepers that have ended, so that they leave no zombie."""
        self._children = [child for child in self._children if child.poll() is None]


def _probe_parts(worker: WorkerDescription, payload: Payload) -> ProbeParts:
    """What is recorded of the caller's program, which may also be one that the worker starts."""
    if not worker.has_own_command:
        return ProbeParts()
    return ScriptConfig.model_validate(payload.metadata.worker.config).probe


def _script_command(
    folder: RunFolder, payload: Payload, environment: dict[str, str] | None
) -> tuple[list[str], str, dict[str, str]]:
    """Returns command, folder and environment of a run of the caller's script."""
    if environment is None:
        raise NotAllowed(
            "The trainer was restarted while this run waited, and the environment that it was submitted with is kept "
            f"in memory only. Submit it again: mosaic resubmit {folder.run_id}"
        )
    config = ScriptConfig.model_validate(payload.metadata.worker.config)
    env = script_environment(
        environment,
        folder,
        Workspace.containing(folder).probe,
        config.probe.model_dump(),
        config.cwd,
        total_timesteps=config.total_timesteps,
        threads=payload.resources.cpus or 1,
    )
    return list(config.argv), config.cwd, env
