"""Finds the policy that a user names by a run or a path."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.contracts.errors import BadInput, MosaicError, NotAllowed
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.options import OPTIONS
from mosaic.contracts.run_kind import RunKind
from mosaic.formatting import short_id
from mosaic.submission.run_payloads import build_eval_payload
from mosaic.workers import discover_workers

if TYPE_CHECKING:
    from mosaic.client import TrainerClient
    from mosaic.contracts.views import RunView

MODEL_SUFFIXES = (".cleanrl_model", ".pt", ".pth")


@dataclass(frozen=True)
class EvalOptions:
    """How a policy is evaluated."""

    episodes: int = OPTIONS["eval_batch_size"].default
    checkpoint: str = "last"
    has_video: bool = False
    seed_override: int | None = None
    is_repeated: bool = False
    env_id: str | None = None
    algo: str | None = None
    grid_limit: int | None = None
    is_stochastic: bool = False


@dataclass(frozen=True)
class PolicySource:
    """Where a policy is, and what it was trained by and on."""

    worker: str
    config: dict[str, Any]
    """`algo`, `env_id` and `seed`, as far as they are known."""
    path: str


def evaluation_payload(trainer: TrainerClient, policy: str, options: EvalOptions) -> dict[str, Any]:
    """Return the payload that evaluates a policy, given by a run or a path."""
    source = find_policy_source(trainer, policy, options)
    return build_eval_payload(
        {"metadata": {"worker": {"id": source.worker, "config": source.config}}},
        source.path,
        options.episodes,
        options.has_video,
        options.seed_override,
        is_repeated=options.is_repeated,
        is_stochastic=options.is_stochastic,
        video_mode=None if options.grid_limit is None else "grid",
        grid_limit=options.grid_limit,
    )


def find_policy_source(trainer: TrainerClient, policy: str, options: EvalOptions) -> PolicySource:
    if is_policy_path(policy):
        if options.checkpoint != "last":
            raise BadInput(
                "checkpoint: it chooses among those of a run, and a path names one already. Leave one of them out."
            )
        source = _inspect_policy_file(trainer, Path(policy).expanduser().absolute())
    else:
        source = _policy_of_run(trainer, resolve_trained_run(trainer, policy), options.checkpoint)
    overrides = {"algo": options.algo, "env_id": options.env_id}
    given = {key: value for key, value in overrides.items() if value is not None}
    return PolicySource(source.worker, {**source.config, **given}, source.path)


def _policy_of_run(trainer: TrainerClient, view: RunView, checkpoint: str) -> PolicySource:
    found = None if view.kind == RunKind.POLICY_EVAL else checkpoint_path(view, checkpoint)
    if found is not None and found.is_file():
        return _inspect_policy_file(trainer, found)
    payload = trainer.config(view.run_id)
    chosen = payload["metadata"]["worker"]
    # The policy of an evaluation is the one that it evaluated.
    path = payload["evaluation"]["policy_path"] if found is None else str(found)
    return PolicySource(chosen["id"], dict(chosen["config"]), path)


def is_policy_path(policy: str) -> bool:
    """Return whether this is a file or folder, and not a run."""
    return (
        os.sep in policy or policy.startswith((".", "~")) or policy.endswith(MODEL_SUFFIXES) or Path(policy).is_file()
    )


def _inspect_policy_file(trainer: TrainerClient, path: Path) -> PolicySource:
    """Ask the workers that can load policies about a file."""
    if not path.exists():
        raise BadInput(f"There is no file or folder {path}.")
    refusal: MosaicError = NotAllowed("No worker here can load policies.")
    for worker in discover_workers().values():
        if worker.can_load_policies:
            try:
                found = trainer.ask_worker(worker.id, {"ask": "checkpoint", "path": str(path)})["checkpoint"]
            except BadInput as error:
                refusal = error
                continue
            config = {key: found[key] for key in ("algo", "env_id", "seed") if found.get(key) is not None}
            return PolicySource(worker.id, config, str(found.get("path") or path))
    raise refusal


def resolve_trained_run(trainer: TrainerClient, run: str) -> RunView:
    """Return the run; `last` is the last one that trained, because evaluations are runs too."""
    view = trainer.get(run)
    if run == "last" and view.kind != RunKind.TRAIN:
        return next((other for other in trainer.runs() if other.kind == RunKind.TRAIN), view)
    return view


def checkpoint_path(view: RunView, which: str) -> Path:
    """Return the path of a run's checkpoint, or of the model file of a run without any; NotAllowed if it has none."""
    if which not in ("best", "last") and not which.isdecimal():
        raise BadInput(f"checkpoint {which!r}: expected best, last or the step of a checkpoint.")
    folder = RunFolder(view.run_dir)
    path = folder.checkpoints / which
    if path.exists():
        return folder.checkpoints / path.resolve().name  # `last` moves on while the run still trains
    steps = sorted(int(one.name) for one in folder.checkpoints.glob("*") if one.name.isdecimal())
    models = sorted(folder.models.rglob(f"*{MODEL_SUFFIXES[0]}"), key=lambda model: model.stat().st_mtime)
    if which == "last" and models and not steps:
        return models[-1]
    has = "It has those of steps " + ", ".join(map(str, steps)) if steps else "It has saved none yet"
    raise NotAllowed(f"Run {short_id(view.run_id)} has no checkpoint {which!r}. {has}.")
