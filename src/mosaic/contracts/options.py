"""The options of a run, each stated once.

Command-line flags, form fields, `--set`, reserved extras, the payload's defaults and its validation are built from this
table. Settings of an algorithm are not in it: they come from the worker's schema. No pydantic here, so that
`mosaic --help` and the window start without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mosaic.contracts.setting_field import SettingField

CONFIG_PATH = "metadata.worker.config"
CORE_GROUP = "What to train"
LOCAL_EXECUTOR = "local"
"""Starts runs on the daemon's own machine."""
EXECUTORS = (LOCAL_EXECUTOR, "ray", "slurm")
"""What can start a run."""
MAX_TIMESTEPS = 10**12
"""More steps are refused: the fastest algorithm here would take months for them."""


class RunKind(StrEnum):
    TRAIN = "train"
    """Trains a policy. Scripts are of this kind, too."""
    POLICY_EVAL = "policy_eval"
    """Evaluates a trained policy."""
    PLAY = "play"
    """Actors act in an environment."""


@dataclass(frozen=True)
class Option(SettingField):
    group: str = ""
    """The section of the training form that shows it; empty: none does."""
    path: str = ""
    """Where it is in the payload."""
    label: str = ""
    """Its name in forms; empty: derived from `name`."""
    unit: str = ""
    extras: tuple[str, ...] = ()
    """The reserved extras that mean the same. A worker declares which of the options that have some it supports."""
    special_flag: str = ""
    """Its command-line flag where that is not derived from `name`."""
    has_flag: bool = True
    """Whether `mosaic train` takes it as a flag; all options can be set by `mosaic resubmit --set`."""

    @property
    def flag(self) -> str:
        return self.special_flag or super().flag

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.path.split("."))

    @property
    def is_core(self) -> bool:
        return self.group == CORE_GROUP

    @property
    def is_worker_option(self) -> bool:
        """Whether the worker decides what it does."""
        return bool(self.extras)


_OPTIONS = (
    # --- what to train; an algorithm's schema may state these itself
    Option("env_id", "str", help="The environment to train on.", label="Environment", group=CORE_GROUP,
           path=f"{CONFIG_PATH}.env_id"),
    Option("total_timesteps", "int", help="Environment steps to train for.",
           constraints={"ge": 1, "le": MAX_TIMESTEPS}, group=CORE_GROUP, path=f"{CONFIG_PATH}.total_timesteps"),
    Option("seed", "int", 1, "Seed of everything random.", {"ge": 0}, group=CORE_GROUP,
           path=f"{CONFIG_PATH}.seed"),
    Option("algo", "str", help="The algorithm.", label="Algorithm", path=f"{CONFIG_PATH}.algo", has_flag=False),
    Option("kind", "choice", "train", "Train a policy, or evaluate one.", {"choices": tuple(RunKind)},
           path="kind", extras=("mode",), has_flag=False),
    # --- tracking
    Option("tensorboard", "bool", True, "Write TensorBoard event files.", group="Tracking", label="TensorBoard",
           path="artifacts.tensorboard.enabled"),
    Option("tensorboard_dir", "str", help="Folder of the event files, inside the run's folder.", is_optional=True,
           path="artifacts.tensorboard.directory", extras=("tensorboard_dir",), has_flag=False),
    Option("track", "bool", False, "Record the run for Weights & Biases, and upload it where W&B can be reached.",
           group="Tracking", label="W&B", path="artifacts.wandb.enabled", extras=("track_wandb",)),
    Option("wandb_project_name", "str", help="The W&B project; unset: mosaic.", is_optional=True, group="Tracking",
           label="W&B project", path="artifacts.wandb.project", extras=("wandb_project_name",)),
    Option("wandb_entity", "str", help="The W&B user or team; unset: your own.", is_optional=True, group="Tracking",
           label="W&B entity", path="artifacts.wandb.entity", extras=("wandb_entity",)),
    Option("wandb_run_name", "str", help="The name of the run at W&B; unset: its name here.", is_optional=True,
           group="Tracking", label="W&B run name", path="artifacts.wandb.run_name", extras=("wandb_run_name",)),
    Option("wandb_email", "str", is_optional=True, path="artifacts.wandb.email", extras=("wandb_email",),
           group="Tracking", label="W&B email",
           help="The team member that a run is attributed to when a service account's key uploads it."),
    Option("wandb_api_key", "str", is_optional=True, path="artifacts.wandb.api_key", extras=("wandb_api_key",),
           help="A key to use instead of the user's; stored as a reference to the secret store.", has_flag=False),
    Option("wandb_use_vpn_proxy", "bool", False, group="Tracking", label="VPN proxy",
           help="Reach W&B through the VPN's proxies, as the run, .env or the settings name them.",
           path="artifacts.wandb.use_vpn_proxy", extras=("wandb_use_vpn_proxy",)),
    Option("wandb_http_proxy", "str", help="A proxy for W&B; one with a password belongs in .env.", is_optional=True,
           group="Tracking", label="HTTP proxy", path="artifacts.wandb.http_proxy", extras=("wandb_http_proxy",)),
    Option("wandb_https_proxy", "str", help="The same for HTTPS; unset: the other one is used.", is_optional=True,
           group="Tracking", label="HTTPS proxy", path="artifacts.wandb.https_proxy", extras=("wandb_https_proxy",)),
    # --- frames and videos
    Option("video_mode", "choice", "grid", "What can be watched: a grid of environments, a single one, or none.",
           {"choices": ("grid", "single", "off")}, group="FastLane", label="Frames", path="artifacts.video.mode",
           extras=("video_mode", "fastlane_video_mode")),
    Option("grid_limit", "int", 8, "Maximum number of environments in the grid.", {"ge": 1}, group="FastLane",
           path="artifacts.video.grid_limit", extras=("grid_limit", "fastlane_grid_limit")),
    Option("fastlane_only", "bool", False, "Live frames, but no records of single steps or of episodes to replay.",
           group="FastLane", label="Frames only", path="artifacts.video.fastlane_only", extras=("fastlane_only",)),
    Option("capture_video", "bool", False, group="FastLane",
           help="Record videos of the first environment while it trains: episodes 0, 1, 8, 27, … and every thousandth.",
           path="artifacts.video.capture", extras=("capture_video",)),
    Option("eval_capture_video", "bool", False, group="FastLane", label="Evaluation video",
           help="Record the first episodes of the evaluation; after training: evaluate the model, too.",
           path="artifacts.video.capture_evaluation", extras=("eval_capture_video",)),
    Option("record_episodes", "bool", False, group="FastLane", label="Record episodes",
           help="Store every episode, some bytes a step, to replay it: mosaic replay RUN.",
           path="artifacts.record_episodes", extras=("record_episodes",)),
    # --- checkpoints and models
    Option("keep_checkpoints", "int", 3, "How many of the newest checkpoints to keep; the best one is always kept.",
           {"ge": 1}, group="Checkpoints", label="Keep", path="artifacts.keep_checkpoints"),
    Option("save_model", "bool", True, group="Checkpoints", path="artifacts.model.save", extras=("save_model",),
           help="Also save the trained model in CleanRL's form; if set explicitly, evaluate it over ten episodes."),
    Option("upload_model", "bool", False, "Upload the policy to the Hugging Face Hub once training has succeeded.",
           group="Checkpoints", label="Upload to the Hub", path="artifacts.model.upload", extras=("upload_model",)),
    Option("hf_entity", "str", help="The Hub's user or organization to upload to; unset: the owner of the token.",
           is_optional=True, group="Checkpoints", label="Hub account", path="artifacts.model.hub_entity",
           extras=("hf_entity",)),
    Option("persist_logs", "bool", True, "Keep the logs when the run has succeeded.", path="artifacts.persist_logs",
           has_flag=False),
    # --- evaluation
    Option("policy_path", "str", help="A checkpoint folder, a run folder or a .cleanrl_model file.", is_optional=True,
           label="Policy", path="evaluation.policy_path", extras=("policy_path",), has_flag=False),
    Option("eval_batch_size", "int", 50, "Episodes in each batch, each with a seed that training never uses.",
           {"ge": 1}, label="Episodes", path="evaluation.episodes", extras=("eval_batch_size", "eval_episodes"),
           has_flag=False),
    Option("eval_repeat", "bool", False, "Evaluate batch after batch until the run is cancelled.", label="Repeat",
           path="evaluation.repeat", extras=("eval_repeat",), has_flag=False),
    Option("eval_stochastic", "bool", False, "Sample actions as in training, instead of taking the best one.",
           label="Stochastic", path="evaluation.stochastic", extras=("eval_stochastic",), has_flag=False),
    Option("record_steps", "bool", False, "Record every step of the evaluation: its seed, reward and action.",
           label="Record steps", path="evaluation.record_steps", extras=("record_steps",), has_flag=False),
    Option("seed_override", "int", None, "Seed of the first episode; unset: seeds that training never uses.",
           {"ge": 0}, is_optional=True, label="First seed", path="evaluation.seed",
           extras=("seed_override",), has_flag=False),
    # --- resources and schedule
    Option("executor", "choice", None, "Where it runs: on the trainer's machine, on a node of a Ray cluster, or as a "
           "Slurm job; unset: the trainer's default.", {"choices": EXECUTORS}, is_optional=True, group="Resources",
           path="resources.executor"),
    Option("cpus", "int", None, "CPU threads for the run; unset: as many as the worker recommends.", {"ge": 1},
           is_optional=True, group="Resources", path="resources.cpus"),
    Option("gpus", "float", None, "GPUs for the run, which waits for them and sees no others; 0.25: a quarter of one, "
           "beside other such runs; unset: one for algorithms with wide or convolutional networks, else none.",
           {"ge": 0}, is_optional=True, group="Resources", path="resources.gpus.requested"),
    Option("gpu", "int", None, "The GPU to run on, counted from 0; unset: a free one.", {"ge": 0}, is_optional=True,
           group="Resources", label="GPU", path="resources.gpus.device"),
    Option("runs_per_gpu", "int", None, "Runs of the same group that may share a GPU at the same time; unset: 8 where "
           "CUDA MPS is installed, otherwise 1. Without MPS they take turns, which saves no time.", {"ge": 1, "le": 48},
           is_optional=True, group="Resources", label="Runs per GPU", path="resources.gpus.runs_per_gpu"),
    Option("memory_mb", "int", None, "Maximum memory of all its processes; unset: no limit.", {"ge": 16},
           is_optional=True, group="Resources", label="Memory", unit="MB", path="resources.memory_mb"),
    Option("max_seconds", "duration", None, is_optional=True, group="Schedule", label="Time limit", unit="s",
           help="Running time after which it is stopped, with a checkpoint, such as 90s or 1h; pauses do not count; "
           "unset: no limit.",
           constraints={"gt": 0}, path="schedule.max_duration_seconds"),
    Option("priority", "int", 0, "Higher starts earlier.", {"ge": -100, "le": 100}, group="Schedule",
           path="schedule.priority"),
    # --- about the run
    Option("run_name", "label", None, "A name for the run, to recognize it; it can be changed later.", is_optional=True,
           group="This run", label="Run name", path="run_name"),
    Option("tags", "names", None, "Tags of the run.", is_optional=True, group="This run", path="metadata.tags",
           special_flag="--tag"),
    Option("group", "name", None, "Runs that belong together; several seeds make one.", is_optional=True,
           group="This run", path="metadata.group"),
    Option("worker_id", "name", help="A name for the worker process, in the run's records.", is_optional=True,
           group="This run", label="Worker id", path=f"{CONFIG_PATH}.worker_id"),
    Option("agent_id", "name", help="A name for the agent, in the run's records.", is_optional=True,
           group="This run", label="Agent id", path=f"{CONFIG_PATH}.agent_id"),
    Option("notes", "text", None, "A note for yourself.", is_optional=True, group="This run", path="metadata.notes",
           special_flag="--note"),
)  # fmt: skip
OPTIONS: dict[str, Option] = {option.name: option for option in _OPTIONS}
OPTIONS_BY_PATH: dict[str, Option] = {option.path: option for option in _OPTIONS}


def set_option(payload: dict[str, Any], option: Option, value: Any) -> None:
    """Writes an option into a payload, in the form of JSON."""
    *parents, last = option.keys
    section = payload
    for parent in parents:
        section = section.setdefault(parent, {})
    section[last] = list(value) if isinstance(value, tuple) else value
    if option.name == "gpus":
        section["mandatory"] = bool(value)  # a run that asks for GPUs waits for them
    if option.name == "gpu" and value is not None:
        section["mandatory"] = True


def value_at(data: Any, path: str) -> Any:
    """The value at a path of nested objects, such as `metadata.worker.config`; None where there is none."""
    for key in path.split("."):
        data = data.get(key) if isinstance(data, dict) else None
    return data
