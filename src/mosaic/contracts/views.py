"""What the daemon answers: frozen models that the client decodes once and everyone else uses as objects.

Unknown keys are ignored, so that a client can talk to a newer daemon.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, ConfigDict, Field

from mosaic.contracts.key_binding import KeyBinding
from mosaic.contracts.model import Contract, Int64, RunId, ShownText, StoredProcess, Time
from mosaic.contracts.options import LOCAL_EXECUTOR, RunKind
from mosaic.contracts.setting_field import SettingField
from mosaic.contracts.states import MAX_CPUS, MAX_GPUS, Outcome, RunRecord, ShownName, Stage

MIN_MEASURED_S = 5.0
"""The speed of the first seconds, in which everything is loaded, says little about the rest."""


WebAddress = Annotated[str, AfterValidator(lambda url: url if url.startswith(("https://", "http://")) else "")]
"""What a click opens in a browser; empty where it is the address of something else, such as a file."""


class View(Contract):
    model_config = ConfigDict(extra="ignore")


class GpuSample(View):
    util_percent: float = 0.0
    memory_used_mb: float = 0.0
    memory_total_mb: float = 0.0


class HardwareSample(View):
    """The keeper's last sample of a run's process tree."""

    at: float = 0.0
    cpu_percent: float = 0.0
    rss_mb: float = 0.0
    processes: Int64 = 0
    gpus: tuple[GpuSample, ...] = ()


class RunView(RunRecord):
    """A run's record with its progress. Lists leave out `attempts` and `history`."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=True)

    run_id: RunId
    run_dir: ShownText
    pid: Int64 | None = None
    """The worker's process id; null when none is alive."""
    global_step: Int64 | None = None
    sps: float | None = None
    """Environment steps per second, as measured by the worker."""
    fraction: float | None = None
    """How much of its work a script has done by its own progress bar, from 0 to 1."""
    episodic_return: float | None = None
    """Mean of the last 100 episodes."""
    episodes: Int64 = 0
    cut_episodes: Int64 = 0
    """Of them, those of a script that has ended them by a reset."""
    is_stalled: bool = False
    """Running, but without progress for a while."""
    seconds_left: float | None = None
    idle_s: float = 0.0
    """Since it was started first: how long it was paused, or ended or queued before it was resumed."""
    queue_position: Int64 | None = None
    """1 for the queued run that starts next, by the scheduler's order; null when it is not queued."""
    wait_reason: ShownText | None = None
    """What a queued run waits for, `2 of 2 slots busy, place 5`; or why one that was stopped has not ended."""
    hardware: HardwareSample | None = None
    checkpoint_step: Int64 | None = None
    has_wandb: bool = False
    """Whether W&B has written anything into the run's folder."""
    has_recording: bool = False
    """Whether episodes were recorded that can be replayed."""

    @classmethod
    def placeholder(cls, run_id: str) -> RunView:
        """A run of which nothing is known yet but its id."""
        # Not validated: an empty id stands for no run.
        return cls.model_construct(run_id=run_id, worker="", submitted_at=0.0, queued_at=0.0, run_dir="")

    @property
    def status(self) -> str:
        """One word: `stalled`, the outcome of a finished run, or the stage."""
        return "stalled" if self.is_stalled and self.stage is Stage.RUNNING else super().status

    @property
    def active_s(self) -> float | None:
        """How long it ran, or has run until now; None for one that was never started."""
        if self.started_at is None:
            return None
        return max(0.0, (self.finished_at or time.time()) - self.started_at - self.idle_s)

    def estimate_seconds_left(self) -> float | None:
        """The time until its last step at its speed; None where that is unknown, and in its first seconds."""
        if self.stage is not Stage.RUNNING or not self.sps or self.global_step is None or self.is_evaluation:
            return None
        total = self.total_timesteps or (self.global_step / self.fraction if self.fraction else None)
        if total is None or (self.active_s or 0.0) < MIN_MEASURED_S:
            return None
        return max(0.0, total - self.global_step) / self.sps

    @property
    def is_evaluation(self) -> bool:
        return self.kind is RunKind.POLICY_EVAL

    def can_resume(self, is_extended: bool = False) -> bool:
        return self.find_resume_obstacle(self.checkpoint_step is not None, is_extended) is None


class SlotHolder(View):
    """A run that holds a slot, and what it holds with it."""

    run_id: RunId
    cpus: Int64 = 1
    gpus: tuple[Int64, ...] = ()
    """Indices of its GPUs."""
    gpu_share: float = 1.0
    """How much of its GPU is its own; of several runs of a group that share one through MPS, each has all of it."""
    group: ShownName | None = None
    algo: str | None = None
    env_id: str | None = None


class SlotUsage(View):
    runs: Int64 = 1
    """How many runs may be active at a time."""
    busy: Int64 = 0
    queued: Int64 = 0
    cpus: Annotated[int, Field(ge=0, le=MAX_CPUS)] = 1
    gpus: Annotated[int, Field(ge=0, le=MAX_GPUS)] = 0
    gpu_names: tuple[str, ...] = ()
    """By index."""
    gpu_samples: tuple[GpuSample | None, ...] = ()
    """By index, of all programs together; null for a GPU that is not measured, empty if none is."""
    has_mps: bool = False
    """Whether the kernels of runs of a group that share a GPU run at the same time; else they take turns."""
    holders: tuple[SlotHolder, ...] = ()
    """The runs that hold slots, in the order of their start."""

    @property
    def busy_cpus(self) -> int:
        return sum(holder.cpus for holder in self.holders)

    def gpu_holders(self, gpu: int) -> tuple[SlotHolder, ...]:
        """Return the runs that hold this GPU."""
        return tuple(holder for holder in self.holders if gpu in holder.gpus)

    def gpu_sample(self, gpu: int) -> GpuSample | None:
        return self.gpu_samples[gpu] if gpu < len(self.gpu_samples) else None


class ExecutorStatus(View):
    """A cluster that the daemon starts runs on."""

    name: str
    address: str = ""
    """Of the cluster; empty: one that the daemon starts on its own machine."""
    problem: str | None = None
    """Why it cannot be used; null where it can."""
    nodes: tuple[str, ...] = ()
    """Addresses of those that are alive."""
    cpus: float = 0.0
    gpus: float = 0.0
    busy_cpus: float = 0.0
    """Also those that others than this daemon use."""
    busy_gpus: float = 0.0
    jobs: Int64 | None = None
    """How many jobs of this daemon wait or run, where the cluster has a queue of its own; null: it has none."""
    max_jobs: Int64 | None = None


class DaemonStatus(View):
    pid: Int64
    address: str
    """On its own machine."""
    listen: str | None = None
    """Where other machines reach it, by TLS; null where they do not."""
    fingerprint: str | None = None
    """Of the certificate that it shows there."""
    version: str
    workspace: str
    started_at: Time = 0.0
    runs: dict[str, Int64] = {}
    """How many runs there are, by stage or outcome."""
    slots: SlotUsage = Field(default_factory=SlotUsage)
    executors: tuple[ExecutorStatus, ...] = ()
    """Clusters that are in use."""
    default_executor: str = LOCAL_EXECUTOR
    """Where runs are started that name none."""
    is_draining: bool = False
    paused: str | None = None
    """Why the queue is paused; null when it is not."""
    is_read_only: bool = False
    """Whether nothing of the workspace is started or changed: this user neither created nor trusts it."""
    trust_problem: str | None = None
    """Why a later daemon will not recognize the workspace as this user's; null where it will."""
    full_disk: str | None = None
    """A sentence with the bytes that are free, if the workspace's disk is full."""
    rebuilt_index: str | None = None
    """Why this daemon had to rebuild the index, and where the damaged file is; null where it had not to."""
    metrics_address: str | None = None
    """Where metrics for Prometheus are served; null: nowhere."""
    log: str = ""


class EnvironmentListing(View):
    """An environment that a worker can train on, perhaps after an installation."""

    id: str
    family: str
    is_installed: bool
    extra: str | None = None
    """The extra of `mosaic-rl` that installs it; null where none does."""
    max_episode_steps: Int64 | None = None
    package: str = ""
    """What pip installs it by, where no extra does."""

    @property
    def install_hint(self) -> str:
        """The command that installs it; empty if there is none."""
        if self.package:
            return f"pip install {self.package}"
        return f"pip install 'mosaic-rl[{self.extra}]'" if self.extra else ""


class EnvironmentDetails(View):
    """What a person needs to know to train or play in an environment."""

    id: str
    family: str
    family_title: str
    about: str
    install_hint: str = ""
    """The command that installs it; empty if it is installed."""
    settings: tuple[SettingField, ...] = ()
    """What a person may want to change of its constructor's arguments."""
    has_settings_list: bool = False
    """Whether the catalog knows its settings; else its constructor alone decides."""
    has_several_agents: bool = False
    agents: tuple[str, ...] = ()
    """The names of several agents; empty where there is one, without a name."""
    action_names: tuple[str, ...] = ()
    """Of its discrete actions, in order; empty where actions are continuous."""
    keys: tuple[KeyBinding, ...] = ()
    is_real_time: bool = False
    """Whether it continues without a human's key unless the session says otherwise."""
    rate_hz: float | None = None
    """Steps per second for a human, in real time; null: the session's default."""
    action_space: str = ""
    observation_space: str = ""
    max_episode_steps: Int64 | None = None
    problem: str = ""
    """Why it could not be created with the given settings."""


class CheckpointInfo(View):
    """A worker's description of a checkpoint or model file."""

    kind: str = "checkpoint"
    """`checkpoint` or `cleanrl_model`."""
    path: str = ""
    algo: str | None = None
    env_id: str | None = None
    seed: Int64 | None = None
    step: Int64 | None = None
    run_id: str | None = None
    """The run that saved it."""
    saved_at: Time | None = None
    score: float | None = None
    """The mean return when it was saved."""


class EnvironmentInfo(View):
    """An environment as the worker created it for the dry run."""

    id: str | None = None
    family: str | None = None
    observation_space: str | None = None
    action_space: str | None = None
    max_episode_steps: Int64 | None = None


class VerdictSummary(View):
    """Everything a run would use. Workers may add more keys."""

    model_config = ConfigDict(extra="allow")

    module: str | None = None
    algo: str | None = None
    env_id: str | None = None
    seed: Int64 | None = None
    total_timesteps: Int64 | None = None
    settings: dict[str, Any] = {}
    environment: EnvironmentInfo = Field(default_factory=EnvironmentInfo)
    directories: dict[str, str] = {}
    tensorboard_dir: str | None = None
    backend: str | None = None
    threads: Int64 | None = None
    cpus: Int64 | None = None
    """The number of threads that the worker recommends, if the run sets none."""
    gpus: Int64 | None = None
    """The number of GPUs that it gains from, if the run sets none."""
    policy_path: str | None = None
    checkpoint_step: Int64 | None = None
    eval_batch_size: Int64 | None = None
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return what the worker has set."""
        return self.model_dump(mode="json", exclude_unset=True, fallback=str)


class Verdict(View):
    """A worker's answer to a dry run. A refusal is raised instead."""

    summary: VerdictSummary = Field(default_factory=VerdictSummary)
    is_checked: bool = True
    """False for a worker without a checker: the summary is what the config states."""


class ReturnStatistics(View):
    """Of some episodes; figures are null where they are not finite."""

    episodes: Int64
    avg_return: float | None = None
    median_return: float | None = None
    min_return: float | None = None
    max_return: float | None = None
    std_return: float | None = None
    iqm: float | None = None
    """Mean of the middle half."""
    ci95: tuple[float, float] | None = None
    """95 % interval of the mean, Wilson's where each return is 0 or 1, else Student's; null for a single episode."""
    avg_length: float | None = None
    returns: tuple[float | None, ...] = ()


class EvaluationBatch(ReturnStatistics):
    batch: Int64 = 1
    """From 1."""
    duration_s: float | None = None
    seeds: tuple[Int64, ...] = ()
    lengths: tuple[Int64, ...] = ()


class EvaluationSummary(EvaluationBatch):
    """`eval_summary.json`: the statistics of all batches together, and each batch."""

    episodes: Int64 = 0
    algo: str | None = None
    env_id: str | None = None
    policy_path: str | None = None
    checkpoint_step: Int64 | None = None
    deterministic: bool = True
    eval_batch_size: Int64 | None = None
    eval_repeat: bool = False
    tensorboard_dir: str | None = None
    batches: tuple[EvaluationBatch, ...] = ()
    videos: tuple[str, ...] = ()
    """Relative to the run's folder."""


class TrainedRun(View):
    """The run that an evaluated policy comes from."""

    run_id: RunId
    run_name: str | None = None
    algo: str | None = None
    seed: Int64 | None = None
    stage: Stage = Stage.FINISHED
    """Now, not when its policy was evaluated."""
    episodic_return: float | None = None
    """Mean over its last 100 episodes of training, in which it explored."""


class Evaluation(View):
    """The results of one evaluation run, or of a training run that ended with an evaluation."""

    run_id: RunId
    stage: Stage
    outcome: Outcome | None = None
    evaluated_at: Time
    summary: EvaluationSummary
    trained: TrainedRun | None = None
    """Null where the policy's run is not in this workspace."""


class WandbFolder(View):
    """One folder that wandb wrote in a run."""

    state: str
    size_bytes: Int64 = 0
    sent_bytes: Int64 = 0
    records: Int64 | None = None
    error: str | None = None
    url: WebAddress | None = None
    updated_at: Time = 0.0


class WandbStatus(View):
    """What of a run is on the W&B server."""

    run_id: RunId
    run_name: str | None = None
    algo: str | None = None
    env_id: str | None = None
    seed: Int64 | None = None
    stage: Stage
    outcome: Outcome | None = None
    state: str
    """`offline`, `syncing`, `synced`, `failed` or `online`."""
    url: WebAddress | None = None
    error: str | None = None
    project: str | None = None
    entity: str | None = None
    process: StoredProcess | None = None
    """The process that is uploading it."""
    runs: dict[str, WandbFolder] = {}
    """By folder name, oldest first."""


class EpisodeRow(View):
    number: Int64
    env: Int64
    step: Int64
    at: float
    episodic_return: Annotated[float | None, Field(alias="return")]
    """Null where it was not finite."""
    length: Int64


class MetricSeries(NamedTuple):
    """The points of one tag, in the order in which they were logged (a part of them: more may follow)."""

    tag: str
    steps: Sequence[int]
    at: Sequence[float]
    values: Sequence[float]


class MetricsCursor(NamedTuple):
    """How far a run's points have been read."""

    generation: int = 0
    last_point: int = 0


class RewardView(View):
    # A reward may be infinite or not a number, which JSON has no number for.
    model_config = ConfigDict(ser_json_inf_nan="strings")


class PlayedEpisode(RewardView):
    """A complete episode of a play session."""

    seed: Int64
    length: Int64
    ending: str
    returns: dict[str, float]
    """By agent."""


class SymbolGrid(View):
    """The state of a grid world or a board. A cell is the name of its ground and, after `+`, of what is on it."""

    rows: tuple[tuple[str, ...], ...]
    walls: tuple[tuple[Int64, Int64], ...] = ()
    """Cells (row, column) with a wall on their right side."""
    caption: str = ""


class ActorTotals(View):
    """What an actor did besides its score. Actors of plug-ins may count more."""

    model_config = ConfigDict(extra="allow")
    decisions: int = 0
    fallbacks: int = 0
    """Decisions that were not its own: it gave no action, and a stated one was taken."""
    problems: dict[str, int] = {}
    """Why, and how often."""
    calls: int = 0
    """Requests to a model."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    mean_latency_s: float | None = None

    @classmethod
    def add(cls, parts: Sequence[ActorTotals]) -> ActorTotals | None:
        """Return the totals of several sessions; None of none. What one of them does not know, the sum does not."""
        if not parts:
            return None
        counts = ("decisions", "fallbacks", "calls", "input_tokens", "output_tokens", "cost")
        values: dict[str, list[Any]] = {name: [getattr(part, name) for part in parts] for name in counts}
        sums: dict[str, Any] = {name: None if None in found else sum(found) for name, found in values.items()}
        spent_s = [part.mean_latency_s * part.decisions for part in parts if part.mean_latency_s is not None]
        return cls(
            **sums,
            problems=dict(sum((Counter(part.problems) for part in parts), Counter())),
            mean_latency_s=sum(spent_s) / sums["decisions"]
            if len(spent_s) == len(parts) and sums["decisions"]
            else None,
        )

    def describe(self) -> str:
        """`3 of 25 actions were the fallback, 1,200 tokens, cost 0.02, 0.8 s each`."""
        counted = [] if None in (self.input_tokens, self.output_tokens) else [self.input_tokens, self.output_tokens]
        parts = [
            f"{self.fallbacks:,} of {self.decisions:,} actions were the fallback",
            f"{sum(filter(None, counted)):,} tokens" if counted else "",
            "" if self.cost is None else f"cost {self.cost:.4g}",
            "" if self.mean_latency_s is None else f"{self.mean_latency_s:.2g} s each",
        ]
        return ", ".join(filter(None, parts))

    @property
    def has_only_fallbacks(self) -> bool:
        return 0 < self.decisions == self.fallbacks


class SeatState(RewardView):
    """One agent of a session."""

    agent: str
    """Empty in an environment with one agent."""
    actor: str
    is_human: bool
    can_switch: bool
    is_to_act: bool
    episodic_return: float
    last_action: str
    last_reward: float
    legal_actions: tuple[Int64, ...] | None = None
    problem: str = ""
    """Why the last input of a human, or the last answer of a model, was not an action."""
    mean_return: float | None = None
    """Of the complete episodes; null before the first."""
    wins: Int64 = 0
    """Complete episodes in which its return was higher than that of all others."""
    totals: tuple[ActorTotals, ...] = ()
    """Of its actors that count something."""


class SessionState(RewardView):
    """What a window shows of a play session besides its frames."""

    episode: Int64
    step: Int64
    seed: Int64 | None
    """None in a replay of an episode that was started from a random state."""
    ending: str
    is_paused: bool
    waits_for_key: bool = False
    """Whether a key of a human starts the episode: in real time, they would lose before they have looked."""
    failure: str = ""
    """Why it has paused by itself: an actor cannot act. Resuming tries again."""
    rate_hz: float | None
    own_rate_hz: float | None = None
    """Steps per second of the environment in real time; null where it waits for a human."""
    action_names: tuple[str, ...]
    keys: tuple[KeyBinding, ...] = ()
    """Of the first human."""
    seats: tuple[SeatState, ...]
    complete_episodes: Int64 = 0
    last_episode: PlayedEpisode | None = None
    """The last complete one."""
    text: str = ""
    symbols: SymbolGrid | None = None
    observation: str = ""
    info: str = ""
