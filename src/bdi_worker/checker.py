"""Checks a config before anything starts, and the long-lived process that does so for the daemon."""

from __future__ import annotations

from typing import Any

from bdi_worker import WORKER_NAME, describe
from bdi_worker.asl_source import list_examples
from bdi_worker.policy import find_checkpoint, load_for_evaluation, read_agent
from bdi_worker.schema_generator import SUPPORTED_OPTIONS, build_schema
from bdi_worker.training import check_training
from bdi_worker.worker_config import ALGORITHM, WorkerRequest, parse_request
from mosaic.contracts.errors import FieldProblem
from mosaic.contracts.model import refuse
from mosaic.contracts.options import OPTIONS, value_at
from mosaic.contracts.views import VerdictSummary
from mosaic.worker import checker_loop
from mosaic.worker.checker_loop import CheckerRequest, Reply
from mosaic.worker.envs import list_environments
from mosaic.worker.envs.factory import describe_env
from mosaic.worker.envs.render_check import require_rendering
from mosaic.worker.evaluation_batches import batch_size

FAMILIES = ("toy_text", "minigrid")


def check_request(request: WorkerRequest, config_path: str = "<config>") -> VerdictSummary:
    """Return everything that a run would use; raise if the run would be refused."""
    _refuse_unsupported_options(request)
    summary = {
        "mode": str(request.payload.kind),
        "worker": WORKER_NAME,
        "command": [*describe().command, "--config", config_path],
        "algo": ALGORITHM,
        "cpus": 1,
    }
    found = _check_evaluation(request) if request.payload.is_evaluation else _check_training(request)
    return VerdictSummary.model_validate(summary | found)


def _refuse_unsupported_options(request: WorkerRequest) -> None:
    data = request.payload.to_json()
    unsupported = (one for one in OPTIONS.values() if one.is_worker_option and one.name not in SUPPORTED_OPTIONS)
    problems = [
        FieldProblem(option.path, f"{ALGORITHM} does not support it; leave it out")
        for option in unsupported
        if value_at(data, option.path)
    ]
    video = request.payload.artifacts.video
    if video.capture_evaluation and not request.payload.is_evaluation:
        path = OPTIONS["eval_capture_video"].path
        problems.append(FieldProblem(path, f"{ALGORITHM} does not evaluate after a training; leave it out"))
    if problems:
        raise refuse(problems, "The config was")


def _check_training(request: WorkerRequest) -> dict[str, Any]:
    settings = request.settings()
    source, mind, env = check_training(settings)
    return {
        "module": "bdi_worker.training",
        "env_id": settings.env_id,
        "seed": settings.seed,
        "total_timesteps": settings.total_timesteps,
        "settings": settings.model_dump(mode="json"),
        "environment": describe_env(env),
        "facts": {"asl": source.name, "plans": mind.agent.table.labels},
        "warnings": mind.warnings,
    }


def _check_evaluation(request: WorkerRequest) -> dict[str, Any]:
    saved, loaded = load_for_evaluation(request)
    env = loaded.make_env()
    try:
        environment = describe_env(env)
    finally:
        env.close()
    return {
        "module": "bdi_worker.policy",
        "env_id": loaded.env_id,
        "policy_path": str(loaded.path),
        "checkpoint_step": loaded.step,
        "seed": loaded.first_seed,
        "settings": saved.settings.model_dump(mode="json"),
        "environment": environment,
        "eval_batch_size": batch_size(request.payload),
        "eval_repeat": request.payload.evaluation.repeat,
        "eval_stochastic": request.payload.evaluation.stochastic,
    }


# --- the process


def _check(request: CheckerRequest) -> Reply:
    return {"summary": check_request(parse_request(request.config)).to_json()}


def _list_environments(request: CheckerRequest) -> Reply:
    families = FAMILIES if request.family is None else (request.family,)
    return {"environments": [env for family in families for env in list_environments(family)]}


def _list_algorithms(request: CheckerRequest) -> Reply:
    return {"algorithms": [ALGORITHM], "schema": build_schema(), "examples": list_examples()}


def _describe_checkpoint(request: CheckerRequest) -> Reply:
    checkpoint = find_checkpoint(request.require("path"))
    saved = read_agent(checkpoint)
    manifest = {key: checkpoint.manifest.get(key) for key in ("run_id", "saved_at", "score", "versions")}
    return {
        "checkpoint": manifest
        | {
            "kind": "checkpoint",
            "path": str(saved.path),
            "step": saved.step,
            "algo": ALGORITHM,
            "env_id": saved.settings.env_id,
            "seed": saved.settings.seed,
            "config": saved.settings.model_dump(mode="json"),
            "weights": {name: list(array.shape) for name, array in checkpoint.weights.items()},
        }
    }


REQUEST_HANDLERS: checker_loop.Handlers = {
    "check": _check,
    "environments": _list_environments,
    "algorithms": _list_algorithms,
    "checkpoint": _describe_checkpoint,
    "probe": lambda request: require_rendering(request.require("family")),
}


def serve() -> int:
    return checker_loop.serve(REQUEST_HANDLERS)
