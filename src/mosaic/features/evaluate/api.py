"""Finds the policy that a user names by a run or a path."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.base.formatting import short_id
from mosaic.base.run_payloads import build_eval_payload
from mosaic.base.worker_registry import discover_workers
from mosaic.contracts.errors import BadInput, MosaicError, NotAllowed, WrongWorker, problems_of
from mosaic.contracts.options import RunKind
from mosaic.trainer.client.run_lookup import has_policy, resolve_run

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView
    from mosaic.trainer.client.trainer_client import TrainerClient

MODEL_SUFFIXES = (".cleanrl_model", ".pt", ".pth")


@dataclass(frozen=True)
class PolicySource:
    """Where a policy is, and what it was trained by and on."""

    worker: str
    config: dict[str, Any]
    """`algo`, `env_id` and `seed`, as far as they are known."""
    path: str
    imports: dict[str, Any] | None = None
    """The modules that its run imports, if it is of a run."""
    is_imported: bool = False
    """Whether it comes from elsewhere, so that an environment id of its own must not import a module."""


def evaluation_payload(
    trainer: TrainerClient,
    policy: str,
    options: Mapping[str, Any],
    checkpoint: str = "last",
    algo: str | None = None,
    env_id: str | None = None,
) -> dict[str, Any]:
    """Return the payload that evaluates a policy, given by a run or a path; `options` are options of a run by name.

    `checkpoint` chooses among those of a run. `algo` and `env_id` replace what is known of the policy.
    """
    if not is_policy_path(policy):
        source = _policy_of_run(trainer, resolve_run(trainer, policy, has_policy), checkpoint)
    elif checkpoint != "last":
        raise BadInput(
            "checkpoint: it chooses among those of a run, and a path names one already. Leave one of them out."
        )
    else:
        path = Path(policy).expanduser().absolute()
        if trainer.is_local and not path.exists():
            raise BadInput(f"There is no file or folder {path}.")
        source = _inspect_policy_file(trainer, str(path))
    overrides = {key: value for key, value in (("algo", algo), ("env_id", env_id)) if value is not None}
    video_mode = options.get("video_mode") or (None if options.get("grid_limit") is None else "grid")
    worker = {"id": source.worker, "config": {**source.config, **overrides}, "imports": source.imports}
    payload = build_eval_payload(worker, source.path, {**options, "video_mode": video_mode})
    if source.is_imported and env_id is None:
        payload["metadata"]["is_imported"] = True
    return payload


def _policy_of_run(trainer: TrainerClient, view: RunView, checkpoint: str) -> PolicySource:
    is_evaluation = view.kind == RunKind.POLICY_EVAL
    saved_model = None if is_evaluation or checkpoint != "last" else _model_saved_by_script(trainer, view)
    if saved_model is not None:
        source = _inspect_policy_file(trainer, saved_model)
        of_run = {"algo": (view.algo or "").rpartition(":")[2], "env_id": view.env_id}
        known = {key: value for key, value in of_run.items() if value}
        return PolicySource(source.worker, {**known, **source.config}, source.path, is_imported=view.is_imported)
    worker = discover_workers().get(view.worker)
    if worker is not None and worker.load_policy is None and not worker.has_own_command:
        raise NotAllowed(
            f"The worker {view.worker!r} of run {short_id(view.run_id)} cannot load policies, so they can be neither "
            "evaluated nor played. Its description needs load_policy: docs/guides/algorithm.md"
        )
    path = "" if is_evaluation else f"{view.run_dir}/{choose_checkpoint(trainer, view, checkpoint)}"
    if path.endswith(MODEL_SUFFIXES):
        return _inspect_policy_file(trainer, path)
    payload = trainer.payload(view.run_id)
    choice = payload.metadata.worker
    # The policy of an evaluation is the one that it evaluated.
    path = path or str(payload.evaluation.policy_path)
    imports = None if choice.imports is None else choice.imports.model_dump(mode="json")
    return PolicySource(choice.id, choice.config, path, imports, payload.metadata.is_imported)


def files_saved_by_script(trainer: TrainerClient, view: RunView) -> list[str]:
    """Return the files that the user's script saved itself, the newest last; they may be anywhere."""
    try:
        listed = trainer.read_json(view.run_id, "analytics.json").get("saved_files") or []
        return [str(entry["path"]) for entry in sorted(listed, key=lambda entry: entry["at"])]
    except (AttributeError, KeyError, TypeError):
        return []


def _model_saved_by_script(trainer: TrainerClient, view: RunView) -> str | None:
    """Return the newest model file of a run that has no checkpoint of ours."""
    if trainer.files(view.run_id, "checkpoints/*"):
        return None
    saved = files_saved_by_script(trainer, view)
    models = [path for path in saved if path.endswith(MODEL_SUFFIXES)]
    if saved and not models:
        raise NotAllowed(
            f"Run {short_id(view.run_id)} saved {saved[-1]}, which cannot be evaluated: "
            f"expected a file of CleanRL or a state dict ({', '.join(MODEL_SUFFIXES)})."
        )
    return models[-1] if models else None


def is_policy_path(policy: str) -> bool:
    """Return whether this is a file or folder, and not a run."""
    return (
        os.sep in policy or policy.startswith((".", "~")) or policy.endswith(MODEL_SUFFIXES) or Path(policy).is_file()
    )


def _inspect_policy_file(trainer: TrainerClient, path: str) -> PolicySource:
    """Ask the workers that can load policies about a file on the trainer's machine."""
    refusal: MosaicError | None = None
    other: MosaicError = NotAllowed("No worker here can load policies.")
    for worker in discover_workers().values():
        if worker.can_inspect_policies:
            try:
                checkpoint = trainer.inspect_checkpoint(worker.id, path)
            except WrongWorker as error:
                other = error
                continue
            except BadInput as error:
                refusal = error
                continue
            config = checkpoint.model_dump(include={"algo", "env_id", "seed"}, exclude_none=True)
            # A file may come from anywhere, and name any module.
            return PolicySource(
                worker.id, config, checkpoint.path or path, is_imported=":" in (checkpoint.env_id or "")
            )
    raise refusal or other


@problems_of("checkpoint")
def choose_checkpoint(trainer: TrainerClient, view: RunView, which: str) -> str:
    """Return the path of a run's checkpoint, or of the model file of a run without any, relative to its folder."""
    if which not in ("best", "last") and not which.isdecimal():
        raise BadInput(f"checkpoint {which!r}: expected best, last or the step of a checkpoint.")
    files = trainer.files(view.run_id, "checkpoints/*")
    links = {file.name.split("/")[1]: file.link_target for file in files if file.link_target}
    steps = {file.name.split("/")[1] for file in files if not file.link_target}
    step = links.get(which, which)
    if step in steps:
        return f"checkpoints/{step}"
    models = trainer.files(view.run_id, f"runs/*{MODEL_SUFFIXES[0]}")
    numbers = sorted(int(name) for name in steps if name.isdecimal())
    if which == "last" and models and not numbers:
        return max(models, key=lambda model: model.modified_at).name
    has = "It has those of steps " + ", ".join(map(str, numbers)) if numbers else "It has saved none yet"
    raise NotAllowed(f"Run {short_id(view.run_id)} has no checkpoint {which!r}. {has}.")


def open_policy(trainer: TrainerClient, view: RunView, checkpoint: str) -> Path:
    """Return where the policy of a run can be opened on this machine; an evaluation's is the one that it evaluated."""
    if not view.is_evaluation:
        return trainer.open_file(view.run_id, choose_checkpoint(trainer, view, checkpoint))
    path = str(trainer.payload(view.run_id).evaluation.policy_path)
    if trainer.is_local:
        return Path(path)
    evaluation = next(trainer.read_evaluations(view.run_id), None)
    if evaluation is None or evaluation.trained is None:
        raise NotAllowed(f"{path} is not a file of a run. Copy it from the trainer's machine, and load the copy.")
    trained = trainer.get_run(evaluation.trained.run_id)
    name = path.partition(trained.run_id)[2].strip("/") or choose_checkpoint(trainer, trained, "last")
    return trainer.open_file(trained.run_id, name)
