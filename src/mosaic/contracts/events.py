"""The lines of a journal. Every line has `seq` (contiguous in its file), `at` (seconds since the epoch) and `kind`.

The event's kind is the stable code that people search for. A reader passes over kinds that it does not know.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import ConfigDict

from mosaic.contracts.model import Contract, ProcessFacts


class Event(Contract):
    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)
    KIND: ClassVar[str] = ""
    seq: int
    at: float
    kind: str


# --- journal.jsonl: the worker speaks


class Hello(Event):
    """The handshake: the first event of every attempt."""

    KIND = "hello"
    worker: str
    version: str
    pid: int
    capabilities: tuple[str, ...] = ()
    """`inbox` (reads commands), `pause`, `checkpoint`, `resume`."""
    worker_id: str | None = None
    """The name that the config gives to this worker process."""
    agent_id: str | None = None
    """The name that the config gives to the agent."""
    attempt: int = 1
    resumed_from: int | None = None
    """Step of the checkpoint it goes on from. What an earlier attempt logged above it no longer counts."""


class ProgressReported(Event):
    """Also the worker's heartbeat: about once a second while it steps."""

    KIND = "progress"
    global_step: int
    total_timesteps: int | None = None
    sps: float | None = None


class Metrics(Event):
    KIND = "metrics"
    series: dict[str, list[tuple[int, float, float | None]]]
    """By tag: step, time, value. A value that is not finite is null, and an `anomaly` tells of it."""


class Episodes(Event):
    """Each row is also a point of `charts/episodic_return` and of `charts/episodic_length`."""

    KIND = "episodes"
    rows: list[tuple[int, int, int, float, float | None, int]]
    """Episode number (from 1), environment index, step, time, return (null: not finite), length."""


class CheckpointSaved(Event):
    KIND = "checkpoint"
    step: int
    """Environment steps taken when it was written."""
    path: str
    """Relative to the run folder."""
    is_best: bool = False
    score: float | None = None
    """Mean return of the last 100 episodes."""


class EnvironmentSeeded(Event):
    """An environment was reset with a seed: what is needed to make its episodes again."""

    KIND = "environment"
    env: int
    env_id: str | None = None
    seed: int | str | None = None


class Artifact(Event):
    """A file that a script wrote by itself; it stays where it is."""

    KIND = "artifact"
    what: str
    """`checkpoint_file`: a model or checkpoint of the script's own."""
    path: str
    step: int | None = None
    size_bytes: int | None = None


class WarningLogged(Event):
    KIND = "warning"
    text: str
    code: str | None = None
    """A stable name such as `resumed_inexactly`."""


class Anomaly(Event):
    """A loss, reward or weight that is not finite."""

    KIND = "anomaly"
    tag: str
    step: int


class WorkerPaused(Event):
    KIND = "paused"
    global_step: int


class WorkerResumed(Event):
    KIND = "resumed"
    global_step: int


class PolicyEvalStarted(Event):
    KIND = "policy_eval_started"
    algo: str
    env_id: str
    policy_path: str
    checkpoint_step: int | None = None
    """Unknown where the policy is a file of weights alone."""
    eval_batch_size: int
    eval_repeat: bool
    tensorboard_dir: str | None = None


class EvalSummaryUpdate(Event):
    """A batch has been played."""

    KIND = "eval_summary_update"
    summary: dict[str, Any]
    """Of this batch: `batch` (from 1), `episodes`, `avg_return`, `min_return`, `max_return`, `ci95`, …"""


class PolicyEvalCompleted(Event):
    KIND = "policy_eval_completed"
    batches: int
    episodes: int
    """Of all batches, those of earlier attempts too."""


class Finished(Event):
    """The worker's last word. Its exit status must agree, or the exit status wins."""

    KIND = "finished"
    outcome: str
    """`succeeded`, `stopped` (asked to), `rejected` or `failed`."""
    reason: str | None = None
    global_step: int | None = None


class Hyperparameters(Event):
    """Every setting of the algorithm, defaults too."""

    KIND = "hyperparameters"
    values: dict[str, Any]


# --- sidecar.jsonl: the sidecar speaks; its warnings are those of above


class TrackingStarted(Event):
    KIND = "tracking_started"
    tracker: str
    """`wandb` or `trackio`."""


class TrackingEnded(Event):
    KIND = "tracking_ended"
    tracker: str
    rows: int
    """How many rows of scalars it was given."""


class WandbSynced(Event):
    """Everything of one W&B run is on its server."""

    KIND = "wandb_synced"
    url: str | None = None


class HubPushed(Event):
    """Its policy is on the Hugging Face Hub."""

    KIND = "hub_pushed"
    repo: str
    url: str
    commit: str
    step: int
    """Of the checkpoint that was sent."""


# --- keeper.jsonl: the keeper speaks


class KeeperStarted(Event):
    KIND = "keeper_started"
    process: ProcessFacts


class SidecarStarted(Event):
    """Whoever records and uploads for the run; no part of its tree."""

    KIND = "sidecar_started"
    process: ProcessFacts


class SidecarStartFailed(Event):
    KIND = "sidecar_not_started"
    reason: str


class WorkerStarted(Event):
    KIND = "worker_started"
    process: ProcessFacts


class WorkerNotStarted(Event):
    KIND = "worker_not_started"
    reason: str


class Sample(Event):
    """Also the keeper's heartbeat."""

    KIND = "sample"
    cpu_percent: float
    rss_mb: float
    processes: int
    gpus: list[dict[str, float]] = []
    """For each: util_percent, memory_used_mb, memory_total_mb."""


class PausedBySignal(Event):
    """The whole tree was stopped by SIGSTOP: its worker reads no inbox."""

    KIND = "paused_by_signal"


class ResumedBySignal(Event):
    KIND = "resumed_by_signal"


class Escalated(Event):
    """A signal was sent, behind a stop that was not obeyed or because of a limit."""

    KIND = "escalated"
    signal: str
    cause: str


class Exited(Event):
    """The whole tree is gone."""

    KIND = "exited"
    code: int | None = None
    signal: int | None = None
    cause: str | None = None
    """Why it was ended, if it was: `stop`, `time_limit`, `memory_limit`, `keeper_terminated`."""
    duration_s: float
    peak_rss_mb: float
    limit: float | None = None
    """The limit that was passed, in its own unit (seconds or megabytes)."""
    last_words: str | None = None
    """The last line of stderr that says something."""


# --- the daemon speaks, to those who watch


class Deleted(Event):
    """The run is in the trash: nothing more can be asked about it."""

    KIND = "deleted"
    run_id: str
    said: str


EVENT_TYPES: dict[str, type[Event]] = {event.KIND: event for event in Event.__subclasses__()}
"""By kind: every event that is defined above."""
