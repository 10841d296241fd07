"""The daemon's loop: a list of named steps, repeated."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import structlog

from mosaic.base.fastlane import lanes_folder, reap
from mosaic.base.files import describe_full_disk, file_size, is_disk_full_error, write_json
from mosaic.base.formatting import BAD_OUTCOMES
from mosaic.base.processes import boot_id, identify, is_gone
from mosaic.base.store.ingest import JOURNAL, KEEPER, SIDECAR, IngestedEvent
from mosaic.base.worker_registry import get_worker
from mosaic.contracts.commands import STOP
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.events import (
    CheckpointAwaited,
    EnvironmentSeeded,
    Event,
    Exited,
    Finished,
    Hello,
    KeeperStarted,
    Metrics,
    PausedBySignal,
    ProgressReported,
    ResumedBySignal,
    SidecarStarted,
    WarningLogged,
    WorkerNotStarted,
    WorkerPaused,
    WorkerResumed,
    WorkerStarted,
)
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.options import RunKind
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.contracts.states import Attempt, FinalReport, Outcome, RunRecord, Stage
from mosaic.features.tracking.sidecar.sidecar_spec import build_sidecar_spec
from mosaic.trainer import lifecycle as life
from mosaic.trainer.admission import refuse_import_folders
from mosaic.trainer.adoption import Adoption
from mosaic.trainer.executors import Executor, HeldRun, StartRequest
from mosaic.trainer.gpus import GpuPool
from mosaic.trainer.intake import YIELD_S, Intake
from mosaic.trainer.records import Records
from mosaic.trainer.scheduler import FastFailureBreaker, choose, describe_busy

log = structlog.get_logger("mosaic.trainer.supervisor")

TICK_S = 0.03
"""While runs are active: a tick costs a stat for each of their files."""
IDLE_TICK_S = 1.0
"""While none is."""
BACKLOG_S = 0.1
"""Time per tick for runs that have ended."""
PROGRESS_EVENTS = (WorkerStarted, Hello, ProgressReported, Metrics, WorkerResumed, ResumedBySignal)
"""After one of these, a run is not stalled for some time."""
KEEPER_EVENTS = (
    KeeperStarted,
    WorkerStarted,
    WorkerNotStarted,
    PausedBySignal,
    ResumedBySignal,
    CheckpointAwaited,
    Exited,
)
"""What a worker may not report of itself."""
LANE_REAP_WINDOW_S = 30.0


class Supervisor:
    def __init__(self, records: Records, executors: Mapping[str, Executor], backlog: Iterable[str] = ()) -> None:
        """`executors`: by name; a run's record names its own."""
        self._records = records
        self._executors = executors
        self._slot_count = records.index.highest_slot()
        self._wake = threading.Event()
        self._end = threading.Event()
        self.is_draining = False
        self.failure_breaker = FastFailureBreaker()
        self.ends: Counter[tuple[str, str]] = Counter()
        """By outcome and cause: the runs that have ended without success."""
        self._notified_waiting: set[str] = set()
        """Runs that were notified why they wait."""
        self._runs_with_slot: set[str] = set()
        self._reap_until: dict[str, float] = {}
        """Finished runs, and until when to check for lanes that they left in shared memory."""
        self._sidecars: dict[str, ProcessIdentity] = {}
        """By run; sidecars may report after their runs have ended."""
        self._sidecar_children: list[subprocess.Popen[bytes]] = []
        """Those that were not started by keepers: of runs on a cluster."""
        self._intake = Intake(records, self._apply)
        self._adoption = Adoption(records)
        self.backlog = set(backlog)
        """Finished runs whose files are still to be read into a new index."""
        self._has_backlog = False
        self._resolved_runs = os.path.realpath(records.workspace.runs)
        """Where the run folders are, all links resolved: compared at every tick."""
        self.steps: tuple[Callable[[], None], ...] = (
            self.restore_folders,
            self.apply_executor_changes,
            self.follow_runs,
            self.follow_sidecars,
            self.adopt_runs,
            self.ingest_backlog,
            self.start_runs,
            self.reap_executors,
            self.reap_lanes,
        )

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._end.set()
        self._wake.set()

    def run(self) -> None:
        """Runs until stopped. A step that fails is logged, and the others continue."""
        is_disk_full = False
        while not self._end.is_set():
            self._wake.clear()
            self._has_backlog = False
            for step in self.steps:
                try:
                    step()
                except Exception as error:
                    if not is_disk_full_error(error):
                        log.exception("step_failed", step=step.__name__)
                    elif not is_disk_full:
                        log.warning("disk_full", error=str(error))
                    is_disk_full = is_disk_full_error(error)
                    self._end.wait(0.5)
            if not self._has_backlog:
                self._wake.wait(TICK_S if self._records.active else IDLE_TICK_S)

    # --- following

    def restore_folders(self) -> None:
        """Restore the folder of an active run that was deleted or emptied, so that it can still be cancelled."""
        if self._records.is_read_only or not self._records.workspace.runs.is_dir():
            return  # the workspace is somebody else's, or was moved or deleted and is not to be created again
        for run_id, record in list(self._records.active.items()):
            if record.holds_slot and not file_size(self._records.folder(run_id).record):
                with self._records.lock:
                    if run_id in self._records.active:
                        self._records.put(self._records.restore_folder(self._records.active[run_id]))

    def follow_runs(self) -> None:
        for record in list(self._records.active.values()):
            if record.holds_slot:
                self._follow_next(record.run_id)

    def follow_sidecars(self) -> None:
        """An upload may continue after its run, and its events still belong to the run."""
        self._sidecar_children = [child for child in self._sidecar_children if child.poll() is None]
        for run_id, process in list(self._sidecars.items()):
            if run_id in self._records.active:
                continue
            if is_gone(process):  # sidecars are started on this machine only
                del self._sidecars[run_id]
            if self._records.folder(run_id).path.is_dir():
                self._follow_next(run_id)

    def adopt_runs(self) -> None:
        self.backlog.update(self._adoption.adopt_ended_runs())

    def ingest_backlog(self) -> None:
        """Read on in the files of finished runs whose index was rebuilt; not for long, as active runs come first."""
        deadline = time.monotonic() + BACKLOG_S
        for run_id in list(self.backlog):
            if time.monotonic() > deadline:
                self._has_backlog = True
                return
            if not self._follow_next(run_id):
                self.backlog.discard(run_id)
                self._records.mark_read(self._records.get(run_id))

    def _follow_next(self, run_id: str) -> bool:
        """Ingest the next events of a run; returns whether there may be more, as there is after any."""
        with self._records.lock:
            has_more = self._intake.read_next(run_id)
        if has_more:
            self._records.notify_watchers()
            self._has_backlog = True
            self._end.wait(YIELD_S)  # others may want the lock
        return has_more

    def _apply(self, folder: RunFolder, source: str, lines: Iterable[IngestedEvent]) -> None:
        for event, begin in lines:
            if isinstance(event, PROGRESS_EVENTS) and folder.run_id in self._records.active:
                self._records.progress_times[folder.run_id] = time.monotonic()
            if isinstance(event, SidecarStarted) and source == KEEPER:
                self._sidecars[folder.run_id] = event.process
            record = self._records.active.get(folder.run_id)
            if record is None or not record.attempts:
                continue
            is_further = source not in (KEEPER, JOURNAL)
            if is_further and (source == SIDECAR or not isinstance(event, (EnvironmentSeeded, WarningLogged))):
                continue  # further processes of a run report telemetry, but not the run's state
            if is_further and isinstance(event, EnvironmentSeeded) and event.env:
                continue  # of the environments of a vector, the first has the seed that the script named
            attempt = record.attempts[-1]
            if begin < {KEEPER: attempt.keeper_from, JOURNAL: attempt.journal_from}.get(source, 0):
                continue  # of an earlier attempt
            is_forged = source != KEEPER and isinstance(event, KEEPER_EVENTS)
            if isinstance(event, (Exited, WorkerNotStarted)):
                is_forged |= not attempt.is_ended_by(event.end_key)
            if is_forged:
                text = f"An event {event.kind!r} in {source}.jsonl was not written by the run's keeper; it was ignored."
                self._advance(folder.run_id, life.WarningReported(at=event.at, text=text))
                continue
            for change in self._lifecycle_events(record, folder, event):
                self._advance(folder.run_id, change)

    def _lifecycle_events(self, record: RunRecord, folder: RunFolder, event: Event) -> list[life.LifecycleEvent]:
        make = _LIFECYCLE_EVENTS.get(type(event))
        if make is None:
            return []
        worker = get_worker(record.worker)
        changes = [make(event, str(folder.stderr_log(worker.log_prefix)))]
        if worker.has_own_command and not record.is_attached and isinstance(event, WorkerStarted):
            # A script need not send a handshake: any program may be run this way.
            changes.append(life.HandshakeReceived(at=event.at, capabilities=(), resumed_from=None))
        return changes

    def _delete_unwanted_logs(self, record: RunRecord) -> None:
        """Deletes logs that are kept only for failures."""
        if record.outcome is Outcome.SUCCEEDED:
            with suppress(OSError, MosaicError):  # its config may have been deleted
                if not self._records.read_payload(record.run_id).artifacts.persist_logs:
                    shutil.rmtree(self._records.folder(record.run_id).logs, ignore_errors=True)

    # --- what executors report

    def apply_executor_changes(self) -> None:
        """Find runs that were moved or copied with their workspace; apply what executors know beyond files."""
        for run in self._held_runs():
            here = self._resolved_folder(run.record.run_id)
            if run.attempt.keeper and run.attempt.folder not in ("", here):
                event = _explain_folder(run, run.attempt.keeper, here)
                if isinstance(event, life.Moved) or not self._follow_next(run.record.run_id):
                    self._advance(run.record.run_id, event)
        if self._records.is_read_only:
            return  # processes and jobs that a foreign record names are left alone
        for name, executor in self._executors.items():
            for run_id, event in executor.find_changes(self._held_runs(name)):
                # First what was written before it happened, in parts; the change is returned again until it is applied.
                # A place is known before anything is written there.
                has_more = not isinstance(event, life.Placed) and self._follow_next(run_id)
                if not has_more and run_id in self._records.active:
                    self._advance(run_id, event)

    def reap_executors(self) -> None:
        for name, executor in self._executors.items():
            if not self._records.is_read_only:
                executor.reap(self._held_runs(name))

    def _held_runs(self, executor: str | None = None) -> list[HeldRun]:
        """Return the runs that hold a slot of an executor; None: of any."""
        return [
            HeldRun(record, self._records.folder(record.run_id))
            for record in list(self._records.active.values())
            if record.holds_slot and executor in (None, record.attempts[-1].executor)
        ]

    def _resolved_folder(self, run_id: str) -> str:
        return f"{self._resolved_runs}/{run_id}"

    def _advance(self, run_id: str, event: life.LifecycleEvent) -> None:
        with self._records.lock:
            record = self._records.get(run_id)
            changed = life.advance(record, event)
            if changed == record:
                return
            if not changed.is_active and not self._records.is_read_only:
                self._delete_unwanted_logs(changed)
                if changed.is_attached:
                    with suppress(OSError):  # for processes of its program that are left
                        self._records.send_command(run_id, STOP)
            is_refused = changed.stage is Stage.STOPPING and record.stage is not Stage.STOPPING  # its handshake
            if is_refused and not self._records.is_read_only:
                self._records.send_command(run_id, STOP)
            self._records.put(changed)
            if changed.outcome in BAD_OUTCOMES and not changed.is_active:
                self.ends[str(changed.outcome), life.failure_cause(event)] += 1
            if changed.is_active or changed.is_attached:
                return
            if changed.attempts and changed.attempts[-1].node and not self._records.is_read_only:
                self._start_sidecar(changed)
            queued = [other for other in self._records.active.values() if other.stage is Stage.QUEUED]
            if self.failure_breaker.record_end(changed, queued):
                log.warning("queue_paused", run_id=run_id, reason=self.failure_breaker.pause_reason)

    def _start_sidecar(self, record: RunRecord) -> None:
        """Record and upload a run that has ended on a cluster; elsewhere its keeper has started the sidecar."""
        folder, tracking = self._records.folder(record.run_id), self._records.tracking.get(record.run_id)
        try:
            payload = self._records.read_payload(record.run_id)
            sidecar = build_sidecar_spec(folder, payload, record.attempts[-1], tracking=tracking)
            if sidecar is None:
                return
            folder.logs.mkdir(exist_ok=True)
            with open(folder.logs / f"{sidecar['log_name']}.log", "ab") as output:
                child = subprocess.Popen(
                    sidecar["argv"],
                    cwd=sidecar["cwd"],
                    env=sidecar["env"],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except (OSError, MosaicError) as error:
            log.warning("sidecar_not_started", run_id=record.run_id, error=str(error))
            return
        self._sidecar_children.append(child)
        self._sidecars[record.run_id] = identify(child.pid)

    # --- cleaning up

    def reap_lanes(self) -> None:
        """Remove the lanes of runs that were killed; their last processes may still be exiting."""
        held = {run_id for run_id, record in list(self._records.active.items()) if record.holds_slot}
        now = time.monotonic()
        self._reap_until.update(dict.fromkeys(self._runs_with_slot - held, now + LANE_REAP_WINDOW_S))
        self._runs_with_slot = held
        for run_id, until in list(self._reap_until.items()):
            folder = lanes_folder(self._records.folder(run_id).path)
            if reap(folder):
                log.info("lanes_reaped", run_id=run_id)
            if run_id in held or now > until or not os.path.isdir(folder):
                del self._reap_until[run_id]

    # --- starting

    def start_runs(self) -> None:
        if self.is_draining or self._records.is_read_only:
            reason = "the daemon starts no further run" if self.is_draining else "this workspace is read-only"
            self._records.queue_notes = {(name, kind): reason for name in self._executors for kind in RunKind}
            return
        with self._records.lock:
            active = list(self._records.active.values())
            queued = [record for record in active if record.stage is Stage.QUEUED]
            waiting = [record for record in queued if not record.is_attached]
            is_held = bool(waiting) and self._is_queue_held(waiting)
            if is_held:
                queued = [record for record in queued if record.is_attached]
            is_disk_full = bool(queued) and describe_full_disk(self._records.workspace.root) is not None
            reason = "the disk is full" if is_disk_full else "the queue is paused" if is_held else ""
            chosen = [
                run_id
                for name in self._executors
                for run_id in self._choose(name, active, [] if is_disk_full else queued, reason)
            ]
        for run_id in chosen:
            with self._records.lock:
                record = self._records.active.get(run_id)
                if record is not None and record.stage is Stage.QUEUED:
                    self._start(record)

    def _choose(self, name: str, active: list[RunRecord], queued: list[RunRecord], reason: str) -> list[str]:
        """Return the runs that an executor starts now; note why the others wait, unless there is a `reason` already."""
        executor, slots = self._executors[name], self._executors[name].capacity()
        queued = [record for record in queued if record.executor == name]
        running = [record for record in active if record.holds_slot and record.attempts[-1].executor == name]
        waits = executor.describe_wait(queued) if queued else {}
        self._records.wait_reasons[name] = waits
        queued = [record for record in queued if record.run_id not in waits]
        chosen = choose(queued, running, slots)
        running += [record for record in queued if record.run_id in chosen]
        left = [record for record in queued if record.run_id not in chosen]
        for kind in RunKind:
            busy = describe_busy(running, slots, any(one.kind is kind for one in left), kind)
            self._records.queue_notes[name, kind] = reason or busy
        return chosen

    def _is_queue_held(self, queued: list[RunRecord]) -> bool:
        """Whether the queue is paused; each waiting run is notified once."""
        if not self.failure_breaker.blocks_queue(queued):
            self._notified_waiting.clear()
            return False
        news = [record.run_id for record in queued if record.run_id not in self._notified_waiting]
        if news:
            self._notified_waiting.update(news)
            with self._records.index.transaction():
                for run_id in news:
                    self._records.index.add_daemon_event(
                        run_id, "warning", text=self.failure_breaker.pause_reason, code="queue_paused"
                    )
            self._records.notify_watchers()
        return True

    def continue_queue(self) -> None:
        with self._records.lock:
            self.failure_breaker.clear()
        self.wake()

    def _start(self, record: RunRecord) -> None:
        """Stored before and after: a crash in between leaves a queued run or a keeper that is recognized."""
        folder = self._records.folder(record.run_id)
        self._slot_count += 1
        end_key = secrets.token_hex(16)
        attempt = Attempt(
            number=len(record.attempts) + 1,
            slot=self._slot_count,
            started_at=time.time(),
            is_resume=record.is_resume,
            executor=record.executor,
            gpus=self._assign_gpus(record),
            journal_from=file_size(folder.journal),
            keeper_from=file_size(folder.keeper),
            folder=self._resolved_folder(record.run_id),
            end_key_sha256=hashlib.sha256(end_key.encode()).hexdigest(),
        )
        try:
            payload = self._records.read_payload(record.run_id)
            refuse_import_folders(payload, self._records.workspace.trainer)
            worker = get_worker(record.worker)
            config = self._records.workspace.worker_config(record.run_id, attempt.slot)
            settings = {**payload.metadata.worker.config, "run_id": record.run_id}
            write_json(config, payload.with_worker(config=settings).to_json())
            starting = life.advance(record, life.Dispatched(at=attempt.started_at, attempt=attempt))
            self._records.put(starting)
            request = StartRequest(
                record=starting,
                worker=worker,
                folder=folder,
                payload=payload,
                config=config,
                inbox_offset=file_size(folder.inbox),
                end_key=end_key,
                environment=self._records.environments.get(record.run_id),
                tracking=self._records.tracking.get(record.run_id),
            )
            keeper = self._executors[record.executor].start(request)
        except (OSError, MosaicError, ValueError) as error:
            log.warning("run_not_started", run_id=record.run_id, error=str(error))
            self._advance(record.run_id, life.StartFailed(at=time.time(), reason=str(error)))
            return
        if keeper is None:
            return  # its file will name it
        # In memory first: a keeper that is not recorded, as on a full disk, would be started a second time.
        started = life.advance(starting, life.KeeperUp(at=time.time(), keeper=keeper))
        self._records.cache(started)
        self._records.put(started)

    def _assign_gpus(self, record: RunRecord) -> tuple[int, ...]:
        slots = self._executors[record.executor].capacity()
        running = [run.record for run in self._held_runs(record.executor)]
        return GpuPool(slots.gpus, running).take(record) or () if slots.are_gpus_numbered else ()


def _explain_folder(run: HeldRun, keeper: ProcessIdentity, here: str) -> life.LifecycleEvent:
    """Return why an attempt was started in another folder: its workspace was moved, or this is a copy."""
    original, at = run.attempt.folder, time.time()
    is_alive_here = run.record.is_local and not is_gone(keeper)
    with suppress(OSError):
        if is_alive_here and os.path.samefile(f"/proc/{keeper['pid']}/cwd", here):
            return life.Moved(at=at, folder=here)
    if os.path.isdir(original):
        return life.KeeperLost(at=at, original=original)
    if is_alive_here:
        text = (
            f"Its workspace was moved from {original} in a way that its processes (keeper {keeper['pid']}) cannot "
            f"follow, as to another file system: what they write is lost. End them: mosaic cancel {run.record.run_id}"
        )
        return life.WarningReported(at=at, text=text)
    if run.record.is_local and keeper["boot_id"] == boot_id():
        return life.Moved(at=at, folder=here)
    return life.KeeperLost(at=at, reason=f"It ran in {original}, and its end is not recorded here.")


_LIFECYCLE_EVENTS: dict[type[Event], Callable[[Any, str], life.LifecycleEvent]] = {
    Hello: lambda event, _: life.HandshakeReceived(
        at=event.at,
        capabilities=event.capabilities,
        resumed_from=event.resumed_from,
        version=event.version or None,
        contract=event.contract,
    ),
    EnvironmentSeeded: lambda event, _: life.EnvironmentReported(
        at=event.at, env_id=event.env_id, seed=event.seed if isinstance(event.seed, int) else None
    ),
    WarningLogged: lambda event, _: life.WarningReported(at=event.at, text=event.text, is_withdrawn=event.is_withdrawn),
    WorkerPaused: lambda event, _: life.Paused(at=event.at),
    WorkerResumed: lambda event, _: life.Unpaused(at=event.at),
    Finished: lambda event, _: life.FinishReported(
        at=event.at, final_report=FinalReport(outcome=event.outcome, reason=event.reason)
    ),
    KeeperStarted: lambda event, _: life.KeeperUp(at=event.at, keeper=event.process),
    WorkerStarted: lambda event, _: life.WorkerUp(at=event.at, worker=event.process),
    WorkerNotStarted: lambda event, _: life.StartFailed(at=event.at, reason=event.reason),
    PausedBySignal: lambda event, _: life.Paused(at=event.at),
    ResumedBySignal: lambda event, _: life.Unpaused(at=event.at),
    CheckpointAwaited: lambda event, _: life.CheckpointWaited(at=event.at, limit_s=event.limit_s),
    Exited: lambda event, log_path: life.Ended(at=event.at, exited=event, log_path=log_path),
}
"""By the type of an event in a run's files: what it means for the run. The second argument is the path of the log."""
