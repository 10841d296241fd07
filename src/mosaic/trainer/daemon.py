"""One daemon for one workspace: creates and connects the parts, opens the port, shuts down in order."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when grpc is imported; a port in use needs no message

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from mosaic import __version__
from mosaic.base.certificates import split_address
from mosaic.base.features import feature_modules
from mosaic.base.files import describe_full_disk, file_size, write_json
from mosaic.base.handshake import PORT
from mosaic.base.processes import own_identity
from mosaic.base.store import Index, find_damage, is_damage
from mosaic.base.worker_registry import discover_workers
from mosaic.base.workspace_trust import Origin, find_origin, mark_own, unmark
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadInput, NotAllowed, ReadOnlyWorkspace
from mosaic.contracts.folder import TRUST_VARIABLE, Workspace
from mosaic.contracts.options import LOCAL_EXECUTOR, RunKind
from mosaic.contracts.states import RunRecord, Stage
from mosaic.contracts.trainer_pb2_handlers import Handlers
from mosaic.contracts.views import DaemonStatus, SlotHolder, SlotUsage
from mosaic.keeper.gpus import open_reader
from mosaic.trainer.auth import Credentials, TokenInterceptor
from mosaic.trainer.checkers import Checkers
from mosaic.trainer.event_feed import EventFeed
from mosaic.trainer.executors import Executor
from mosaic.trainer.executors.local import LocalExecutor
from mosaic.trainer.executors.ray_cluster.executor import RayExecutor
from mosaic.trainer.executors.slurm.executor import SlurmExecutor
from mosaic.trainer.executors.slurm.settings import SlurmSettings
from mosaic.trainer.gpu_usage import GpuUsage
from mosaic.trainer.gpus import MpsServers, has_mps, list_gpus
from mosaic.trainer.handlers import files, frames, logs, telemetry
from mosaic.trainer.listeners import REMOTE_OPTIONS, SERVER_OPTIONS, bind_loopback, bind_tls
from mosaic.trainer.metrics_server import MetricsServer, MetricsSnapshot
from mosaic.trainer.records import Records
from mosaic.trainer.recovery import recover
from mosaic.trainer.scheduler import Slots
from mosaic.trainer.server import CallCounter, CallThreads, VerbServer
from mosaic.trainer.services import Services
from mosaic.trainer.supervisor import Supervisor
from mosaic.trainer.tls_identity import TlsIdentity, load_or_create_identity, load_or_create_metrics_identity
from mosaic.trainer.workspace_lock import WorkspaceLock

log = structlog.get_logger("mosaic.trainer.daemon")

HANDLERS: Handlers = {}
for _module in (files, frames, logs, telemetry, *feature_modules("daemon")):
    HANDLERS.update(_module.HANDLERS)

IDLE_TIMEOUT_S = 600.0
MAX_CONCURRENT_RUNS = 1000
RESERVE_BYTES = 1 << 20
CHECK_S = 1.0
"""How often the daemon checks its files, and whether it is still needed."""
WARM_UP_DELAY_S = 2.0
"""Until then the cores belong to the command that has started the daemon; one that needs a checker starts it."""
STOP_GRACE_S = 1.0
"""What open calls have to end."""


class Daemon:
    def __init__(
        self,
        workspace: Workspace,
        slots: Slots,
        port: int = PORT,
        idle_s: float = IDLE_TIMEOUT_S,
        script_umask: int = 0o022,
        metrics_port: int | None = None,
        listen: str | None = None,
        executor: str = LOCAL_EXECUTOR,
        ray_address: str | None = None,
        slurm: SlurmSettings | None = None,
        on_listening: Callable[[str, str], object] = lambda address, fingerprint: None,
        metrics_listen: str | None = None,
    ) -> None:
        """`listen`: where other machines reach it; `on_listening` is called with it and the fingerprint.
        `metrics_listen`: where they read its metrics.

        `executor`: where runs are started that name none.
        """
        self._workspace = workspace
        self._slots = slots
        self._gpu_usage = GpuUsage(slots.gpus, open_reader)
        self._port = port
        self._idle_s = idle_s
        self._script_umask = script_umask
        self._metrics_port = metrics_port
        self._metrics_listen = metrics_listen
        self._metrics: MetricsServer | None = None
        self._listen = listen
        self._default_executor = executor
        self._ray_address = ray_address
        self._slurm = slurm or SlurmSettings()
        self._on_listening = on_listening
        self._tls: TlsIdentity | None = None
        self.credentials = Credentials(secrets.token_hex(32))
        self._is_draining = False
        self._is_ready = False
        """Whether daemon.json invites callers."""
        self._daemon_file_lock = threading.Lock()
        """Held to restore or to withdraw daemon.json: what is withdrawn stays so."""
        self._index_problem: str | None = None
        """What is wrong with the index: it has to be rebuilt."""
        self._is_read_only = False
        self._trust_problem: str | None = None

    def run(self) -> None:
        """Runs until a stop is requested, it has been idle for long, or its workspace is gone."""
        workspace = self._workspace
        workspace.logs.mkdir(parents=True, exist_ok=True)
        self._lock = WorkspaceLock(workspace)
        origin = find_origin(workspace)
        self._is_read_only = origin is Origin.FOREIGN
        log.info("workspace_opened", workspace=str(workspace.root), origin=origin)
        if origin is Origin.NEW:
            for path in workspace.trainer.glob(f"{workspace.index.name}*"):
                path.unlink()  # whoever made it could have put runs in it
            self._mark_own()
        _adjust_reserve(workspace)
        if self._listen:
            self.require_writable()  # its maker would know the key and the token
            self._tls = load_or_create_identity(workspace)
            self.credentials = self.credentials._replace(
                remote_token=self._tls.token, fingerprint=self._tls.fingerprint
            )
        checkers = Checkers(discover_workers(), workspace)
        try:
            self._serve_index(checkers)
            while self._index_problem:
                self._serve_index(checkers)
        finally:
            self._lock.release()  # from here on the next daemon may start
            checkers.close()
        log.info("daemon_ended")

    def _serve_index(self, checkers: Checkers) -> None:
        """Serves until a shutdown is requested, or until the index is found to be damaged."""
        index = Index(self._workspace.index, self._index_problem)
        self._index_problem = None
        try:
            self._records = Records(self._workspace, index, self._is_read_only)
            asyncio.run(self._serve(checkers, recover(self._records)))
        except sqlite3.DatabaseError as error:
            if index.recreate_reason or not is_damage(error):
                raise
            self._index_problem = f"damaged ({error})"
        finally:
            index.close()

    def _check_index(self) -> None:
        problem = find_damage(self._workspace.index)
        if problem and self._is_ready:
            log.warning("index_damaged", problem=problem)
            self._index_problem = problem
            self._request_shutdown()

    async def _serve(self, checkers: Checkers, backlog: list[str]) -> None:
        threads = CallThreads()
        feed = EventFeed(self._records, threads)
        server = grpc.aio.server(
            interceptors=[TokenInterceptor(self.credentials)],
            options=(*SERVER_OPTIONS, *(REMOTE_OPTIONS if self._tls else ())),
        )
        if self._listen and self._tls:
            bind_tls(server, self._listen, self._tls)
        self._address = bind_loopback(server, self._port)
        executors = self._executors = self._create_executors()
        self.supervisor = Supervisor(self._records, executors, backlog)
        self._services = Services(
            self._records, checkers, feed, threads, self, executors, self._default_executor, self.supervisor.wake
        )
        verbs = VerbServer(HANDLERS, self._services, threads, self.require_writable)
        verbs.add_to(server)
        await _add_standard_services(server)
        self._started_at = time.time()
        if self._metrics_listen is not None:
            self.require_writable()  # as for --listen
            host, port = split_address(self._metrics_listen, 0) or ("", 0)
            identity = load_or_create_metrics_identity(self._workspace)
            self._metrics = MetricsServer(port, self._take_snapshot, host, identity)
        elif self._metrics_port is not None:
            self._metrics = MetricsServer(self._metrics_port, self._take_snapshot)
        self._loop = asyncio.get_running_loop()
        self._shutdown_requested = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._shutdown_requested.set)
        await server.start()
        feeding = asyncio.create_task(feed.run())
        beat = threading.Thread(target=self.supervisor.run, name="supervisor")
        beat.start()
        try:
            with suppress(OSError):  # it is written again at the next check
                self._write_daemon_file()
            self._is_ready = True
            self._loop.call_later(WARM_UP_DELAY_S, checkers.warm_up)
            threading.Thread(target=self._check_index, name="index-check", daemon=True).start()
            facts = {"address": self._address, "workspace": str(self._workspace.root), "version": __version__}
            log.info("daemon_started", **facts, listen=self._listen)
            if self._listen and self._tls:
                self._on_listening(self._listen, self._tls.fingerprint)
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._shutdown_requested.wait(), CHECK_S)
                    break
                self._check_files()
                self._check_shutdown(verbs.calls)
        finally:
            self._withdraw()
            if self._metrics is not None:
                self._metrics.close()
            self.supervisor.stop()
            feed.close()
            await server.stop(STOP_GRACE_S)
            await feeding
            threads.close()
            await asyncio.to_thread(beat.join)
            for executor in executors.values():
                await asyncio.to_thread(executor.close)

    def _create_executors(self) -> dict[str, Executor]:
        mps = MpsServers(self._workspace.root)
        local = LocalExecutor(self._address, self.credentials.token, self._script_umask, self._slots, mps)
        ray = RayExecutor(self._workspace, self._ray_address, lambda: self.supervisor.wake())
        slurm = SlurmExecutor(self._workspace, self._slurm, lambda: self.supervisor.wake())
        return {executor.name: executor for executor in (local, ray, slurm)}

    def _write_daemon_file(self) -> None:
        content = {
            "address": self._address,
            "token": self.credentials.token,
            "process": own_identity(),
            "started_at": self._started_at,
            "workspace": os.path.realpath(self._workspace.root),
            "version": __version__,
        }
        if self._tls:
            content |= {"listen": self._listen, "remote_token": self._tls.token, "fingerprint": self._tls.fingerprint}
        write_json(self._workspace.daemon_file, content, mode=0o600)

    def _owns_daemon_file(self) -> bool:
        try:
            return bool(
                json.loads(self._workspace.daemon_file.read_text(encoding="utf-8"))["process"]["pid"] == os.getpid()
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _withdraw(self) -> None:
        """Removes daemon.json, so that callers start the next daemon instead of waiting for this one."""
        with self._daemon_file_lock:
            self._is_ready = False
            if self._owns_daemon_file():
                self._workspace.daemon_file.unlink(missing_ok=True)

    def _check_files(self) -> None:
        """Restores what was deleted: without these files, callers would start a second daemon."""
        if not self._is_ready or not self._lock.has_folder():
            return
        try:
            if self._records.index.restore_if_gone():
                log.warning("index_restored", path=str(self._workspace.index))
            is_restored = self._lock.restore_file()
            with self._daemon_file_lock:
                if self._is_ready and not self._owns_daemon_file():
                    self._write_daemon_file()
                    is_restored = True
        except (OSError, sqlite3.Error) as error:
            log.warning("daemon_files_not_restored", error=str(error))
            return
        if is_restored:
            log.warning("daemon_files_restored", workspace=str(self._workspace.root))

    def _check_shutdown(self, calls: CallCounter) -> None:
        """Requests a shutdown if the workspace is gone, all runs are drained, or the daemon is idle."""
        has_held = any(record.holds_slot for record in self._records.active.values())
        if not self._lock.has_folder():
            log.warning("workspace_gone", workspace=str(self._workspace.root))
        elif self._is_draining and not has_held:
            log.info("daemon_drained")
        elif (
            (self._records.active and not self._is_read_only)  # what waits there would keep the daemon for ever
            or calls.open
            or time.monotonic() - calls.last_ended_at < self._idle_s
        ):
            return
        self._shutdown_requested.set()

    def status(self) -> DaemonStatus:
        active = list(self._records.active.values())
        # Runs on a cluster hold nothing of this machine.
        held = [record for record in active if record.holds_slot and not record.is_attached and record.is_local]
        holding = [record for record in held if record.kind is RunKind.TRAIN or record.gpus]
        return DaemonStatus(
            pid=os.getpid(),
            address=self._address,
            listen=self._listen,
            fingerprint=self._tls.fingerprint if self._tls else None,
            started_at=self._started_at,
            version=__version__,
            workspace=str(self._workspace.root),
            runs=self._records.index.count_by_status(),
            slots=SlotUsage(
                runs=self._slots.runs,
                busy=sum(record.kind is RunKind.TRAIN for record in holding),
                queued=sum(not record.holds_slot for record in active),
                cpus=self._slots.cpus,
                gpus=self._slots.gpus,
                gpu_names=self._slots.gpu_names,
                gpu_samples=self._gpu_usage.newest(),
                has_mps=self._slots.gpus > 0 and has_mps(),
                holders=tuple(_describe_holder(record) for record in holding),
            ),
            executors=tuple(filter(None, (executor.status() for executor in self._executors.values()))),
            default_executor=self._default_executor,
            is_draining=self._is_draining,
            paused=self.supervisor.failure_breaker.pause_reason,
            is_read_only=self._is_read_only,
            trust_problem=self._trust_problem,
            full_disk=describe_full_disk(self._workspace.root),
            rebuilt_index=self._records.rebuilt_index,
            metrics_address=None if self._metrics is None else self._metrics.address,
            log=str(self._workspace.daemon_log),
        )

    def _take_snapshot(self) -> MetricsSnapshot:
        running = {record.run_id: record for record in list(self._records.active.values()) if record.holds_slot}
        return MetricsSnapshot(
            self.status(),
            {run_id: self._records.index.get_progress(run_id).sps or 0.0 for run_id in running},
            {run_id: record.started_at for run_id, record in running.items() if record.started_at is not None},
            dict(self.supervisor.ends),
            shutil.disk_usage(self._workspace.root)[::2],
        )

    def set_cap(self, runs: int) -> None:
        """Sets how many runs may be active at a time. Active runs continue, even above the limit."""
        if not 1 <= runs <= MAX_CONCURRENT_RUNS:
            raise BadInput(f"A cap of {runs} runs is not possible; expected a number from 1 to {MAX_CONCURRENT_RUNS}.")
        cpus = count_cpus()
        with self._records.lock:
            self._slots.runs, self._slots.cpus = runs, max(cpus, runs)
        log.info("cap_set", runs=runs)
        self.supervisor.wake()

    def require_writable(self) -> None:
        if self._is_read_only:
            raise ReadOnlyWorkspace(
                f"Nothing was changed: the workspace {self._workspace.root} was not created by you, so it is "
                "read-only. If you trust what is in it: mosaic workspace trust"
            )

    def set_trusted(self, is_trusted: bool) -> None:
        """Trust the workspace, if its mark cannot be stored until this daemon ends; or make it read-only again."""
        with self._records.lock:
            if is_trusted:
                self._mark_own()
            elif self._workspace.is_named_trusted:
                raise NotAllowed(
                    f"{TRUST_VARIABLE} names {self._workspace.root}. Leave it out, and restart the daemon."
                )
            else:
                unmark(self._workspace)
            self._is_read_only = self._records.is_read_only = not is_trusted
        log.info("workspace_trust_changed", is_trusted=is_trusted)
        self.supervisor.wake()

    def _mark_own(self) -> None:
        self._trust_problem = None
        try:
            mark_own(self._workspace)
        except OSError as error:  # no key can be stored, as in a container
            self._trust_problem = (
                f"Your key for workspaces cannot be stored ({error}), so the next daemon will take this workspace for "
                f"somebody else's. Set {TRUST_VARIABLE}={self._workspace.root}"
            )

    def shut_down(self, cancel_runs: bool, drain: bool) -> None:
        if cancel_runs:
            self.require_writable()
        if drain:
            self._is_draining = self.supervisor.is_draining = True
            return
        if cancel_runs:
            threading.Thread(target=self._cancel_all_and_end, name="cancel-all", daemon=True).start()
        else:
            self._request_shutdown()

    def _request_shutdown(self) -> None:
        """From any thread. Calls that are open, such as the one that requests this, are still answered."""
        self._withdraw()
        self._loop.call_soon_threadsafe(self._shutdown_requested.set)

    def _cancel_all_and_end(self) -> None:
        self.supervisor.is_draining = True
        while self._records.active:
            for run_id, record in list(self._records.active.items()):  # also those submitted or resumed meanwhile
                if record.stage is not Stage.STOPPING:
                    with suppress(NotAllowed):  # it has just ended
                        cancel: Callable[..., object] = HANDLERS["CancelRun"]
                        cancel(self._services, pb.RunRequest(run=run_id))
            time.sleep(0.05)
        self._request_shutdown()


def _describe_holder(record: RunRecord) -> SlotHolder:
    return SlotHolder(
        run_id=record.run_id,
        cpus=record.cpus,
        gpus=record.attempts[-1].gpus if record.attempts else (),
        gpu_share=min(1.0, record.gpus or 1.0),
        group=record.group,
        algo=record.algo,
        env_id=record.env_id,
    )


def _adjust_reserve(workspace: Workspace) -> None:
    """Keep some space for a daemon that starts on a full disk: its address, its log and the index's temporary files."""
    if describe_full_disk(workspace.root):
        workspace.reserve.unlink(missing_ok=True)
    elif file_size(workspace.reserve) < RESERVE_BYTES:
        with suppress(OSError):
            workspace.reserve.write_bytes(bytes(RESERVE_BYTES))


async def _add_standard_services(server: grpc.aio.Server) -> None:
    name = pb.DESCRIPTOR.services_by_name["Trainer"].full_name
    state = health.aio.HealthServicer()  # type: ignore[attr-defined]  # not in the stubs
    for service in ("", name):
        await state.set(service, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(state, server)
    reflection.enable_server_reflection((name, health.SERVICE_NAME, reflection.SERVICE_NAME), server)


def detect_slots(max_runs: int | None = None) -> Slots:
    """As many runs as there are cores by default; a run may request several cores or GPUs."""
    cpus = count_cpus()
    runs = max_runs or cpus
    gpu_names = list_gpus()
    return Slots(runs=runs, cpus=max(cpus, runs), gpus=len(gpu_names), gpu_names=gpu_names)


def count_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def configure_logging(workspace: Workspace) -> None:
    """JSON lines in `logs/trainer.log`; so do messages of gRPC itself."""
    logging.raiseExceptions = False  # a line that cannot be written, as on a full disk, is dropped
    workspace.logs.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(workspace.daemon_log, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
