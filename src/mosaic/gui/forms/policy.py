"""What is asked of a trained policy: from a run or a file to the payload of an evaluation. No widget here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from mosaic.contracts.errors import BadInput
from mosaic.gui.forms.draft import problem, read
from mosaic.gui.forms.layout import shown
from mosaic.gui.views.words import ago, number, short_id
from mosaic.plugins import workers
from mosaic.plugins.payloads import eval_payload
from mosaic.plugins.schema import EXTRA_FIELDS, Field, reserved_extras

Json = dict[str, Any]
MODE = "policy_eval"

TELEMETRY = ("video_mode", "grid_limit")
"""What a training run says of how it is watched; its policy is watched the same way unless told otherwise."""
FIELDS = (
    Field("eval_batch_size", "int", 50, "For each batch, each on a seed that training never saw.", {"ge": 1}),
    Field("eval_repeat", "bool", False, "Play batch after batch until the run is cancelled."),
    Field("eval_stochastic", "bool", False, "Draw actions at random as in training, instead of the likeliest ones."),
    Field(
        "seed_override",
        "int",
        None,
        "Each episode takes the next; unset: seeds that training never uses.",
        {"ge": 0},
        is_optional=True,
    ),
    Field("eval_capture_video", "bool", False, "Record the first episodes."),
    *(of for of in EXTRA_FIELDS if of.name in TELEMETRY),
    Field("tags", "names", None, "Separated by commas.", is_optional=True),
)
ENVIRONMENT = Field("env_id", "str", None, "Must have the same spaces as the one it was trained on.")


@dataclass(frozen=True)
class PolicyDraft:
    worker: str
    path: str = ""
    """A checkpoint folder, a run folder or a .cleanrl_model file, on the trainer's machine."""
    found: Json = field(default_factory=dict)
    """What the worker says of it; empty until it has answered, or where it refused."""
    telemetry: Json = field(default_factory=dict)
    """How the run that trained it was watched."""
    env_id: str | None = None
    """Another environment than it was trained on; None: the same."""
    algo: str | None = None
    """Another algorithm than it says; None: the same."""
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> str:
        return self.env_id if self.env_id is not None else str(self.found.get("env_id") or "")

    @property
    def algorithm(self) -> str:
        return self.algo if self.algo is not None else str(self.found.get("algo") or "")

    def text(self, of: Field) -> str:
        """As it stands in the form."""
        return self.texts.get(of.name, shown(self.telemetry.get(of.name, of.default)))


def policy_workers() -> list[str]:
    """Those that can load what they have trained."""
    return [worker.id for worker in workers().values() if worker.can_load_policies]


@cache
def fields_of(worker: str) -> tuple[Field, ...]:
    """Those that this worker takes."""
    known = set(reserved_extras(worker))
    return tuple(of for of in FIELDS if of.name == "tags" or of.name in known)


def policy_problems(draft: PolicyDraft) -> dict[str, str]:
    found = {of.name: problem(of, draft.text(of)) for of in fields_of(draft.worker)}
    if not draft.path.strip():
        found = {"path": "Choose a run, or give a checkpoint folder or a .cleanrl_model file.", **found}
    elif draft.env_id is not None or draft.found:
        algo = "" if draft.algorithm else "Choose the algorithm that it was trained with."
        found = {"env_id": problem(ENVIRONMENT, draft.environment), "algo": algo, **found}
    return {name: said for name, said in found.items() if said}


def policy_payload(draft: PolicyDraft) -> Json:
    wrong = policy_problems(draft)
    if wrong:
        name, said = next(iter(wrong.items()))
        raise BadInput(f"{name}: {said}")
    fields = fields_of(draft.worker)
    values = {of.name: read(of, draft.text(of)) for of in fields}
    config = {"algo": draft.algorithm or None, "env_id": draft.environment, "seed": draft.found.get("seed")}
    trained = {
        "metadata": {
            "worker": {"id": draft.worker, "config": {key: value for key, value in config.items() if value is not None}}
        }
    }
    watched = {of.name: values[of.name] for of in fields if of.name in TELEMETRY and values[of.name] != of.default}
    return eval_payload(
        trained,
        str(draft.found.get("path") or draft.path.strip()),
        values["eval_batch_size"],
        bool(values.get("eval_capture_video")),
        values.get("seed_override"),
        values["tags"] or (),
        bool(values.get("eval_repeat")),
        is_stochastic=bool(values.get("eval_stochastic")),
        **watched,
    )


def with_found(draft: PolicyDraft, found: Json, telemetry: Json) -> PolicyDraft:
    """What the worker says of the file is known now; what it does not know must be told."""
    env_id = None if draft.env_id == found.get("env_id") else draft.env_id
    algo = None if draft.algo == found.get("algo") else draft.algo
    if not found.get("env_id") or not found.get("algo"):
        env_id = env_id or str(found.get("env_id") or "")
    return replace(draft, found=found, telemetry=telemetry, env_id=env_id, algo=algo)


def telemetry_of(payload: Json) -> Json:
    """How a run that trained is watched, by its payload."""
    extras = payload.get("metadata", {}).get("worker", {}).get("config", {}).get("extras")
    return {name: extras[name] for name in TELEMETRY if name in extras} if isinstance(extras, dict) else {}


def from_evaluation(payload: Json) -> PolicyDraft:
    """The form as this payload would have it filled; what the checkpoint says is asked for anew."""
    chosen = payload["metadata"]["worker"]
    config = chosen.get("config", {})
    extras = config.get("extras", {})
    given = {**extras, "eval_batch_size": extras.get("eval_batch_size") or extras.get("eval_episodes")}
    given["tags"] = payload["metadata"].get("tags")
    texts = {of.name: shown(given[of.name]) for of in FIELDS if given.get(of.name) is not None}
    return PolicyDraft(
        worker=chosen["id"],
        path=str(extras.get("policy_path") or ""),
        env_id=config.get("env_id"),
        algo=config.get("algo"),
        texts=texts,
    )


def is_evaluation(payload: Json) -> bool:
    config = payload.get("metadata", {}).get("worker", {}).get("config", {})
    return bool(config.get("extras", {}).get("mode") == MODE)


def loadable(views: Iterable[Json]) -> list[Json]:
    """Runs that have trained a policy, newest first."""
    can = set(policy_workers())
    found = [
        view
        for view in views
        if view.get("kind") == "train" and view.get("checkpoint_step") is not None and view.get("worker") in can
    ]
    return sorted(found, key=lambda view: str(view["run_id"]), reverse=True)


def told(found: Json) -> str:
    """What a checkpoint says of itself, in one line."""
    parts = ["Model file" if found.get("kind") == "cleanrl_model" else "Checkpoint"]
    if found.get("step") is not None:
        parts.append(f"of step {found['step']:,}")
    if found.get("run_id"):
        parts.append(f"of run {short_id(str(found['run_id']))}")
    if found.get("saved_at"):
        parts.append(f"saved {ago(found['saved_at'])}")
    if found.get("score") is not None:
        parts.append(f"with return {number(found['score'])}")
    return " ".join(parts[:2]) + "".join(f", {part}" for part in parts[2:]) + "."
