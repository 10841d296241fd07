"""Starts a run on this machine, with a keeper that outlives the daemon."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence

import structlog

from mosaic.base.journal import Follower
from mosaic.base.processes import boot_id, identify, is_gone
from mosaic.base.worker_registry import WorkerDescription
from mosaic.contracts.commands import CHECKPOINT_LIMIT_S
from mosaic.contracts.errors import NotAllowed
from mosaic.contracts.events import Exited, WorkerStarted, decode_event
from mosaic.contracts.folder import (
    CALLER_VARIABLE,
    INBOX_OFFSET_VARIABLE,
    TOKEN_VARIABLE,
    RunFolder,
    Workspace,
)
from mosaic.contracts.options import LOCAL_EXECUTOR
from mosaic.contracts.payload import Payload, ProbeParts, ScriptConfig
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.contracts.states import RunRecord
from mosaic.features.tracking.sidecar.sidecar_spec import build_sidecar_spec
from mosaic.keeper.launch_spec import Grace, LaunchSpec, keeper_command
from mosaic.keeper.survivors import kill_survivors
from mosaic.probe.script_env import script_environment
from mosaic.trainer.executors import HeldRun, RunChange, StartRequest
from mosaic.trainer.executors.worker_environment import worker_environment
from mosaic.trainer.gpus import DEVICES_VARIABLE, MpsServers, visible_devices
from mosaic.trainer.lifecycle import KeeperLost, NeverStarted
from mosaic.trainer.scheduler import Slots

log = structlog.get_logger("mosaic.trainer.executors.local")

KEEPER_CLAIM_TIMEOUT_S = 3.0
"""A keeper that was started before a crash reports within this time, or it never started."""
GRACE_S: Grace = {"stop": 8.0, "term": 4.0, "save": CHECKPOINT_LIMIT_S}
"""How long a run has to obey a stop, and then SIGTERM, before its tree is killed: 15 s in all, with room to spare."""
SCRIPT_GRACE_S: Grace = {"stop": 6.0, "term": 5.0, "save": CHECKPOINT_LIMIT_S}
"""The same for a user's script, which does not read the inbox and is sent SIGINT at once."""


def start_keeper(folder: RunFolder, launch: LaunchSpec, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    folder.logs.mkdir(parents=True, exist_ok=True)
    with open(folder.logs / "keeper.log", "ab") as output:
        keeper = subprocess.Popen(
            keeper_command(),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
            pass_fds=pass_fds,
        )
    assert keeper.stdin is not None
    with keeper.stdin as stdin:
        stdin.write(json.dumps(launch).encode())
    return keeper


class LocalExecutor:
    name = LOCAL_EXECUTOR

    def __init__(self, address: str, token: str, script_umask: int, slots: Slots, mps: MpsServers) -> None:
        self._address = address
        self._token = token
        self._script_umask = script_umask
        self._slots = slots
        self._mps = mps
        self._began = time.monotonic()
        self._children: list[subprocess.Popen[bytes]] = []
        self._survivors: dict[str, tuple[int, ...]] = {}
        """By run whose keeper is gone: processes that could not be killed."""

    def check(self, payload: Payload) -> None:
        """Nothing is missing here: the daemon itself runs on this machine."""

    def capacity(self) -> Slots:
        return self._slots

    def describe_wait(self, queued: Sequence[RunRecord]) -> Mapping[str, str]:
        return {}

    def status(self) -> None:
        """Its slots are in the daemon's status."""

    def start(self, request: StartRequest) -> ProcessIdentity:
        """Starts a keeper and returns its identity. Nothing may fork here: gRPC does not support it."""
        worker, folder, payload, environment = request.worker, request.folder, request.payload, request.environment
        if worker.has_own_command:
            argv, cwd, env = _script_command(folder, payload, environment)
        else:
            argv = [*worker.command, "--config", str(request.config), "--grpc", "--grpc-target", self._address]
            argv, cwd = [*argv, "--resume"] if request.attempt.is_resume else argv, str(folder.path)
            env = self._environment(request)
        asked = payload.resources.gpus
        is_chosen_by_caller = asked.requested is asked.device is None and DEVICES_VARIABLE in (environment or {})
        if self._slots.gpus and not is_chosen_by_caller:
            devices = visible_devices()
            env[DEVICES_VARIABLE] = ",".join(devices[gpu] if devices else str(gpu) for gpu in request.attempt.gpus)
            if request.record.group and _shares_gpu(request.record):
                env |= self._mps.start(request.record.group)
        # A caller that passes an environment runs its own program, which does not know MOSAIC.
        is_foreign = environment is not None
        is_attached = payload.metadata.worker.config.get("attached") is True
        probe = _probe_parts(worker, payload)
        is_script = is_foreign and not is_attached
        launch: LaunchSpec = {
            "folder": str(folder.path),
            "argv": argv,
            "cwd": cwd,
            "env": {**env, INBOX_OFFSET_VARIABLE: str(request.inbox_offset)},
            "log_name": worker.log_prefix,
            "limits": {
                "seconds": payload.schedule.max_duration_seconds,
                "memory_mb": payload.resources.memory_mb,
            },
            "inbox_offset": request.inbox_offset,
            "grace_s": SCRIPT_GRACE_S if is_script else GRACE_S,
            "reads_console": is_foreign and probe.console,
            "is_interrupted_first": is_script,
            "end_key": request.end_key,
        }
        launch["source_folders"] = _source_folders(worker, payload)
        if is_foreign:
            launch["umask"] = self._script_umask
        sidecar = build_sidecar_spec(
            folder, payload, request.attempt, environment, request.tracking, is_foreign and probe.wandb
        )
        if sidecar is not None:
            launch["sidecar"] = sidecar
        keeper = start_keeper(folder, launch)
        self._children.append(keeper)
        return identify(keeper.pid)

    def _environment(self, request: StartRequest) -> dict[str, str]:
        """The daemon's, so that the caller's does not affect the worker; its script gets it."""
        caller, threads = request.environment, request.payload.resources.cpus or 1
        return {
            **worker_environment(os.environ, request.folder, request.config, threads),
            TOKEN_VARIABLE: self._token,
            **({} if caller is None else {CALLER_VARIABLE: json.dumps(caller)}),
        }

    def find_changes(self, held: Sequence[HeldRun]) -> list[RunChange]:
        for run_id in self._survivors.keys() - {run.record.run_id for run in held}:
            del self._survivors[run_id]
        changes = []
        for run in held:
            keeper = run.attempt.keeper
            if keeper is None:
                if time.monotonic() - self._began > KEEPER_CLAIM_TIMEOUT_S:
                    changes.append(RunChange(run.record.run_id, NeverStarted(at=time.time())))
            elif is_gone(keeper):
                left = self._kill_survivors(run, keeper)
                is_reboot = keeper["boot_id"] != boot_id()
                lost = KeeperLost(at=time.time(), is_reboot=is_reboot, survivors=left)
                changes.append(RunChange(run.record.run_id, lost))
        return changes

    def _kill_survivors(self, run: HeldRun, keeper: ProcessIdentity) -> tuple[int, ...]:
        """Kill what a keeper left behind, once: before its files are read to their end, as that might be written to."""
        run_id = run.record.run_id
        if run_id not in self._survivors:
            events = [
                decode_event(line.body) for line in Follower(run.folder.keeper, run.attempt.keeper_from).read_rest()
            ]
            worker = next((event.process for event in events if isinstance(event, WorkerStarted)), run.attempt.worker)
            has_exited = any(isinstance(event, Exited) and run.attempt.is_ended_by(event.end_key) for event in events)
            self._survivors[run_id] = () if has_exited else tuple(kill_survivors(keeper, worker))
            if self._survivors[run_id]:
                log.warning("survivors_left", run_id=run_id, pids=self._survivors[run_id])
        return self._survivors[run_id]

    def reap(self, held: Sequence[HeldRun]) -> None:
        """Collects the keepers that have ended, so that they leave no zombie; ends the MPS servers of no active run."""
        self._children = [child for child in self._children if child.poll() is None]
        self._mps.stop_unused(run.record.group for run in held if run.record.group and _shares_gpu(run.record))

    def close(self) -> None:
        """Keepers outlive the daemon."""


def _shares_gpu(record: RunRecord) -> bool:
    return 0 < record.gpus <= 1 and record.runs_per_gpu > 1


def _source_folders(worker: WorkerDescription, payload: Payload) -> list[str]:
    """Where code of the user's is: a script and its working directory, or modules that the config names."""
    imports = payload.metadata.worker.imports
    folders = [] if imports is None else list(imports.folders)
    if worker.has_own_command:
        config = ScriptConfig.model_validate(payload.metadata.worker.config)
        scripts = [os.path.join(config.cwd, word) for word in config.argv[:8] if word.endswith(".py")]
        folders += [config.cwd, *(os.path.dirname(path) for path in scripts if os.path.isfile(path))]
    return list(dict.fromkeys(folders))


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
            "The environment that this program was submitted with is not kept on this machine for this workspace. "
            f"Submit it again: mosaic resubmit {folder.run_id}"
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
