"""The records of all runs: in memory while they are active, in record.json always, in the index for queries."""

from __future__ import annotations

import difflib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
from ulid import ULID

from mosaic.base.files import file_size, write_text
from mosaic.base.formatting import run_description
from mosaic.base.journal import Follower, Journal
from mosaic.base.processes import is_alive
from mosaic.base.store import Index, RunProgress
from mosaic.contracts.errors import NotAllowed, UnknownName, similar_names
from mosaic.contracts.folder import RECORDING_NAME, RunFolder, Workspace, read_regular_file
from mosaic.contracts.options import RunKind
from mosaic.contracts.payload import Payload
from mosaic.contracts.states import MAX_PROBLEM_LENGTH, RunRecord, Stage, id_time_ms
from mosaic.contracts.views import HardwareSample, RunView
from mosaic.trainer.admission import mark_imported
from mosaic.trainer.caller_environments import CallerEnvironments
from mosaic.trainer.fair_lock import FairLock
from mosaic.trainer.scheduler import start_order

log = structlog.get_logger("mosaic.trainer.records")

STALLED_AFTER_S = 120.0
"""A running run without progress for this long is shown as stalled. It is not killed."""

MAX_CANDIDATES = 8
"""Runs that an error lists where a reference fits several."""
MAX_WRITES = 10
WRITE_AGAIN_AFTER_S = 0.01

_BLANK_VIEW = RunView.placeholder("")

UNREAD = 0
"""Stands for the modification time of a record whose run's files are still to be read into the index."""


class Records:
    """Changes happen under `lock`; waiting never does."""

    def __init__(self, workspace: Workspace, index: Index, is_read_only: bool = False) -> None:
        """`is_read_only`: it is somebody else's workspace, so all its runs count as imported and none is started."""
        self.workspace = workspace
        self.index = index
        self.is_read_only = is_read_only
        self.lock = FairLock()
        self._inboxes: dict[str, Journal] = {}
        """Of active runs that were sent a command."""
        self._inbox_lock = threading.Lock()
        self.on_change: Callable[[], object] = lambda: None
        """Called, from any thread, when there is a new event for watchers."""
        self.rebuilt_index: str | None = None
        """Why the index was rebuilt, and from how many folders."""
        self.queue_notes: dict[tuple[str, RunKind], str] = {}
        """By executor and kind of run: why its queue waits, as of the supervisor's last look: `2 of 2 slots busy`."""
        self.wait_reasons: dict[str, Mapping[str, str]] = {}
        """By executor and run: why that run waits, where the reason is its own."""
        self.active: dict[str, RunRecord] = {}
        self.payloads: dict[str, Payload] = {}
        """Those of active runs, as they were accepted."""
        self.environments = CallerEnvironments(workspace)
        self.tracking = CallerEnvironments(workspace, "tracking")
        """What the callers of tracked and uploaded runs set for W&B and the Hub, also for further attempts."""
        self.progress_times: dict[str, float] = {}
        """By active run: when it last made progress, on the monotonic clock, which does not jump."""
        self._created_at = time.monotonic()
        issued = [run_id for run_id in index.modification_times() if id_time_ms(run_id) is not None]
        self._last_id = int(ULID.from_str(max(issued))) if issued else 0

    def new_id(self) -> str:
        """A ULID that sorts after all earlier ones, even when the clock was set back."""
        self._last_id = max(int(ULID()), self._last_id + 1)
        return str(ULID.from_int(self._last_id))

    def queue_time(self, after: float = 0.0) -> float:
        """Now, but later than `after` and than every run in the queue entered it: the order survives clock changes."""
        queued = [record.queued_at for record in self.active.values() if record.stage is Stage.QUEUED]
        return max(time.time(), max(queued, default=0.0) + 0.001, after + 0.001)

    def folder(self, run_id: str) -> RunFolder:
        return self.workspace.run(run_id)

    def put(self, record: RunRecord) -> None:
        """Stores a record: first in the folder, which is the truth, then in the index."""
        known = self.active.get(record.run_id) or self.index.get_record(record.run_id)
        record, modified_ns = self._write(record)
        with self.index.transaction():
            self.index.save(record, modified_ns)
            message = record.history[-1].message if record.history else ""
            self.index.add_daemon_event(
                record.run_id,
                "record",
                stage=record.stage,
                outcome=record.outcome,
                reason=record.reason,
                message=message,
            )
        self.cache(record)
        if known is None or known.stage is not record.stage:
            log.info("run_changed", run_id=record.run_id, stage=record.stage, outcome=record.outcome, message=message)
        self.notify_watchers()

    def _write(self, record: RunRecord) -> tuple[RunRecord, int]:
        """Write record.json; return the record as written, and the file's modification time.

        A script may be deleting the folder at this moment: it is restored, as often as it takes the script to finish.
        """
        path = self.folder(record.run_id).record
        writes_left = MAX_WRITES
        while True:
            try:
                if not path.parent.is_dir():
                    record = self.restore_folder(record)
                if record.problem is not None:
                    self.set_record_aside(self.folder(record.run_id))
                write_text(path, record.model_dump_json(indent=2) + "\n", is_durable=True)
                return record, path.stat().st_mtime_ns
            except FileNotFoundError:
                writes_left -= 1
                if not writes_left:
                    raise
                time.sleep(WRITE_AGAIN_AFTER_S)

    def set_record_aside(self, folder: RunFolder) -> Path | None:
        """Keep a record.json under another name of which this version cannot read all; return its new path."""
        try:
            RunRecord.model_validate_json(folder.record.read_bytes())
        except ValueError:
            return folder.record.rename(folder.record.with_name(f"{folder.record.name}.damaged-{time.time_ns()}"))
        except FileNotFoundError:
            pass
        return None

    def restore_folder(self, record: RunRecord) -> RunRecord:
        """Create what the daemon writes in a run's folder after it was deleted; return the record that says so.

        The keeper and the worker create their files again themselves, and so report how the run ends.
        """
        folder = self.folder(record.run_id)
        for path in (folder.path, folder.logs):  # without their parents: a workspace that was moved stays away
            path.mkdir(exist_ok=True)
        folder.inbox.touch()
        if not file_size(folder.config):
            is_evaluation = record.kind is RunKind.POLICY_EVAL
            with suppress(OSError):
                shutil.copyfile(self.workspace.payload_copy(record.run_id, is_evaluation), folder.config)
        changes: dict[str, Any] = {"problem": "Its folder or files in it were deleted. What was left is shown."}
        if record.attempts:
            attempt = record.attempts[-1]
            starts = {
                "keeper_from": 0 if _is_new(folder.keeper) else attempt.keeper_from,
                "journal_from": 0 if _is_new(folder.journal) else attempt.journal_from,
            }
            changes["attempts"] = (*record.attempts[:-1], attempt.model_copy(update=starts))
        self.index.reset_offsets(record.run_id)
        log.info("run_folder_restored", run_id=record.run_id)
        return record.model_copy(update=changes)

    def send_command(self, run_id: str, command: str, **fields: Any) -> None:
        """Append a command to the inbox of a run."""
        with self._inbox_lock:
            inbox = self._inboxes.get(run_id)
            if inbox is None:
                inbox = self._inboxes[run_id] = Journal(self.folder(run_id).inbox)
            inbox.append(command, **fields)

    def mark_read(self, record: RunRecord) -> None:
        """Save a record in the index with its file's modification time: nothing of its run is left to be read."""
        self.index.save(record, self.folder(record.run_id).record.stat().st_mtime_ns)

    def report_problem(self, run_id: str, problem: str) -> None:
        """Show what cannot be read of a run, next to what can."""
        record = self.get(run_id)
        if record.problem != problem:
            self.put(record.model_copy(update={"problem": problem}))

    def cache(self, record: RunRecord) -> None:
        if record.stage not in (Stage.QUEUED, Stage.STARTING):
            self.environments.drop(record.run_id)
        if record.is_active:
            self.active[record.run_id] = record
        else:
            self.active.pop(record.run_id, None)
            self.payloads.pop(record.run_id, None)
            self.progress_times.pop(record.run_id, None)
            with self._inbox_lock:
                if (inbox := self._inboxes.pop(record.run_id, None)) is not None:
                    inbox.close()

    def read(self, folder: RunFolder) -> RunRecord | None:
        """None where the file is missing or damaged; a damaged one is left as it is."""
        try:
            record = RunRecord.model_validate_json(read_regular_file(folder.record))
            if record.holds_slot and not record.attempts:
                raise ValueError(f"it is {record.stage} without an attempt")
            return record
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("record_unreadable", run_id=folder.run_id, path=str(folder.record), error=str(error)[:300])
            return None

    def read_payload(self, run_id: str) -> Payload:
        """Returns the payload of a run, from memory if the run is active and it was read before."""
        payload = self.payloads.get(run_id)
        if payload is None:
            folder = self.folder(run_id)
            try:
                payload = Payload.read(folder.config).with_policy_path(folder.from_portable)
            except (ValueError, RecursionError) as error:
                raise NotAllowed(
                    f"The config of run {run_id} was written by a newer version of MOSAIC, or is damaged: "
                    f"{str(error)[:MAX_PROBLEM_LENGTH]} It is in {folder.config}"
                ) from None
            if run_id in self.active:
                self.payloads[run_id] = payload
        return mark_imported(payload, True) if self.is_read_only else payload

    def get(self, run_id: str) -> RunRecord:
        record = self.active.get(run_id) or self.index.get_record(run_id)
        if record is None:
            raise UnknownName(f"No run {run_id!r}. List them: mosaic runs")
        return record

    def resolve(self, reference: str, fits: Callable[[RunRecord], bool] | None = None) -> str:
        """Return the id that a full id, a unique beginning or end of one, a unique name, or `last` refers to.

        `last` is the newest run that fits and is not archived; if none is, the newest one, about which the caller can
        report why.
        """
        if reference.lower() == "last":
            records = [record for record, _ in self.index.list_runs(limit=1000 if fits else 1)]
            newest = records[0].run_id if records else self.index.newest_run_id()
            if newest is None:
                raise UnknownName("There are no runs yet. Start one: mosaic train ppo --env-id CartPole-v1")
            return next((record.run_id for record in records if fits is not None and fits(record)), newest)
        matches = self.index.find_run_ids(reference, MAX_CANDIDATES + 1) if reference else []
        if len(matches) == 1:
            return matches[0]
        if matches:
            candidates = [self._describe_candidate(run_id) for run_id in matches[:MAX_CANDIDATES]]
            more = "; and others" if len(matches) > MAX_CANDIDATES else ""
            raise UnknownName(
                f"{reference!r} could be any of {'; '.join(candidates)}{more}. Give the id of one of them."
            )
        recent = [record for record, _ in self.index.list_runs(include_archived=True, limit=1000)]
        ids = {record.run_id.upper(): record.run_id for record in recent}
        near = [ids[found] for found in difflib.get_close_matches(reference.upper(), ids, n=1)]
        names = {record.run_name for record in recent if record.run_name}
        groups = {record.group for record in recent if record.group}
        near = near or [repr(name) for name in similar_names(reference, names)]
        near = near or [f"the group {name!r}" for name in similar_names(reference, groups)]
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UnknownName(f"No run or group {reference!r}.{hint} List them: mosaic runs, mosaic experiments")

    def find(self, reference: str, fits: Callable[[RunRecord], bool] | None = None) -> RunRecord:
        """Return the record of the run that `resolve` finds."""
        return self.get(self.resolve(reference, fits))

    def runs_with(self, name: str, run_id: str = "") -> Iterator[tuple[RunRecord, RunFolder]]:
        """Yield the runs, newest first, or the one run, whose folder has a file or folder of this name.

        Most runs have none, which costs one system call each.
        """
        for candidate in [run_id] if run_id else self.index.list_run_ids():
            if os.path.exists(f"{self.workspace.runs}/{candidate}/{name}"):
                record = self.index.get_record(candidate)
                if record is not None:  # else it has just been deleted
                    yield record, self.folder(candidate)

    def _describe_candidate(self, run_id: str) -> str:
        view = self.view(run_id)
        facts = (view.run_name, run_description(view), view.status, "archived" if view.is_archived else None)
        return f"{run_id} ({', '.join(dict.fromkeys(filter(None, facts)))})"

    def notify_watchers(self) -> None:
        self.on_change()

    # --- views

    def view(self, run_id: str) -> RunView:
        run = self.index.get_run(run_id)
        if run is None:
            raise UnknownName(f"No run {run_id!r}. List them: mosaic runs")
        return self.to_view(*run, self.queue_positions())

    def queue_positions(self) -> dict[str, int]:
        """Map each queued run to its place in the order in which its executor starts those of its kind, from 1."""
        active = list(self.active.values())
        positions: dict[str, int] = {}
        for queue in {(record.executor, record.kind) for record in active}:
            own = [record for record in active if (record.executor, record.kind) == queue]
            order = start_order(
                [record for record in own if record.stage is Stage.QUEUED],
                [record for record in own if record.holds_slot],
            )
            positions |= {record.run_id: position for position, record in enumerate(order, 1)}
        return positions

    def _describe_wait(self, record: RunRecord, position: int | None) -> str | None:
        if record.checkpoint_wait is not None:
            return record.checkpoint_wait
        if position is None:
            job = record.attempts[-1].job if record.stage is Stage.STARTING and record.attempts else ""
            return f"waits in Slurm's queue, job {job}" if job and not record.attempts[-1].node else None
        own = self.wait_reasons.get(record.executor, {}).get(record.run_id)
        return own or ", ".join(
            filter(None, (self.queue_notes.get((record.executor, record.kind)), f"place {position}"))
        )

    def to_view(
        self, record: RunRecord, progress: RunProgress, queue_positions: Mapping[str, int], is_listed: bool = False
    ) -> RunView:
        """`is_listed`: lists leave out the attempts and the history."""
        total = record.total_timesteps or progress.total_timesteps
        is_running = record.stage is Stage.RUNNING
        run_dir = f"{self.workspace.runs}/{record.run_id}"
        position = queue_positions.get(record.run_id)
        silent_since = self.progress_times.get(record.run_id, self._created_at)
        progress_fields: dict[str, Any] = {
            "total_timesteps": total,
            "run_dir": run_dir,
            "pid": _live_worker_pid(self.active.get(record.run_id)),
            "global_step": progress.global_step,
            "sps": progress.sps,
            "fraction": progress.fraction,
            "episodic_return": progress.mean_return,
            "episodes": progress.episodes,
            "cut_episodes": progress.cut_episodes,
            "is_stalled": is_running and time.monotonic() - silent_since > STALLED_AFTER_S,
            "idle_s": record.idle_seconds(time.time()),
            "hardware": None if progress.hardware is None else HardwareSample.model_validate(progress.hardware),
            "checkpoint_step": progress.checkpoint_step,
            "queue_position": position,
            "wait_reason": self._describe_wait(record, position),
            "has_wandb": _has_wandb(run_dir),
            "has_recording": os.path.exists(f"{run_dir}/{RECORDING_NAME}"),
            "is_imported": record.is_imported or self.is_read_only,
        }
        if is_listed:
            progress_fields |= {"attempts": (), "history": ()}
        # Not validated again, as lists are long; for the same reason a copy, which costs a tenth of `model_construct`.
        view = _BLANK_VIEW.model_copy(update=vars(record) | progress_fields)
        seconds_left = view.estimate_seconds_left() if is_running else None
        return view if seconds_left is None else view.model_copy(update={"seconds_left": seconds_left})


def _is_new(path: Path) -> bool:
    """Return whether a journal was deleted or emptied: then it does not start with its first event."""
    lines = Follower(path).read(1)
    return not lines or lines[0].body["seq"] != 1


def _live_worker_pid(record: RunRecord | None) -> int | None:
    if record is None or not record.holds_slot or not record.attempts or not record.is_local:
        return None
    worker = record.attempts[-1].worker
    return int(worker["pid"]) if worker and is_alive(worker) else None


def _has_wandb(run_dir: str) -> bool:
    """Whether W&B has created a run's folder there: `run-…`, or `offline-run-…`."""
    try:
        with os.scandir(f"{run_dir}/wandb") as entries:
            return any(entry.name.startswith(("run-", "offline-run-")) for entry in entries)
    except OSError:
        return False


def summary_fields(payload: Payload, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a record that come from the payload, or from the `defaults` of the worker.

    The seed of an evaluation is that of its first episode.
    """
    given = {key: value for key, value in payload.metadata.worker.config.items() if value is not None}
    config = {**defaults, **given}

    def word(name: str) -> str | None:
        return config[name] if isinstance(config.get(name), str) else None

    def number(name: str) -> int | None:
        value = config.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    return {
        "kind": payload.kind,
        "algo": word("algo"),
        "env_id": word("env_id"),
        "seed": payload.evaluation.seed if payload.is_evaluation else number("seed"),
        "worker_id": word("worker_id") or payload.metadata.worker.worker_id,
        "agent_id": word("agent_id"),
        "is_attached": config.get("attached") is True,
        # An evaluation may repeat the training run's; it counts episodes, not steps.
        "total_timesteps": None if payload.is_evaluation else number("total_timesteps"),
    }
