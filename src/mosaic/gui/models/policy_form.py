"""What is asked of a trained policy: from a run or a file to the payload of an evaluation. No widget here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from mosaic.contracts.errors import BadInput
from mosaic.contracts.extras import flatten_sections, translate_extras
from mosaic.contracts.options import OPTIONS
from mosaic.contracts.run_kind import RunKind
from mosaic.contracts.setting_field import SettingField
from mosaic.formatting import format_ago, format_si_number, short_id
from mosaic.gui.models.draft import field_problem, parse_value
from mosaic.gui.models.form_layout import format_value
from mosaic.submission.algorithm_schema import supported_options
from mosaic.submission.run_payloads import build_eval_payload
from mosaic.workers import discover_workers

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView

Json = dict[str, Any]

TELEMETRY_FIELDS = ("video_mode", "grid_limit")
"""The video settings of a training run; its policy uses the same unless they are changed."""
POLICY_FIELDS = tuple(
    OPTIONS[name]
    for name in (
        "eval_batch_size",
        "eval_repeat",
        "eval_stochastic",
        "seed_override",
        "eval_capture_video",
        *TELEMETRY_FIELDS,
        "tags",
    )
)
ENVIRONMENT_FIELD = SettingField("env_id", "str", None, "Must have the same spaces as the one it was trained on.")


@dataclass(frozen=True)
class PolicyDraft:
    worker: str
    path: str = ""
    """A checkpoint folder, a run folder or a .cleanrl_model file, on the trainer's machine."""
    checkpoint_info: Json = field(default_factory=dict)
    """The worker's description of it; empty until it has answered, or where it refused."""
    telemetry: Json = field(default_factory=dict)
    """How the run that trained it was watched."""
    env_id: str | None = None
    """Another environment than it was trained on; None: the same."""
    algo: str | None = None
    """Another algorithm than it says; None: the same."""
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> str:
        return self.env_id if self.env_id is not None else str(self.checkpoint_info.get("env_id") or "")

    @property
    def algorithm(self) -> str:
        return self.algo if self.algo is not None else str(self.checkpoint_info.get("algo") or "")

    def text(self, setting: SettingField) -> str:
        """As shown in the form."""
        return self.texts.get(setting.name, format_value(self.telemetry.get(setting.name, setting.default)))


def policy_workers() -> list[str]:
    """Those that can load what they have trained."""
    return [worker.id for worker in discover_workers().values() if worker.can_load_policies]


@cache
def policy_fields(worker: str) -> tuple[SettingField, ...]:
    """Those that this worker takes."""
    return tuple(option for option in POLICY_FIELDS if option in supported_options(worker))


def policy_problems(draft: PolicyDraft) -> dict[str, str]:
    found = {of.name: field_problem(of, draft.text(of)) for of in policy_fields(draft.worker)}
    if not draft.path.strip():
        found = {"path": "Choose a run, or give a checkpoint folder or a .cleanrl_model file.", **found}
    elif draft.env_id is not None or draft.checkpoint_info:
        algo = "" if draft.algorithm else "Choose the algorithm that it was trained with."
        found = {"env_id": field_problem(ENVIRONMENT_FIELD, draft.environment), "algo": algo, **found}
    return {name: problem for name, problem in found.items() if problem}


def policy_payload(draft: PolicyDraft) -> Json:
    wrong = policy_problems(draft)
    if wrong:
        name, problem = next(iter(wrong.items()))
        raise BadInput(f"{name}: {problem}")
    fields = policy_fields(draft.worker)
    values = {of.name: parse_value(of, draft.text(of)) for of in fields}
    config = {"algo": draft.algorithm or None, "env_id": draft.environment, "seed": draft.checkpoint_info.get("seed")}
    trained = {
        "metadata": {
            "worker": {"id": draft.worker, "config": {key: value for key, value in config.items() if value is not None}}
        }
    }
    watched = {
        of.name: values[of.name] for of in fields if of.name in TELEMETRY_FIELDS and values[of.name] != of.default
    }
    return build_eval_payload(
        trained,
        str(draft.checkpoint_info.get("path") or draft.path.strip()),
        values["eval_batch_size"],
        bool(values.get("eval_capture_video")),
        values.get("seed_override"),
        values["tags"] or (),
        bool(values.get("eval_repeat")),
        is_stochastic=bool(values.get("eval_stochastic")),
        **watched,
    )


def with_checkpoint_info(draft: PolicyDraft, checkpoint_info: Json, telemetry: Json) -> PolicyDraft:
    """Take in the worker's description of the file; what it does not state must be given."""
    env_id = None if draft.env_id == checkpoint_info.get("env_id") else draft.env_id
    algo = None if draft.algo == checkpoint_info.get("algo") else draft.algo
    if not checkpoint_info.get("env_id") or not checkpoint_info.get("algo"):
        env_id = env_id or str(checkpoint_info.get("env_id") or "")
    return replace(draft, checkpoint_info=checkpoint_info, telemetry=telemetry, env_id=env_id, algo=algo)


def telemetry_of(payload: Json) -> Json:
    """How a run that trained is watched, by its payload."""
    sections = flatten_sections(payload)
    return {name: sections[name] for name in TELEMETRY_FIELDS if name in sections}


def draft_from_evaluation(payload: Json) -> PolicyDraft:
    """Return the form filled from this payload; the checkpoint's description is requested again."""
    payload = translate_extras(payload).data
    chosen = payload["metadata"]["worker"]
    config = chosen.get("config", {})
    given = {**flatten_sections(payload), "tags": payload["metadata"].get("tags")}
    texts = {of.name: format_value(given[of.name]) for of in POLICY_FIELDS if given.get(of.name) is not None}
    return PolicyDraft(
        worker=chosen["id"],
        path=str(given.get("policy_path") or ""),
        env_id=config.get("env_id"),
        algo=config.get("algo"),
        texts=texts,
    )


def is_evaluation(payload: Json) -> bool:
    return bool(translate_extras(payload).data.get("kind") == RunKind.POLICY_EVAL)


def runs_with_policy(views: Iterable[RunView]) -> list[RunView]:
    """Runs that have trained a policy, newest first."""
    can = set(policy_workers())
    found = [
        view for view in views if view.kind == RunKind.TRAIN and view.checkpoint_step is not None and view.worker in can
    ]
    return sorted(found, key=lambda view: str(view.run_id), reverse=True)


def describe_checkpoint(checkpoint_info: Json) -> str:
    """Describe a checkpoint in one line."""
    parts = ["Model file" if checkpoint_info.get("kind") == "cleanrl_model" else "Checkpoint"]
    if checkpoint_info.get("step") is not None:
        parts.append(f"of step {checkpoint_info['step']:,}")
    if checkpoint_info.get("run_id"):
        parts.append(f"of run {short_id(str(checkpoint_info['run_id']))}")
    if checkpoint_info.get("saved_at"):
        parts.append(f"saved {format_ago(checkpoint_info['saved_at'])}")
    if checkpoint_info.get("score") is not None:
        parts.append(f"with return {format_si_number(checkpoint_info['score'])}")
    return " ".join(parts[:2]) + "".join(f", {part}" for part in parts[2:]) + "."
