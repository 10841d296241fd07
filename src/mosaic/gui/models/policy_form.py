"""What is evaluated and how: a checkpoint, its description, and the payload of its evaluation. No widget here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from mosaic.contracts.extras import flatten_sections, translate_extras
from mosaic.contracts.options import OPTIONS, RunKind
from mosaic.contracts.setting_field import SettingField
from mosaic.contracts.views import CheckpointInfo, RunView
from mosaic.formatting import format_ago, format_si_number, short_id
from mosaic.gui.models.draft import field_problem, parse_value, raise_first_problem
from mosaic.gui.models.form_layout import format_value
from mosaic.submission.algorithm_schema import supported_options
from mosaic.submission.run_payloads import build_eval_payload
from mosaic.workers import discover_workers

TELEMETRY_FIELDS = ("video_mode", "grid_limit", "fastlane_only")
"""The video settings of a training run; its policy uses the same unless they are changed."""
_EVALUATION_FIELDS = (
    *("eval_batch_size", "eval_repeat", "eval_stochastic", "seed_override", "eval_capture_video", "record_steps"),
    "record_episodes",
)
POLICY_FIELDS = tuple(OPTIONS[name] for name in (*_EVALUATION_FIELDS, *TELEMETRY_FIELDS, "tags"))
ENVIRONMENT_FIELD = SettingField("env_id", "str", None, "Must have the same spaces as the one it was trained on.")


@dataclass(frozen=True)
class PolicyDraft:
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

    def text(self, setting: SettingField) -> str:
        """As shown in the form."""
        return self.texts.get(setting.name, format_value(self.telemetry.get(setting.name, setting.default)))


def policy_workers() -> list[str]:
    """Workers that can load what they have trained."""
    return [worker.id for worker in discover_workers().values() if worker.can_inspect_policies]


@cache
def policy_fields(worker: str) -> tuple[SettingField, ...]:
    """The fields that this worker supports."""
    return tuple(option for option in POLICY_FIELDS if option in supported_options(worker))


def policy_problems(draft: PolicyDraft) -> dict[str, str]:
    problems = {field.name: field_problem(field, draft.text(field)) for field in policy_fields(draft.worker)}
    if not draft.path.strip():
        problems = {"path": "Choose a run, or give a checkpoint folder or a .cleanrl_model file.", **problems}
    elif draft.env_id is not None or draft.checkpoint_info:
        algo = "" if draft.algorithm else "Choose the algorithm that it was trained with."
        problems = {"env_id": field_problem(ENVIRONMENT_FIELD, draft.environment), "algo": algo, **problems}
    return {name: problem for name, problem in problems.items() if problem}


def policy_payload(draft: PolicyDraft) -> dict[str, Any]:
    """Raises BadInput where a field is invalid."""
    raise_first_problem(policy_problems(draft))
    options = {}
    for setting in policy_fields(draft.worker):
        value = parse_value(setting, draft.text(setting))
        if setting.name not in TELEMETRY_FIELDS or value != setting.default:
            options[setting.name] = value
    config = {"algo": draft.algorithm or None, "env_id": draft.environment, "seed": draft.seed}
    worker = {"id": draft.worker, "config": {key: value for key, value in config.items() if value is not None}}
    path = (draft.checkpoint_info and draft.checkpoint_info.path) or draft.path.strip()
    return build_eval_payload(worker, path, options)


def with_checkpoint_info(draft: PolicyDraft, info: CheckpointInfo, telemetry: Mapping[str, Any]) -> PolicyDraft:
    """Add the worker's description of the file; what it does not state must be given."""
    env_id = None if draft.env_id == info.env_id else draft.env_id
    algo = None if draft.algo == info.algo else draft.algo
    if not info.env_id or not info.algo:
        env_id = env_id or info.env_id or ""
    return replace(draft, checkpoint_info=info, telemetry=telemetry, env_id=env_id, algo=algo)


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
    names = [option.name for option in POLICY_FIELDS if given.get(option.name) is not None]
    texts = {name: format_value(given[name]) for name in names}
    path = str(given.get("policy_path") or "")
    return PolicyDraft(worker["id"], path, env_id=config.get("env_id"), algo=config.get("algo"), texts=texts)


def is_evaluation(payload: dict[str, Any]) -> bool:
    return bool(translate_extras(payload).data.get("kind") == RunKind.POLICY_EVAL)


def runs_with_policy(views: Iterable[RunView]) -> list[RunView]:
    """Runs that have trained a policy, newest first."""
    workers = policy_workers()
    trained = [view for view in views if view.kind == RunKind.TRAIN and view.checkpoint_step is not None]
    return sorted((view for view in trained if view.worker in workers), key=lambda view: view.age_key, reverse=True)


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
