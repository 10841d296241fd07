"""The lines of a journal. Every line has `seq` (contiguous in its file), `at` (seconds since the epoch) and `kind`.

The kind is the stable code that people search for; its topic is `runbus.<kind>` (`semconv.py`). Readers skip kinds
that they do not know.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import ConfigDict, ValidationError

from mosaic.contracts.model import Contract, Int64, ShownText, StoredProcess, Time
from mosaic.contracts.names import CONTRACT_VERSION
from mosaic.contracts.states import Outcome, Stage
from mosaic.contracts.views import EvaluationBatch, RunView


class Event(Contract):
    model_config = ConfigDict(extra="allow")
    KIND: ClassVar[str] = ""
    seq: Int64
    at: float = 0.0
    kind: str
    run_id: str = ""
    """Set by the daemon for watchers; a journal line does not carry it."""
    source: str = "journal"
    """Which file the event comes from: `journal`, `keeper`, `sidecar`, or `daemon` for the daemon's own."""


# --- journal.jsonl, written by the worker


class Hello(Event):
    """The handshake: the first event of every attempt."""

    KIND = "hello"
    worker: ShownText = ""
    version: ShownText = ""
    contract: Int64 = CONTRACT_VERSION
    """The version of the events that it writes."""
    pid: Int64 = 0
    capabilities: tuple[ShownText, ...] = ()
    """`inbox` (reads commands), `pause`, `checkpoint`, `resume`."""
    worker_id: ShownText | None = None
    """The name that the config gives to this worker process."""
    agent_id: ShownText | None = None
    """The name that the config gives to the agent."""
    attempt: Int64 = 1
    resumed_from: Int64 | None = None
    """Step of the checkpoint it continues from. Points that an earlier attempt logged above it no longer count."""


class ProgressReported(Event):
    """Also the worker's heartbeat, about once a second while it steps."""

    KIND = "progress"
    global_step: Int64 | None = None
    total_timesteps: Int64 | None = None
    sps: float | None = None
    fraction: float | None = None
    """How much of its work a script has done by its own progress bar, from 0 to 1."""


class Metrics(Event):
    KIND = "metrics"
    series: dict[ShownText, list[tuple[Int64, float, float | None]]]
    """By tag: step, time, value. A value that is not finite is null, and an `anomaly` event reports it."""


class Episodes(Event):
    """Each row is also a point of `charts/episodic_return` and of `charts/episodic_length`."""

    KIND = "episodes"
    rows: list[tuple[Int64, Int64, Int64, float, float | None, Int64]]
    """Episode number (from 1), environment index, step, time, return (null: not finite), length."""
    cut: list[Int64] = []
    """The numbers of those that were not over when the script reset the environment."""


class EpisodesRevoked(Event):
    """Episodes that were written as training have turned out to be evaluation, whose points are written again."""

    KIND = "episodes_revoked"
    numbers: list[Int64]
    cut: Int64 = 0
    """How many of them the script has ended by a reset."""
    global_step: Int64 | None = None
    """The run's step without those of the evaluation."""


class Steps(Event):
    """Single steps, which are recorded on request only."""

    KIND = "step"
    rows: list[tuple[Int64 | None, Int64, float, float | None, Any]]
    """Seed of the episode, step in it (from 1), time, reward (null: not finite), action."""


class CheckpointBegun(Event):
    """The worker is writing a checkpoint, until `checkpoint` or `checkpoint_not_saved`: a stop waits for that."""

    KIND = "checkpoint_begun"


class CheckpointNotSaved(Event):
    """The checkpoint that was begun could not be written."""

    KIND = "checkpoint_not_saved"


class CheckpointSaved(Event):
    KIND = "checkpoint"
    step: Int64
    """Environment steps taken when it was written."""
    path: str
    """Relative to the run folder."""
    is_best: bool = False
    score: float | None = None
    """Mean return of the last 100 episodes. Of a run that evaluates during training: of the evaluation at this step."""


class EnvironmentSeeded(Event):
    """An environment was reset with a seed: what is needed to reproduce its episodes."""

    KIND = "environment"
    env: Int64
    env_id: str | None = None
    seed: Int64 | str | None = None


class Artifact(Event):
    """A file written by the script itself; it is left where it is."""

    KIND = "artifact"
    what: str
    """`checkpoint_file`: a model or checkpoint that the script saved."""
    path: str
    step: Int64 | None = None
    size_bytes: Int64 | None = None


class WarningLogged(Event):
    KIND = "warning"
    text: ShownText
    code: ShownText | None = None
    """A stable name such as `resumed_inexactly`."""
    is_withdrawn: bool = False
    """Whether an earlier warning with this text no longer applies."""


class Anomaly(Event):
    """A loss, reward or weight that is not finite."""

    KIND = "anomaly"
    tag: ShownText
    step: Int64


class LlmTurn(Event):
    """One decision of a language model in a play session. Long texts are shortened."""

    KIND = "llm_turn"
    agent: str = ""
    """Empty in an environment with one agent."""
    step: Int64
    """Of the episode, before the action."""
    model: str
    prompt: str
    reply: str
    thought: str = ""
    """What the model wrote apart from its answer."""
    rejected_reply: str = ""
    """An earlier answer without a legal action."""
    action: str
    was_fallback: bool
    problem: str | None = None
    """Why the fallback was taken, such as `timeout`, `busy` or `no_action`."""
    detail: str = ""
    """The same in a sentence."""
    input_tokens: Int64 | None = None
    """Null: not counted by the server."""
    output_tokens: Int64 | None = None
    cost: float | None = None
    """Null: no price was given, or the tokens were not counted."""
    latency_s: float
    attempts: Int64
    """Requests, including those that failed and were repeated."""


class WorkerPaused(Event):
    KIND = "paused"
    global_step: Int64


class WorkerResumed(Event):
    KIND = "resumed"
    global_step: Int64


class TrainingEvaluated(Event):
    """The policy was evaluated during its training."""

    KIND = "evaluated"
    step: Int64
    """Environment steps of the training."""
    episodes: Int64
    avg_return: float | None = None
    """Null: not finite."""
    duration_s: float


class PolicyEvalStarted(Event):
    KIND = "policy_eval_started"
    algo: ShownText
    env_id: ShownText
    policy_path: str
    checkpoint_step: Int64 | None = None
    """Null where the policy is a file with weights only."""
    eval_batch_size: int
    eval_repeat: bool
    tensorboard_dir: str | None = None


class EvalSummaryUpdate(Event):
    """A batch of episodes is complete."""

    KIND = "eval_summary_update"
    summary: EvaluationBatch
    """Without seeds, returns and lengths."""


class PolicyEvalCompleted(Event):
    KIND = "policy_eval_completed"
    batches: int
    episodes: int
    """Over all batches, including those of earlier attempts."""


class Finished(Event):
    """The worker's last event. Where its exit status disagrees, the exit status counts."""

    KIND = "finished"
    outcome: ShownText
    """`succeeded`, `stopped` (asked to), `rejected` or `failed`."""
    reason: ShownText | None = None
    """In a sentence; null where it succeeded because all its steps are done."""
    global_step: Int64 | None = None


class Hyperparameters(Event):
    """Every setting of the algorithm, including defaults."""

    KIND = "hyperparameters"
    values: dict[str, Any]


class PackagesListed(Event):
    """The Python that the program runs in: written once, after `hello`."""

    KIND = "packages"
    python: ShownText
    """Its version."""
    packages: dict[ShownText, ShownText]
    """By name, the version of each package that can be imported."""


# --- sidecar.jsonl, written by the sidecar, which also logs warnings


class TrackingStarted(Event):
    KIND = "tracking_started"
    tracker: str
    """`wandb` or `trackio`."""


class TrackingEnded(Event):
    KIND = "tracking_ended"
    tracker: str
    rows: int
    """Rows of scalars sent to it."""


class WandbSynced(Event):
    """One W&B run has been uploaded completely."""

    KIND = "wandb_synced"
    url: str | None = None


class HubPushed(Event):
    """The policy was uploaded to the Hugging Face Hub."""

    KIND = "hub_pushed"
    repo: str
    url: str
    commit: str
    step: Int64
    """Step of the uploaded checkpoint."""


# --- keeper.jsonl, written by the keeper


class KeeperStarted(Event):
    KIND = "keeper_started"
    process: StoredProcess


class SidecarStarted(Event):
    """The process that records and uploads for the run; not part of its process tree."""

    KIND = "sidecar_started"
    process: StoredProcess


class SidecarStartFailed(Event):
    KIND = "sidecar_not_started"
    reason: ShownText


class WorkerStarted(Event):
    KIND = "worker_started"
    process: StoredProcess


class WorkerNotStarted(Event):
    KIND = "worker_not_started"
    reason: ShownText
    end_key: str = ""
    """As in `exited`."""


class Sample(Event):
    """Also the keeper's heartbeat."""

    KIND = "sample"
    cpu_percent: float
    rss_mb: float
    processes: Int64
    gpus: list[dict[str, float]] = []
    """For each: util_percent, memory_used_mb, memory_total_mb."""


class MachineDescribed(Event):
    """The machine that the attempt runs on."""

    KIND = "machine"
    host: ShownText = ""
    system: ShownText = ""
    cpu: ShownText = ""
    cpus: Int64 = 0
    memory_mb: Int64 = 0
    gpus: list[ShownText] = []
    """The names of all its GPUs; empty for a run that sees none."""


class SourceDescribed(Event):
    """The commit of a repository with code of the user's: a script's, or that of modules that the config names."""

    KIND = "source"
    folder: ShownText
    commit: ShownText
    is_dirty: bool = False
    """Whether files that Git tracks differed from the commit."""


class PausedBySignal(Event):
    """The process tree was stopped by SIGSTOP because its worker does not read the inbox."""

    KIND = "paused_by_signal"


class ResumedBySignal(Event):
    KIND = "resumed_by_signal"


class Escalated(Event):
    """A signal was sent, after a stop request was ignored or because of a limit."""

    KIND = "escalated"
    signal: str
    cause: str


class CheckpointAwaited(Event):
    """The worker should have ended after a stop, and is writing a checkpoint: it is not killed yet."""

    KIND = "checkpoint_awaited"
    limit_s: Time
    """How long it has in all, since the stop."""


class Exited(Event):
    """The whole process tree has ended."""

    KIND = "exited"
    code: int | None = None
    signal: int | None = None
    cause: ShownText | None = None
    """Why it was terminated, if it was: `stop`, `time_limit`, `memory_limit`, `keeper_terminated`, `lifeline_lost`."""
    duration_s: float
    peak_rss_mb: float
    limit: float | None = None
    """The limit that was exceeded, in its own unit (seconds or megabytes)."""
    last_words: ShownText | None = None
    """The last exception on stderr, or its last meaningful line."""
    ended_leftovers: Int64 = 0
    """Processes that the program had left running, and that were ended by a signal."""
    end_key: str = ""
    """Known to the keeper alone until this line, which is thus not the worker's; the record has its SHA-256."""


# --- from the daemon to watchers


class RecordChanged(Event):
    """A run's stage, outcome, tags or notes have changed."""

    KIND = "record"
    stage: Stage
    """At the time of the change; `view` is current."""
    outcome: Outcome | None = None
    reason: ShownText | None = None
    message: ShownText = ""
    view: RunView


class Deleted(Event):
    """The run was moved to the trash: nothing more can be asked about it."""

    KIND = "deleted"
    message: str = ""


EVENT_TYPES: dict[str, type[Event]] = {event.KIND: event for event in Event.__subclasses__()}
"""By kind: every event that is defined above."""


def decode_event(data: dict[str, Any]) -> Event:
    """An event as its own type; a plain `Event` where the kind is unknown or its fields do not fit."""
    event_type = EVENT_TYPES.get(data.get("kind", ""), Event)
    try:
        return event_type.model_validate(data)
    except ValidationError:
        return Event.model_validate(data)
