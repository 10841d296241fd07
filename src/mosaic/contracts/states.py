"""A run's record: its stage, outcome, attempts and history."""

from __future__ import annotations

import hashlib
import json
import re
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, model_validator

from mosaic.contracts.experiment_member import ExperimentMember
from mosaic.contracts.model import Contract, Count64, Int64, ShownText, StoredProcess, Time, format_validation_error
from mosaic.contracts.options import LOCAL_EXECUTOR, RunKind

MAX_TIME_MS = 4_000_000_000_000
"""In 2096: no run was submitted later."""
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_TO_BASE_32 = str.maketrans("0123456789ABCDEFGHJKMNPQRSTVWXYZ", "0123456789ABCDEFGHIJKLMNOPQRSTUV")


class Stage(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    FINISHED = "finished"


class Outcome(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    """Refused by the worker after the daemon had accepted it."""
    LOST = "lost"
    """Its keeper disappeared, so its end was not recorded."""


ENDED = "ended"
"""A play session that lasted until it was stopped, which is a success."""


class ResumeObstacle(StrEnum):
    """Why a run cannot be resumed."""

    ACTIVE = "active"
    """It is neither paused nor over."""
    ATTACHED = "attached"
    """The program of its caller produced it, which only the caller can run again."""
    NO_CHECKPOINT = "no_checkpoint"
    SUCCEEDED = "succeeded"
    """It can only be extended."""


MAX_CPUS = 1_000_000
MAX_PROBLEM_LENGTH = 300
MAX_GPUS = 4096


def _to_safe_name(text: str) -> str:
    """A name as submissions give it, where what states it need not have come from one."""
    return re.sub(r"^[\W_]+|[^\w.@+-]|(?<=\.)\.", "", text)[:120] or "unnamed"


ShownName = Annotated[str, AfterValidator(_to_safe_name)]
"""A name that commands take. What a submission would refuse in it is left out."""


class StoredState(Contract):
    # Written as JSON, which has no numbers that are not finite: what is read can be written and read again.
    model_config = ConfigDict(allow_inf_nan=False)


class HistoryEntry(StoredState):
    at: Time
    stage: Stage
    message: ShownText
    """What happened, in one sentence."""


class Attempt(StoredState):
    number: Count64
    """1 for the first start, one more for each resume."""
    slot: Count64
    """The global count of started worker processes; names its config file."""
    started_at: Time
    ended_at: Time | None = None
    keeper: StoredProcess | None = None
    worker: StoredProcess | None = None
    is_resume: bool = False
    executor: ShownText = LOCAL_EXECUTOR
    """What started it. `keeper` and `worker` are processes of this machine only if it is `local`."""
    job: ShownText = ""
    """Its number in the queue of a cluster that has one, such as `1234` or `1234_5` in Slurm's; empty elsewhere."""
    node: ShownText = ""
    """The machine of a cluster that it was placed on; empty on the daemon's own."""
    gpus: tuple[Count64, ...] = ()
    """Indices of the GPUs assigned to it, where the daemon assigns them."""
    journal_from: Count64 = 0
    """Byte offset in the journal at which this attempt starts."""
    keeper_from: Count64 = 0
    """The same in the keeper's file."""
    folder: str = ""
    """The run folder when it started, all links resolved: in a copy of the workspace, its processes are not ours."""
    end_key_sha256: str = ""
    """Of the key that only its keeper has, and that the keeper's last event contains; empty: an earlier version's."""

    def is_ended_by(self, end_key: str) -> bool:
        """Whether an event with this key is the end that its keeper reported, and not one that the worker wrote."""
        return self.end_key_sha256 in ("", hashlib.sha256(end_key.encode()).hexdigest())


class FinalReport(StoredState):
    """The worker's last event before it exited."""

    outcome: ShownText
    reason: ShownText | None = None


@lru_cache(maxsize=1 << 16)
def id_time_ms(run_id: str) -> int | None:
    """Return the time in an id of the daemon's, in ms since 1970, which never goes back; None for other ids."""
    if _ULID.fullmatch(run_id) is None:
        return None
    time_ms = int(run_id[:10].translate(_TO_BASE_32), 32)
    return time_ms if time_ms <= MAX_TIME_MS else None


class RunRecord(StoredState):
    """`record.json`: written only by the daemon, by rename."""

    run_id: str
    kind: RunKind = RunKind.TRAIN
    stage: Stage = Stage.QUEUED
    outcome: Outcome | None = None
    reason: ShownText | None = None
    """Why it ended, in one sentence."""
    problem: ShownText | None = None
    """What of the run cannot be read, and why; the rest of it is shown."""
    worker: ShownText
    run_name: ShownText | None = None
    algo: ShownText | None = None
    env_id: ShownText | None = None
    seed: Int64 | None = None
    total_timesteps: Int64 | None = None
    worker_id: ShownText | None = None
    """The name that the config gives to the worker process."""
    agent_id: ShownText | None = None
    """The name that the config gives to the agent."""
    group: ShownName | None = None
    experiment: ExperimentMember | None = None
    """Which run of the experiment `group` it is."""
    submission_key: ShownText | None = None
    """Of the request that created it; the same request, sent again, returns this run."""
    submitted_by: ShownText | None = None
    """The login name of its submitter, with the host of a client on another machine; as the client stated it."""
    tags: tuple[ShownName, ...] = ()
    notes: ShownText | None = None
    is_archived: bool = False
    is_imported: bool = False
    """Whether it comes from elsewhere: what its config would execute needs `--trust`."""
    warnings: tuple[ShownText, ...] = ()
    """What the dry run warned about."""
    is_resume: bool = False
    """Whether the next start continues from the last good checkpoint."""
    is_attached: bool = False
    """Whether the process of its caller produces it: it starts at once and holds no slot."""
    executor: ShownText = LOCAL_EXECUTOR
    """What starts it: `local`, or the name of a cluster's executor."""
    node_losses: Count64 = 0
    """How often its node was lost since it was submitted or resumed."""
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    cpus: Annotated[int, Field(ge=1, le=MAX_CPUS)] = 1
    gpus: Annotated[int | float, Field(ge=0, le=MAX_GPUS)] = 0
    """How many it holds; below 1, its share of one."""
    gpu: Annotated[int, Field(ge=0, le=MAX_GPUS)] | None = None
    """The index of the one that it asked for; null: any."""
    runs_per_gpu: Annotated[int, Field(ge=1, le=MAX_GPUS)] = 1
    """How many runs of its group may share its GPU at the same time."""
    submitted_at: Time
    queued_at: Time
    """When it last entered the queue."""
    started_at: Time | None = None
    finished_at: Time | None = None
    stop_requested_at: Time | None = None
    checkpoint_limit_s: Time | None = None
    """How long its keeper waits, from the stop on, for the checkpoint that it is writing; null: it does not wait."""
    final_report: FinalReport | None = None
    capabilities: tuple[ShownText, ...] = ()
    """What its worker supports, from the handshake."""
    worker_version: ShownText | None = None
    """The version of its worker, from the handshake."""
    attempts: tuple[Attempt, ...] = ()
    history: tuple[HistoryEntry, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _upgrade(cls, data: Any) -> Any:
        """Reads earlier records: some had modules that the config has now; 0.1 had other names of two fields."""
        if not isinstance(data, dict) or not {"story", "farewell", "env_modules"} & data.keys():
            return data
        upgraded = {name: value for name, value in data.items() if name not in ("story", "farewell", "env_modules")}
        upgraded.setdefault("final_report", data.get("farewell"))
        story = data.get("story")
        if isinstance(story, (list, tuple)):
            story = [entry for entry in story if isinstance(entry, dict)]
            entries = [{("message" if key == "said" else key): entry[key] for key in entry} for entry in story]
            upgraded.setdefault("history", entries)
        return upgraded

    @classmethod
    def read(cls, text: str | bytes, run_id: str = "") -> RunRecord:
        """Decodes a stored record. Of one with values that do not fit, the rest, with a problem that states it.

        Raises ValueError where nothing of it can be shown, or where it is not that of `run_id`.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            problems, found = format_validation_error(error), error.errors()
        if not all(problem["loc"] for problem in found):
            raise ValueError(problems)
        data = json.loads(text)
        unknown = {problem["loc"][0] for problem in found}
        kept = {name: value for name, value in data.items() if name not in unknown}
        if not isinstance(kept.get("run_id"), str) or run_id not in ("", kept["run_id"]):
            raise ValueError(problems)
        kept["problem"] = (
            f"Its record.json has values that this version of MOSAIC does not know: {problems[:MAX_PROBLEM_LENGTH]} "
            "A newer version wrote it, or it is damaged."
        )
        if any(problem["type"] != "extra_forbidden" for problem in found):
            kept["stage"] = Stage.FINISHED
            kept["outcome"] = kept.get("outcome") or Outcome.LOST
        at = kept.get("finished_at") or kept.get("started_at") or 0.0
        return cls.model_validate({"worker": "", "submitted_at": at, "queued_at": at} | kept)

    @property
    def age_key(self) -> tuple[int, str]:
        """Sorts runs from the oldest to the newest: by their ids' times, else by the record's, if it is not lost."""
        time_ms = id_time_ms(self.run_id)
        if time_ms is None:
            is_known = self.worker and 0 <= self.submitted_at * 1000 <= MAX_TIME_MS
            time_ms = int(self.submitted_at * 1000) if is_known else 0
        return time_ms, self.run_id

    @property
    def status(self) -> str:
        """One word: the outcome of a finished run, `ended` of a play session that lasts until then, or the stage."""
        is_ended = self.kind is RunKind.PLAY and self.outcome is Outcome.SUCCEEDED and self.end_reason
        return ENDED if is_ended else str(self.outcome or self.stage)

    @property
    def end_reason(self) -> str | None:
        """Why it ended, where that is more than that its work is done."""
        if self.outcome is Outcome.SUCCEEDED:
            return self.final_report.reason if self.final_report is not None else None
        return self.reason

    @property
    def checkpoint_wait(self) -> str | None:
        """Why it has not ended yet although it should have, where that is so."""
        if self.checkpoint_limit_s is None:
            return None
        return f"saving a checkpoint; it has up to {self.checkpoint_limit_s / 60:g} minutes"

    @property
    def is_active(self) -> bool:
        return self.stage is not Stage.FINISHED

    @property
    def has_succeeded(self) -> bool:
        return self.outcome is Outcome.SUCCEEDED

    @property
    def has_failed(self) -> bool:
        """Whether it has ended in another way than it should or was asked to."""
        return self.outcome in (Outcome.FAILED, Outcome.REJECTED, Outcome.LOST)

    def find_resume_obstacle(self, has_checkpoint: bool, is_extended: bool) -> ResumeObstacle | None:
        """Return why it cannot be resumed; `is_extended`: with a new total of steps."""
        if self.is_active:
            return None if self.stage is Stage.PAUSED else ResumeObstacle.ACTIVE
        if self.is_attached:
            return ResumeObstacle.ATTACHED
        if self.kind is not RunKind.TRAIN or self.outcome is Outcome.REJECTED or not has_checkpoint:
            return ResumeObstacle.NO_CHECKPOINT
        return ResumeObstacle.SUCCEEDED if self.outcome is Outcome.SUCCEEDED and not is_extended else None

    def idle_seconds(self, now: float) -> float:
        """How long it did nothing since its first start: while it was paused, or ended or queued before a resume."""
        if self.started_at is None or not self.history:
            return 0.0
        ends = [*(entry.at for entry in self.history[1:]), now if self.is_active else 0.0]
        return sum(
            max(0.0, end - entry.at)
            for entry, end in zip(self.history, ends, strict=False)  # there may be no history, of a copied run
            if entry.stage in (Stage.QUEUED, Stage.PAUSED, Stage.FINISHED) and entry.at >= self.started_at
        )

    @property
    def holds_slot(self) -> bool:
        return self.stage not in (Stage.QUEUED, Stage.FINISHED)

    @property
    def is_local(self) -> bool:
        """Whether the processes of its last attempt are, or were, on the daemon's machine."""
        return not self.attempts or self.attempts[-1].executor == LOCAL_EXECUTOR


STOPPABLE_STAGES = (Stage.QUEUED, Stage.STARTING, Stage.RUNNING, Stage.PAUSED)
