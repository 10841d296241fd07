"""Checks a config before anything starts, and the long-lived process that does so for the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cleanrl_worker import describe
from cleanrl_worker.evaluation.loading import check_evaluation
from cleanrl_worker.evaluation.saved_policies import inspect_policy
from cleanrl_worker.learners import devices
from cleanrl_worker.registry import ALGORITHMS, module_name
from cleanrl_worker.shell import launcher
from cleanrl_worker.shell.user_cleanrl import script_algorithms
from cleanrl_worker.shell.worker_config import DEFAULT_SEED, WorkerRequest, parse_request
from mosaic.base.files import write_error
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.views import VerdictSummary
from mosaic.worker import checker_loop
from mosaic.worker.checker_loop import CheckerRequest, Reply
from mosaic.worker.checkpoints import load_checkpoint
from mosaic.worker.envs import list_environments
from mosaic.worker.envs.factory import describe_env
from mosaic.worker.envs.render_check import require_rendering
from mosaic.worker.worker_run import run_folder, tensorboard_folder


def check_request(request: WorkerRequest, config_path: str = "<config>") -> VerdictSummary:
    """Return everything that a run would use, computed by the same code; raise if the run would be refused."""
    folder = run_folder(request.config.run_id or "<run>")
    tensorboard = tensorboard_folder(request.payload, folder)
    summary = {
        "mode": str(request.payload.kind),
        "worker": "cleanrl",
        "command": [*describe().command, "--config", config_path],
        "directories": {
            "run": str(folder.path),
            "checkpoints": str(folder.checkpoints),
            "models": str(folder.models),
            "videos": str(folder.videos),
            "logs": str(folder.logs),
        },
        "tensorboard_dir": None if tensorboard is None else str(tensorboard),
        "threads": devices.thread_count(),
    }
    if request.is_user_script:
        from cleanrl_worker.shell.script_job import build_script_job

        return VerdictSummary.model_validate(summary | build_script_job(request).summary())
    if request.is_evaluation:
        return VerdictSummary.model_validate(summary | check_evaluation(request))
    config, facts, env = launcher.check_training(request)
    settings = config.model_dump(mode="json")
    from cleanrl_worker.algorithms.run_checks import observation_warnings, step_warnings

    backend = facts.get("backend", settings.get("backend"))
    encodes_images = facts.get("encodes_images", False)
    warnings = step_warnings(config) + devices.torch_warnings(config, request.settings)
    if not ALGORITHMS[request.algo].is_for_games:
        warnings += observation_warnings(env, encodes_images)
    training = {
        "module": module_name(request.algo),
        "algo": request.algo,
        "env_id": config.env_id,
        "seed": config.seed,
        "total_timesteps": config.total_timesteps,
        "settings": settings,
        "environment": describe_env(env),
        "cpus": _useful_threads(request, config, backend, encodes_images),
        "gpus": _useful_gpus(request, config, backend, encodes_images),
        "backend": backend,
        "facts": facts,
        "warnings": warnings,
    }
    return VerdictSummary.model_validate(summary | training)


def _useful_threads(request: WorkerRequest, config: Any, backend: str | None, encodes_images: bool) -> int:
    """Return one thread for numpy: a second one gains 1.1 on an idle machine, and loses 3 next to another program."""
    if backend == "numpy":
        return 1
    return ALGORITHMS[request.algo].useful_threads(config.hidden_sizes, encodes_images or config.network is not None)


def _useful_gpus(request: WorkerRequest, config: Any, backend: str | None, has_convolutions: bool) -> int:
    """Return how many GPUs a run gains from; a config that says `cuda` asks for one, whatever the network."""
    if backend == "numpy" or not config.cuda:
        return 0
    is_wide = has_convolutions or "cuda" in request.settings
    return max(ALGORITHMS[request.algo].gpus, int(is_wide))


def format_summary(summary: VerdictSummary) -> str:
    """Format the summary for people."""
    lines = [
        f"{summary.algo} on {summary.env_id}: this would run.",
        f"  module       {summary.module}",
        f"  observations {summary.environment.observation_space}",
        f"  actions      {summary.environment.action_space}",
        f"  run folder   {summary.directories['run']}",
        f"  tensorboard  {summary.tensorboard_dir or 'off'}",
    ]
    if summary.policy_path is not None:
        lines.append(f"  policy       {summary.policy_path}, {summary.eval_batch_size} episodes")
    lines += [f"  {name:<28} {value}" for name, value in summary.settings.items()]
    lines += [f"  Warning: {text}" for text in summary.warnings]
    return "\n".join(lines)


# --- the process


def _check(request: CheckerRequest) -> Reply:
    return {"summary": check_request(parse_request(request.config)).to_json()}


def _list_environments(request: CheckerRequest) -> Reply:
    return {"environments": list_environments(request.family)}


def _list_algorithms(request: CheckerRequest) -> Reply:
    from cleanrl_worker.shell.schema_generator import build_schema

    schema = build_schema()
    if request.cleanrl is not None:
        schema["algorithms"] |= script_algorithms(request.cleanrl)
    return {"algorithms": sorted(schema["algorithms"]), "schema": schema}


def _describe_checkpoint(request: CheckerRequest) -> Reply:
    return {"checkpoint": inspect_policy(request.require("path"))}


def _export_model(request: CheckerRequest) -> Reply:
    """Write a checkpoint's weights as CleanRL's model file."""
    into = Path(request.require("into"))
    try:
        launcher.write_model(load_checkpoint(request.require("path"), with_parts=False), into)
    except OSError as error:
        raise write_error(into, error) from None
    return {"path": str(into)}


REQUEST_HANDLERS: checker_loop.Handlers = {
    "check": _check,
    "environments": _list_environments,
    "algorithms": _list_algorithms,
    "checkpoint": _describe_checkpoint,
    "model": _export_model,
    "probe": lambda request: require_rendering(request.require("family")),
}


def serve() -> int:
    return checker_loop.serve(REQUEST_HANDLERS, _warm_up)


def _warm_up() -> None:
    """Import what the first request would have to wait for."""
    for name in ("ppo", "ppo_continuous_action"):
        try:
            check_request(parse_request({"algo": name, "env_id": "CartPole-v1", "seed": DEFAULT_SEED}))
        except MosaicError:
            continue
