"""The daemon's side of runs on a Ray cluster: a child process that is the driver, and what it has reported."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from mosaic.base.checkpoint_files import list_steps
from mosaic.base.formatting import count_noun
from mosaic.contracts.errors import MissingExtra, NotAllowed
from mosaic.contracts.folder import Workspace
from mosaic.contracts.payload import Payload
from mosaic.contracts.states import RunRecord, Stage
from mosaic.contracts.views import ExecutorStatus
from mosaic.trainer.executors import HeldRun, RunChange, StartRequest
from mosaic.trainer.executors.ray_cluster.messages import (
    ActiveAttempts,
    AttemptEnded,
    AttemptLost,
    AttemptNotStarted,
    AttemptPlaced,
    AttemptRefused,
    AttemptReport,
    BridgeMessage,
    ClusterReport,
    ClusterUnavailable,
    DaemonMessage,
    FollowAttempt,
    StartAttempt,
    decode_from_bridge,
    encode_message,
)
from mosaic.trainer.lifecycle import KeeperLost, LifecycleEvent, NeverStarted, NodeLost, Placed, StartFailed
from mosaic.trainer.scheduler import Slots

log = structlog.get_logger("mosaic.trainer.executors.ray_cluster")

RAY_EXECUTOR = "ray"
ADDRESS_VARIABLE = "RAY_ADDRESS"
CONNECT_TIMEOUT_S = 90.0
"""How long a submission waits for the first report of a cluster."""
RESTART_S = 5.0
"""Between the end of a bridge and the start of the next one."""
END_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 20.0
"""How long a run that is to be stopped waits for a cluster that cannot be reached."""
MAX_RUNS = 1000


class RayExecutor:
    name = RAY_EXECUTOR

    def __init__(self, workspace: Workspace, address: str | None, wake: Callable[[], None]) -> None:
        """`address`: of the cluster; None: RAY_ADDRESS, and without it a cluster that is started on this machine."""
        self._workspace = workspace
        self._address = address or os.environ.get(ADDRESS_VARIABLE, "")
        self._wake = wake
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._next_start_at = 0.0
        self._is_closed = False
        self._sent: set[tuple[str, int]] = set()
        """Attempts, by run and number, that were sent to the present bridge."""
        self._has_sent_active = False
        self._reports: dict[tuple[str, int], AttemptReport] = {}
        self._cluster: ClusterReport | None = None
        self._problem = ""
        """Why there is no report of a cluster."""
        self._has_answered = threading.Event()

    # --- submitting and planning

    def check(self, payload: Payload) -> None:
        if importlib.util.find_spec("ray") is None:
            raise MissingExtra("Runs on Ray need the extra 'ray': pip install 'mosaic-rl[ray]'.")
        self._ensure_started()
        self._has_answered.wait(CONNECT_TIMEOUT_S)
        if self._cluster is None:
            raise NotAllowed(f"{self._describe_problem()} The bridge's log: {self._log_path}")

    def _describe_problem(self) -> str:
        where = f"The Ray cluster at {self._address}" if self._address else "A Ray cluster on this machine"
        return f"{where} cannot be used: {self._problem or 'it has not answered yet'}".rstrip(".") + "."

    def capacity(self) -> Slots:
        cluster = self._cluster
        if cluster is None:
            return Slots(runs=0, cpus=0, gpus=0, are_gpus_numbered=False)
        cpus = int(sum(node.cpus for node in cluster.nodes))
        gpus = int(sum(node.gpus for node in cluster.nodes))
        return Slots(runs=MAX_RUNS, cpus=cpus, gpus=gpus, are_gpus_numbered=False)

    def describe_wait(self, queued: Sequence[RunRecord]) -> Mapping[str, str]:
        self._ensure_started()
        cluster = self._cluster
        if cluster is None:
            return {record.run_id: self._describe_problem() for record in queued}
        return {record.run_id: reason for record in queued if (reason := describe_unfit(record, cluster))}

    def status(self) -> ExecutorStatus | None:
        """Return what is known of the cluster; None where it is not used."""
        if self._process is None:
            return None
        cluster = self._cluster
        if cluster is None:
            return ExecutorStatus(name=self.name, address=self._address, problem=self._describe_problem())
        cpus, gpus = sum(node.cpus for node in cluster.nodes), sum(node.gpus for node in cluster.nodes)
        return ExecutorStatus(
            name=self.name,
            address=cluster.address,
            nodes=tuple(node.address for node in cluster.nodes),
            cpus=cpus,
            gpus=gpus,
            busy_cpus=cpus - cluster.free_cpus,
            busy_gpus=gpus - cluster.free_gpus,
        )

    # --- attempts

    def start(self, request: StartRequest) -> None:
        record, payload = request.record, request.payload
        self._sent.add((record.run_id, request.attempt.number))
        self._send(
            StartAttempt(
                run_id=record.run_id,
                attempt=request.attempt.number,
                folder=str(request.folder.path),
                worker=request.worker.id,
                config=json.loads(request.config.read_bytes()),
                is_resume=request.attempt.is_resume,
                cpus=record.cpus,
                gpus=record.gpus,
                max_seconds=payload.schedule.max_duration_seconds,
                memory_mb=payload.resources.memory_mb,
                inbox_offset=request.inbox_offset,
                end_key=request.end_key,
            )
        )

    def find_changes(self, held: Sequence[HeldRun]) -> list[RunChange]:
        keys = {(run.record.run_id, run.attempt.number) for run in held}
        with self._lock:
            self._reports = {key: report for key, report in self._reports.items() if key in keys}
        if held:
            self._ensure_started()
        if self._cluster is not None and not self._has_sent_active:
            self._has_sent_active = True
            self._send(ActiveAttempts(attempts=tuple(sorted(keys))))
        changes = []
        for run in held:
            key = (run.record.run_id, run.attempt.number)
            if key not in self._sent and self._cluster is not None:
                self._sent.add(key)
                self._send(FollowAttempt(run_id=key[0], attempt=key[1], folder=str(run.folder.path)))
            event = to_event(run, self._reports.get(key)) or self._give_up_stopping(run)
            if event is not None:
                changes.append(RunChange(key[0], event))
        return changes

    def _give_up_stopping(self, run: HeldRun) -> LifecycleEvent | None:
        """Return the end of a run that was asked to stop on a cluster that cannot be reached; None for others.

        What may be left of it there is ended when the cluster can be reached again.
        """
        asked_at = run.record.stop_requested_at
        if self._cluster is not None or not self._problem or asked_at is None:
            return None
        if run.record.stage is not Stage.STOPPING or time.time() - asked_at < STOP_TIMEOUT_S:
            return None
        return NodeLost(at=time.time(), reason="The Ray cluster could not be reached", checkpoint_step=None)

    def reap(self, held: Sequence[HeldRun]) -> None:
        """The bridge ends the actors of attempts that are over."""

    # --- the bridge

    @property
    def _log_path(self) -> Path:
        return self._workspace.logs / "ray.log"

    def _ensure_started(self) -> None:
        with self._lock:
            is_alive = self._process is not None and self._process.poll() is None
            if is_alive or self._is_closed or time.monotonic() < self._next_start_at:
                return
            workspace_id = hashlib.sha256(os.path.realpath(self._workspace.root).encode()).hexdigest()[:12]
            # Sockets are in there, whose paths may have 107 characters only.
            temp_dir = Path(tempfile.gettempdir()) / f"mosaic-ray-{os.getuid()}" / workspace_id
            self._has_answered.clear()
            self._cluster = None
            self._sent.clear()
            self._has_sent_active = False
            self._reports.clear()
            command = [sys.executable, "-P", "-m", "mosaic.trainer.executors.ray_cluster.bridge"]
            command += ["--workspace-id", workspace_id, "--temp-dir", str(temp_dir)]
            command += ["--lock", str(self._workspace.trainer / "ray_bridge.lock")]
            self._workspace.logs.mkdir(parents=True, exist_ok=True)
            with open(self._log_path, "ab") as output:
                self._process = subprocess.Popen(
                    [*command, *(["--address", self._address] if self._address else [])],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    cwd="/",
                    start_new_session=True,
                    env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
                )
            log.info("ray_bridge_started", pid=self._process.pid, address=self._address)
            threading.Thread(target=self._read, args=(self._process,), name="ray-bridge", daemon=True).start()

    def _send(self, message: DaemonMessage) -> None:
        """What does not arrive is sent again: the next bridge has to follow the attempt, and finds nothing."""
        with self._lock:
            if self._process is not None and self._process.stdin is not None:
                with suppress(OSError):
                    self._process.stdin.write(encode_message(message))
                    self._process.stdin.flush()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Store what the bridge reports until it ends."""
        assert process.stdout is not None
        for line in process.stdout:
            try:
                self._store(decode_from_bridge(line))
            except ValueError as error:
                log.error("ray_bridge_message_malformed", error=str(error)[:500])
        code = process.wait()
        with self._lock:
            if process is not self._process:
                return  # the next one was started before this thread noticed the end
            self._cluster = None
            self._next_start_at = time.monotonic() + RESTART_S
            self._problem = self._problem or f"the bridge ended with exit code {code}"
            self._has_answered.set()
        if not self._is_closed:
            log.info("ray_bridge_ended", code=code, problem=self._problem)
        self._wake()

    def _store(self, message: BridgeMessage) -> None:
        with self._lock:
            if isinstance(message, ClusterReport):
                is_news = self._cluster is None or self._cluster.nodes != message.nodes
                self._cluster, self._problem = message, ""
                self._has_answered.set()
            elif isinstance(message, ClusterUnavailable):
                is_news, self._problem = True, message.reason
            else:
                is_news = True
                self._reports[message.run_id, message.attempt] = message
        if is_news:
            self._wake()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            process = self._process
        if process is None:
            return
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def describe_unfit(record: RunRecord, cluster: ClusterReport) -> str | None:
    """Return why no node of the cluster can ever take a run; None where one can. Pure."""
    if any(node.cpus >= record.cpus and node.gpus >= record.gpus for node in cluster.nodes):
        return None
    wanted = [count_noun(record.cpus, "CPU")]
    most = [f"{max((node.cpus for node in cluster.nodes), default=0):g}"]
    if record.gpus:
        wanted.append(f"{record.gpus:g} GPU{'s' * (record.gpus > 1)}")
        largest = max(cluster.nodes, key=lambda node: (node.gpus, node.cpus), default=None)
        most = [f"{largest.cpus:g} CPUs and {largest.gpus:g} GPUs"] if largest else ["none"]
    return f"waits for {' and '.join(wanted)}; the largest node has {most[0]}"


def to_event(run: HeldRun, report: AttemptReport | None) -> LifecycleEvent | None:
    """Return what a report means for a run; None where its record shows it already."""
    at = time.time()
    if isinstance(report, AttemptPlaced):
        return None if run.attempt.node else Placed(at=at, node=report.node)
    if isinstance(report, AttemptRefused):
        return StartFailed(at=at, reason=report.reason)
    if isinstance(report, AttemptNotStarted):
        return NeverStarted(at=at)
    if isinstance(report, AttemptLost):
        return NodeLost(at=at, reason=report.reason, checkpoint_step=max(list_steps(run.folder), default=None))
    if isinstance(report, AttemptEnded):
        return KeeperLost(at=at)
    return None
