"""What a user submits: the whole of one run, as JSON. An unknown key anywhere is refused with its path."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from mosaic.contracts.arguments import validate_wrapper
from mosaic.contracts.errors import ConfigRefused, FieldProblem, refuse_key
from mosaic.contracts.experiment_member import ExperimentMember
from mosaic.contracts.extras import OnConflict, TranslatedPayload, translate_extras
from mosaic.contracts.folder import read_regular_file
from mosaic.contracts.imports import is_module_name, named_modules
from mosaic.contracts.model import MAX_TEXT_LENGTH, Contract, RunId, parse_contract
from mosaic.contracts.options import OPTIONS_BY_PATH, RunKind
from mosaic.contracts.setting_field import validate_label, validate_safe_name


def _validate_env_id(value: str) -> str:
    """Gymnasium's own form: [module:][namespace/]name[-vN]."""
    module, colon, name = value.rpartition(":")
    is_id = re.fullmatch(r"[\w./@+-]+", name) and ".." not in value and not name.startswith(("/", "-"))
    if not is_id or (colon and not is_module_name(module)):
        raise ValueError("expected an environment id such as 'CartPole-v1', 'ALE/Pong-v5' or 'my_envs:Maze-v0'")
    return value


def _validate_printable(value: str) -> str:
    if any(ord(char) < 32 and char not in "\n\t" for char in value):
        raise ValueError("expected text without control characters")
    return value


def _validate_relative_path(value: str) -> str:
    path = Path(value)
    if path.is_absolute() or ".." in path.parts or not value.isprintable() or not path.parts:
        raise ValueError("expected a path inside the run's folder, without '..' or control characters")
    return value


def _validate_path(value: str) -> str:
    if not value or any(ord(char) < 32 for char in value):
        raise ValueError("expected a path without control characters")
    return value


def _validate_no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("expected text without NUL")
    return value


def _validate_absolute_path(value: str) -> str:
    if not Path(_validate_no_nul(value)).is_absolute():
        raise ValueError("expected an absolute path")
    return value


def _validate_env_kwargs(value: dict[str, Any]) -> dict[str, Any]:
    if taken := sorted(RESERVED_ENV_KWARGS.intersection(value)):
        raise ValueError(f"{taken[0]!r} is set by MOSAIC; leave it out")
    return value


RESERVED_ENV_KWARGS = frozenset(
    (
        "id",
        "env_id",
        "render_mode",
        "disable_env_checker",
        "vectorization_mode",
        "vector_kwargs",
        "num_envs",
        "wrappers",
    )
)
"""Arguments of environments that MOSAIC itself passes, or that make something other than one environment."""
EnvKwargs = Annotated[dict[str, Any], AfterValidator(_validate_env_kwargs)]
"""What an environment is created with besides its id."""
WrapperText = Annotated[str, Field(max_length=2000), AfterValidator(validate_wrapper)]
"""A wrapper by name or as `module:Class`, with its arguments: `frame-stack(stack_size=4)`."""
SafeName = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(validate_safe_name)]
Label = Annotated[str, AfterValidator(validate_label)]
"""A name for people, such as `PPO, größeres Netz`."""
EnvId = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_validate_env_id)]
Text = Annotated[str, Field(max_length=MAX_TEXT_LENGTH), AfterValidator(_validate_printable)]
RelativePath = Annotated[str, Field(max_length=500), AfterValidator(_validate_relative_path)]
AnyPath = Annotated[str, Field(max_length=4000), AfterValidator(_validate_path)]
AbsolutePath = Annotated[str, AfterValidator(_validate_absolute_path)]
ModuleName = Annotated[str, Field(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*$", max_length=200)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Imports(Contract):
    """The modules of the submitter's own that a run imports, since its config names them as `module:Name`."""

    modules: tuple[ModuleName, ...] = ()
    """Their names. No other module that the config or a checkpoint names is imported."""
    folders: tuple[AbsolutePath, ...] = ()
    """Where they are: the folder in which the run was submitted, and those in its PYTHONPATH."""

    def merge(self, other: Imports) -> Imports:
        """Return both, without repetitions."""
        modules, folders = (
            dict.fromkeys((*self.modules, *other.modules)),
            dict.fromkeys((*self.folders, *other.folders)),
        )
        return Imports(modules=tuple(modules), folders=tuple(folders))


class WorkerChoice(Contract):
    id: SafeName
    """Which worker runs it, such as `cleanrl`."""
    config: dict[str, Any]
    """The worker's own settings; its checker judges them."""
    worker_id: SafeName | None = None
    """A name for this worker process, in the run's records."""
    imports: Imports | None = None
    """What the config imports by name. A client adds it to what its own user submits."""


class Metadata(Contract):
    worker: WorkerChoice
    ui: dict[str, Any] | None = None
    """State of a form. Nothing else reads it."""
    tags: tuple[SafeName, ...] = ()
    notes: Text | None = None
    group: SafeName | None = None
    """Runs that belong together, such as the seeds of one experiment."""
    is_imported: bool = False
    """Set by an import and kept in every copy: what the config would execute needs `--trust`."""
    experiment: ExperimentMember | None = None
    """Which run of the experiment `group` it is; not part of what clients read to submit it again."""


def _option(path: str, **changes: Any) -> Any:
    """A field with the default, the range and the help of the option at this path; `changes` replace some of them."""
    option = OPTIONS_BY_PATH[path]
    bounds = {name: value for name, value in (option.constraints or {}).items() if name != "choices"}
    return Field(**{"default": option.default, "description": option.help, **bounds, **changes})


class EvaluationOptions(Contract):
    """How a policy is evaluated: in a run of kind `policy_eval`, or after training."""

    policy_path: AnyPath | None = _option("evaluation.policy_path")
    episodes: int | None = _option("evaluation.episodes", default=None)
    repeat: bool = _option("evaluation.repeat")
    stochastic: bool = _option("evaluation.stochastic")
    seed: Seed | None = _option("evaluation.seed")
    record_steps: bool = _option("evaluation.record_steps")


class TensorBoardArtifacts(Contract):
    enabled: bool = _option("artifacts.tensorboard.enabled")
    directory: RelativePath | None = _option("artifacts.tensorboard.directory")


class WandbArtifacts(Contract):
    enabled: bool = _option("artifacts.wandb.enabled")
    project: Text | None = _option("artifacts.wandb.project")
    entity: Text | None = _option("artifacts.wandb.entity")
    run_name: Text | None = _option("artifacts.wandb.run_name")
    email: Text | None = _option("artifacts.wandb.email")
    api_key: Text | None = _option("artifacts.wandb.api_key")
    use_vpn_proxy: bool = _option("artifacts.wandb.use_vpn_proxy")
    http_proxy: Text | None = _option("artifacts.wandb.http_proxy")
    https_proxy: Text | None = _option("artifacts.wandb.https_proxy")


class TrackioArtifacts(Contract):
    enabled: bool = False
    project: SafeName | None = None


class VideoArtifacts(Contract):
    """Frames to watch live, and recorded videos."""

    mode: Literal["single", "grid", "off"] = _option("artifacts.video.mode")
    grid_limit: int = _option("artifacts.video.grid_limit")
    fastlane_only: bool = _option("artifacts.video.fastlane_only")
    capture: bool = _option("artifacts.video.capture")
    capture_evaluation: bool = _option("artifacts.video.capture_evaluation")


class ModelArtifacts(Contract):
    save: bool | None = _option("artifacts.model.save", default=None)
    """Whether to write the .cleanrl_model file after training. Unset: write it; true: also evaluate it."""
    upload: bool = _option("artifacts.model.upload")
    hub_entity: Text | None = _option("artifacts.model.hub_entity")


class Artifacts(Contract):
    tensorboard: TensorBoardArtifacts = TensorBoardArtifacts()
    wandb: WandbArtifacts = WandbArtifacts()
    trackio: TrackioArtifacts = TrackioArtifacts()
    video: VideoArtifacts = VideoArtifacts()
    model: ModelArtifacts = ModelArtifacts()
    record_episodes: bool = _option("artifacts.record_episodes")
    keep_checkpoints: int | None = _option("artifacts.keep_checkpoints")
    persist_logs: bool = _option("artifacts.persist_logs")


def _validate_gpus(value: float | None) -> float | None:
    if value is None or value < 1:
        return value
    if value != int(value):
        raise ValueError("expected a whole number, or a share of one GPU below 1")
    return int(value)


class GpuRequest(Contract):
    requested: Annotated[int | float | None, AfterValidator(_validate_gpus)] = _option("resources.gpus.requested")
    device: int | None = _option("resources.gpus.device")
    runs_per_gpu: int | None = _option("resources.gpus.runs_per_gpu")
    mandatory: bool = False
    """Whether to wait for them, and to refuse where there are none."""


class Resources(Contract):
    executor: Literal["local", "ray", "slurm"] | None = _option("resources.executor")
    cpus: int | None = _option("resources.cpus")
    gpus: GpuRequest = GpuRequest()
    memory_mb: int | None = _option("resources.memory_mb")


class Schedule(Contract):
    max_duration_seconds: float | None = _option("schedule.max_duration_seconds")
    priority: int = _option("schedule.priority")


class Payload(Contract):
    kind: RunKind = RunKind.TRAIN
    run_name: Label | None = None
    metadata: Metadata
    artifacts: Artifacts
    evaluation: EvaluationOptions = EvaluationOptions()
    resources: Resources = Resources()
    schedule: Schedule = Schedule()

    @classmethod
    def parse(cls, data: Any) -> Payload:
        """A payload as it was submitted."""
        return cls.from_translated(translate_extras(data))

    @classmethod
    def read(cls, path: Path) -> Payload:
        """A payload that was accepted, now or by an earlier version; OSError or ValueError where it cannot be read."""
        try:
            return cls.from_translated(translate_extras(json.loads(read_regular_file(path)), OnConflict.KEEP))
        except ConfigRefused as error:
            raise ValueError(str(error)) from None

    @classmethod
    def from_translated(cls, translated: TranslatedPayload) -> Payload:
        payload = parse_contract(cls, translated.data, "The config was", translated.written_paths)
        kind_path, policy_path = "kind", "evaluation.policy_path"
        if {"kind", policy_path} & set(translated.written_paths):
            kind_path, policy_path = (f"{translated.extras_path}.{name}" for name in ("mode", "policy_path"))
        if (payload.kind is RunKind.PLAY) != (payload.metadata.worker.id == RunKind.PLAY):
            given = (
                "'play' needs the worker 'play'"
                if payload.kind is RunKind.PLAY
                else "the worker 'play' needs kind 'play'"
            )
            raise refuse_key(kind_path, f"{given}.")
        if payload.is_evaluation and payload.evaluation.policy_path is None:
            raise refuse_key(policy_path, "missing. An evaluation needs a checkpoint or a run's folder.")
        if not payload.is_evaluation and payload.evaluation.policy_path is not None:
            raise refuse_key(
                policy_path, f"only an evaluation takes it; set {kind_path} to {str(RunKind.POLICY_EVAL)!r}."
            )
        video = payload.artifacts.video
        contradictions = {
            "artifacts.video.mode": ("{} asks for live frames, but {} is 'off'.", video.mode == "off"),
            "evaluation.record_steps": (
                "{} asks for no records of steps, but {} is set.",
                payload.evaluation.record_steps,
            ),
            "artifacts.record_episodes": (
                "{} asks for no records of episodes, but {} is set.",
                payload.artifacts.record_episodes,
            ),
        }
        for path, (text, is_contradiction) in contradictions.items():
            if video.fastlane_only and is_contradiction:
                paths = [translated.written_path(one) for one in ("artifacts.video.fastlane_only", path)]
                message = f"{text.format(*paths)} Change one of them."
                raise ConfigRefused(f"LOG705 {message}", [FieldProblem(one, message) for one in paths])
        return payload

    @property
    def is_evaluation(self) -> bool:
        return self.kind is RunKind.POLICY_EVAL

    @property
    def evaluates_model(self) -> bool:
        """Whether to evaluate the model after training: as in CleanRL, if saving it is requested explicitly."""
        return self.artifacts.model.save is True or self.artifacts.video.capture_evaluation

    def refuse_unused_evaluation(self, written_paths: Mapping[str, str]) -> None:
        """Refuses settings of an evaluation in a training that has none."""
        if self.kind is not RunKind.TRAIN:
            return
        problems = {"repeat": f"only an evaluation repeats batches: mode {RunKind.POLICY_EVAL.value!r}. Leave it out."}
        if not self.evaluates_model:
            text = "the model is not evaluated after this training. Set save_model, too, or leave it out."
            problems |= dict.fromkeys(("seed", "episodes", "stochastic", "record_steps"), text)
        for name, problem in problems.items():
            value = getattr(self.evaluation, name)
            if value is not None and value is not False:  # 0 is a seed
                raise refuse_key(written_paths.get(f"evaluation.{name}", f"evaluation.{name}"), problem)

    @property
    def modules(self) -> dict[str, str]:
        """The modules that it imports by name, such as `my_envs` of `my_envs:Maze-v0`, each with what names it."""
        imports = self.metadata.worker.imports
        listed = {} if imports is None else dict.fromkeys(imports.modules, "imports")
        return {**listed, **named_modules(self.metadata.worker.config)}

    def with_worker(self, **changes: Any) -> Payload:
        """A copy with other fields of `metadata.worker`."""
        worker = self.metadata.worker.model_copy(update=changes)
        return self.model_copy(update={"metadata": self.metadata.model_copy(update={"worker": worker})})

    def without_experiment(self) -> Payload:
        """A copy that can be submitted again: it makes a run that is not a part of an experiment."""
        if self.metadata.experiment is None:
            return self
        given = self.metadata.model_fields_set - {"experiment"}
        metadata = Metadata.model_construct(given, **{name: getattr(self.metadata, name) for name in given})
        return self.model_copy(update={"metadata": metadata})

    def with_policy_path(self, change: Callable[[str], str]) -> Payload:
        """A copy with another path of the policy to evaluate, if there is one."""
        if self.evaluation.policy_path is None:
            return self
        evaluation = self.evaluation.model_copy(update={"policy_path": change(self.evaluation.policy_path)})
        return self.model_copy(update={"evaluation": evaluation})

    def to_json(self) -> dict[str, Any]:
        """As it was given: what was not set stays unset."""
        return self.model_dump(mode="json", exclude_unset=True)


Argument = Annotated[str, Field(max_length=100_000), AfterValidator(_validate_no_nul)]


class ProbeParts(Contract):
    """What the probe does inside of the script. Each part can be turned off."""

    frames: bool = True
    """Frames for viewers."""
    metrics: bool = True
    """Episodes, and the scalars of SummaryWriter and tensorboardX."""
    checkpoints: bool = True
    """What torch.save and Stable-Baselines3's save wrote."""
    console: bool = True
    """Lines such as `global_step=…, episodic_return=…`, and Stable-Baselines3's table."""
    wandb: bool = True
    """W&B's folders inside of the run, offline, and the scalars of wandb.log."""
    compat: bool = False
    """Gives a script that was written for gymnasium 0.29 what it expects, on gymnasium 1.x."""


class ScriptConfig(Contract):
    """The config of a run of the worker `script`: a program of the user."""

    argv: Annotated[tuple[Argument, ...], Field(min_length=1)]
    """The command, program first."""
    cwd: AbsolutePath
    """The folder it is started in."""
    env_names: tuple[Argument, ...] = ()
    """The names of the environment variables it was given; their values are not in the workspace."""
    name: Text | None = None
    algo: Text | None = None
    """What lists show as its algorithm: the script's name."""
    env_id: EnvId | None = None
    seed: int | None = None
    total_timesteps: Annotated[int, Field(ge=1)] | None = None
    probe: ProbeParts = ProbeParts()
    attached: bool = False
    """The caller's process produces the run, and `argv` only waits for its end. It starts at once and holds no slot."""
    algo_params: dict[str, Any] = {}
    """Settings of the caller's program, by which runs are compared."""
    run_id: RunId | None = None
