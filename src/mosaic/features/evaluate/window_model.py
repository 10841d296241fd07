"""What is evaluated and how: one policy, or those of several runs, and the payloads of the evaluations. No widget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from mosaic.base.algorithm_schema import supported_options
from mosaic.base.curves import ConfidenceInterval
from mosaic.base.formatting import format_ago, format_count, format_si_number, short_id
from mosaic.base.run_payloads import build_eval_payload
from mosaic.contracts.errors import MosaicError, NotTrusted
from mosaic.contracts.extras import flatten_sections, translate_extras
from mosaic.contracts.options import OPTIONS, RunKind
from mosaic.contracts.setting_field import SettingField
from mosaic.contracts.views import CheckpointInfo, Evaluation, EvaluationBatch, RunView
from mosaic.features.evaluate.api import evaluation_payload
from mosaic.trainer.client.trainer_client import TrainerClient, new_submission_key
from mosaic.window.form_model import Form, format_value

TELEMETRY_FIELDS = ("video_mode", "grid_limit", "fastlane_only")
"""The video settings of a training run; its policy uses the same unless they are changed."""
POLICY_FIELDS = (
    *("eval_batch_size", "eval_repeat", "eval_stochastic", "seed_override", "eval_capture_video", "record_steps"),
    *("record_episodes", *TELEMETRY_FIELDS, "tags"),
)
BATCH_FIELDS = ("eval_batch_size", "eval_stochastic", "seed_override", "eval_capture_video", "record_steps", "tags")
"""Settings that apply to all policies."""
ALGORITHM_FIELD = SettingField("algo", "str", None)
ENVIRONMENT_FIELD = SettingField("env_id", "str", None, "Must have the same spaces as the one it was trained on.")


@cache
def evaluation_fields(worker: str, names: Sequence[str]) -> tuple[SettingField, ...]:
    """Those of these options that the worker supports."""
    return tuple(OPTIONS[name] for name in names if OPTIONS[name] in supported_options(worker))


@dataclass(frozen=True)
class PolicyDraft(Form):
    worker: str
    path: str = ""
    """A checkpoint folder, a run folder or a .cleanrl_model file, on the trainer's machine."""
    checkpoint_info: CheckpointInfo | None = None
    """The worker's description of it; None until it has answered, or where it refused."""
    telemetry: Mapping[str, Any] = field(default_factory=dict)
    """The video settings of the run that trained it."""
    env_id: str | None = None
    """Another environment than it was trained on; None: the same."""
    algo: str | None = None
    """Another algorithm than it states; None: the same."""
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def trained_env_id(self) -> str:
        return (self.checkpoint_info and self.checkpoint_info.env_id) or ""

    @property
    def environment(self) -> str:
        return self.env_id if self.env_id is not None else self.trained_env_id

    @property
    def algorithm(self) -> str:
        return self.algo if self.algo is not None else (self.checkpoint_info and self.checkpoint_info.algo) or ""

    @property
    def seed(self) -> int | None:
        return self.checkpoint_info.seed if self.checkpoint_info else None

    @property
    def options(self) -> tuple[SettingField, ...]:
        return evaluation_fields(self.worker, POLICY_FIELDS)

    @property
    def fields(self) -> Mapping[str, SettingField]:
        return {one.name: one for one in (OPTIONS["policy_path"], ALGORITHM_FIELD, ENVIRONMENT_FIELD, *self.options)}

    def default_text(self, name: str) -> str:
        shown = {"policy_path": self.path, "algo": self.algorithm, "env_id": self.environment, **self.telemetry}
        return format_value(shown[name]) if name in shown else super().default_text(name)

    def with_text(self, name: str, text: str) -> PolicyDraft:
        if name == "algo":
            return replace(self, algo=text)
        return replace(self, env_id=text) if name == "env_id" else super().with_text(name, text)

    def problems(self) -> dict[str, str]:
        found = super().problems()
        if not self.path.strip():
            found = {"policy_path": "Choose a run, or give a checkpoint folder or a .cleanrl_model file.", **found}
        if not self.path.strip() or (self.env_id is None and self.checkpoint_info is None):
            return {name: problem for name, problem in found.items() if name not in ("algo", "env_id")}
        return {**found, "algo": "Choose the one that it was trained with."} if "algo" in found else found

    def payload(self) -> dict[str, Any]:
        """Raises BadInput where a field is invalid."""
        self.require_valid()
        options = {one.name: self.value(one.name) for one in self.options}
        for name in TELEMETRY_FIELDS:
            if name in options and options[name] == OPTIONS[name].default:
                del options[name]
        config = {"algo": self.algorithm or None, "env_id": self.environment, "seed": self.seed}
        worker = {"id": self.worker, "config": {key: value for key, value in config.items() if value is not None}}
        path = (self.checkpoint_info and self.checkpoint_info.path) or self.path.strip()
        return build_eval_payload(worker, path, options)

    def with_checkpoint_info(self, info: CheckpointInfo, telemetry: Mapping[str, Any]) -> PolicyDraft:
        """Add the worker's description of the file; what it does not state must be given."""
        env_id = None if self.env_id == info.env_id else self.env_id
        algo = None if self.algo == info.algo else self.algo
        if not info.env_id or not info.algo:
            env_id = env_id or info.env_id or ""
        return replace(self, checkpoint_info=info, telemetry=telemetry, env_id=env_id, algo=algo)


def telemetry_of(payload: dict[str, Any]) -> dict[str, Any]:
    """The video settings of a payload."""
    sections = flatten_sections(payload)
    return {name: sections[name] for name in TELEMETRY_FIELDS if name in sections}


def draft_from_evaluation(payload: dict[str, Any]) -> PolicyDraft:
    """Return the form filled from this payload; the checkpoint's description is requested again."""
    payload = translate_extras(payload).data
    worker = payload["metadata"]["worker"]
    config = worker.get("config", {})
    given = {**flatten_sections(payload), "tags": payload["metadata"].get("tags")}
    texts = {name: format_value(given[name]) for name in POLICY_FIELDS if given.get(name) is not None}
    path = str(given.get("policy_path") or "")
    return PolicyDraft(worker["id"], path, env_id=config.get("env_id"), algo=config.get("algo"), texts=texts)


def is_evaluation(payload: dict[str, Any]) -> bool:
    return bool(translate_extras(payload).data.get("kind") == RunKind.POLICY_EVAL)


def describe_checkpoint(info: CheckpointInfo) -> str:
    """Describe a checkpoint in one line."""
    parts = ["Model file" if info.kind == "cleanrl_model" else "Checkpoint"]
    if info.step is not None:
        parts.append(f"of step {info.step:,}")
    if info.run_id:
        parts.append(f"of run {short_id(info.run_id)}")
    if info.saved_at:
        parts.append(f"saved {format_ago(info.saved_at)}")
    if info.score is not None:
        parts.append(f"with return {format_si_number(info.score)}")
    return " ".join(parts[:2]) + "".join(f", {part}" for part in parts[2:]) + "."


# --- the policies of several runs


@dataclass(frozen=True)
class PolicyJob:
    """The evaluation of one run's policy."""

    trained: RunView
    evaluation: RunView | None = None
    """Its run; None before it was submitted, and where it was refused."""
    problem: str = ""
    """Why it was refused."""

    @property
    def is_over(self) -> bool:
        return bool(self.problem) or (self.evaluation is not None and not self.evaluation.is_active)


class BatchSubmission:
    """Submits the evaluations. It can be called again: what was submitted stays, what was not trusted is tried."""

    def __init__(self, trained: Sequence[RunView], options: Mapping[str, Any], checkpoint: str) -> None:
        self.jobs = [PolicyJob(view) for view in trained]
        self._keys = [new_submission_key() for _ in trained]
        self._options = options
        self._checkpoint = checkpoint

    def __call__(self, trainer: TrainerClient, is_trusted: bool = False) -> list[PolicyJob]:
        """Raise NotTrusted if code of imported runs would be executed, after the others were submitted."""
        refusal: NotTrusted | None = None
        for number, job in enumerate(self.jobs):
            if job.evaluation is not None:
                continue
            try:
                payload = evaluation_payload(trainer, job.trained.run_id, self._options, self._checkpoint)
                view = trainer.submit(payload, None, is_trusted, self._keys[number])
                self.jobs[number] = PolicyJob(job.trained, view)
            except NotTrusted as error:
                refusal = refusal or error
                self.jobs[number] = replace(job, problem="Not evaluated: it would execute code of an imported run.")
            except MosaicError as error:
                self.jobs[number] = replace(job, problem=str(error))
        if refusal is not None and not is_trusted:
            raise refusal
        return self.jobs


def format_job(job: PolicyJob, view: RunView | None, summary: EvaluationBatch | None, episodes: int) -> str:
    """What a row says about its progress: `running, 12 of 50 episodes`. `view` is its evaluation's now."""
    if job.problem:
        return job.problem
    if view is None:
        return "not started"
    if view.has_failed:
        return f"{view.status}: {view.reason or 'see its log'}"
    if not view.is_active:
        return view.status
    played = max(view.episodes, summary.episodes if summary is not None else 0)
    return f"{view.status}, {format_count(played)} of {format_count(episodes)} episodes" if played else view.status


def mean_of(evaluation: Evaluation | None) -> ConfidenceInterval | None:
    if evaluation is None or evaluation.summary.avg_return is None:
        return None
    nan = float("nan")
    return ConfidenceInterval(evaluation.summary.avg_return, *(evaluation.summary.ci95 or (nan, nan)))
