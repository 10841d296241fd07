"""The verdict on a config before anything starts; and the long-lived process that gives it.

The process reads questions as JSON lines on stdin and answers each with one JSON line on stdout:
`{"id": 1, "ask": "check", "config": {…}}` → `{"id": 1, "ok": true, "summary": {…}}` or
`{"id": 1, "ok": false, "error": "UnknownName", "message": "…"}`. It ends when stdin does.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from cleanrl_worker import describe, devices, evaluation, launcher
from cleanrl_worker.config import DEFAULT_SEED, Assignment, assigned
from cleanrl_worker.inspection import inspect
from cleanrl_worker.registry import ALGORITHMS, module_name
from mosaic.contracts.errors import BadInput, MosaicError, unknown
from mosaic.contracts.folder import RUN_DIR_VARIABLE, RunFolder, Workspace
from mosaic.envs import list_environments
from mosaic.envs.factory import described
from mosaic.envs.probe import probe
from mosaic.run import load_checkpoint

Json = dict[str, Any]


def run_folder(run_id: str | None) -> RunFolder:
    """The folder that was given by whoever started us, else one in the workspace."""
    told = os.environ.get(RUN_DIR_VARIABLE)
    return RunFolder(told) if told else Workspace.chosen().run(run_id or "<run>")


def check(assignment: Assignment, config_path: str = "<config>") -> Json:
    """Everything that a run would use, from the same code; raises where the run would be refused."""
    folder = run_folder(assignment.config.run_id)
    tensorboard = launcher.tensorboard_folder(assignment, folder)
    summary: Json = {
        "mode": assignment.extras.mode or "train",
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
        "threads": devices.threads(),
        "extras": assignment.extras.model_dump(mode="json", exclude_unset=True, exclude={"wandb_api_key"}),
        "warnings": warnings(assignment),
    }
    if assignment.is_foreign:
        from cleanrl_worker.scripts import planned

        return summary | planned(assignment).summary()
    if assignment.is_evaluation:
        return summary | evaluation.check(assignment)
    config, facts, env = launcher.check(assignment)
    settings = config.model_dump(mode="json")
    if not ALGORITHMS[assignment.algo].is_for_pictures:
        from cleanrl_worker.algorithms.base import caveats

        summary["warnings"] += caveats(env)
    return summary | {
        "module": module_name(assignment.algo),
        "algo": assignment.algo,
        "env_id": config.env_id,
        "seed": config.seed,
        "total_timesteps": config.total_timesteps,
        "settings": settings,
        "environment": described(env),
        "cpus": ALGORITHMS[assignment.algo].threads,
        "backend": facts.get("backend", settings.get("backend")),
        "facts": facts,
    }


def warnings(assignment: Assignment) -> list[str]:
    """What was asked for and would be left out: no reason to refuse the run."""
    wandb = assignment.wandb_enabled or assignment.extras.track_wandb is True
    upload = assignment.extras.upload_model is True and not assignment.is_evaluation
    asked = {
        ("wandb", "wandb", "being tracked"): wandb and not assignment.is_foreign,
        ("trackio", "trackio", "being tracked"): assignment.trackio_enabled,
        ("huggingface_hub", "hub", "its policy being uploaded"): upload and not assignment.is_foreign,
    }
    return [
        f"{package} is not installed: the run would train without {what}. Install it: pip install 'mosaic-rl[{extra}]'"
        for (package, extra, what), is_asked in asked.items()
        if is_asked and find_spec(package) is None
    ]


def told(summary: Json) -> str:
    """The summary for people."""
    lines = [
        f"{summary['algo']} on {summary['env_id']}: this would run.",
        f"  module       {summary['module']}",
        f"  observations {summary['environment']['observation_space']}",
        f"  actions      {summary['environment']['action_space']}",
        f"  run folder   {summary['directories']['run']}",
        f"  tensorboard  {summary['tensorboard_dir'] or 'off'}",
    ]
    if "policy_path" in summary:
        lines.append(f"  policy       {summary['policy_path']}, {summary['eval_batch_size']} episodes")
    lines += [f"  {name:<28} {value}" for name, value in summary["settings"].items()]
    lines += [f"  Warning: {text}" for text in summary["warnings"]]
    return "\n".join(lines)


# --- the process


def _check(question: Json) -> Json:
    return {"summary": check(assigned(question.get("config")))}


def _environments(question: Json) -> Json:
    family = None if question.get("family") is None else _text(question, "family")
    return {"environments": list_environments(family)}


def _algorithms(question: Json) -> Json:
    from cleanrl_worker.schema import schema

    found = schema()
    if question.get("cleanrl") is not None:
        from cleanrl_worker.foreign import algorithms as own_algorithms

        found["algorithms"] |= own_algorithms(_text(question, "cleanrl"))
    return {"algorithms": sorted(found["algorithms"]), "schema": found}


def _checkpoint(question: Json) -> Json:
    return {"checkpoint": inspect(_text(question, "path"))}


def _model(question: Json) -> Json:
    """Writes a checkpoint's weights as the file that users of CleanRL know."""
    into = Path(_text(question, "into"))
    try:
        launcher.write_model(load_checkpoint(_text(question, "path"), with_parts=False), into)
    except OSError as error:
        raise BadInput(f"{into} cannot be written: {error.strerror or error}.") from None
    return {"path": str(into)}


def _probe(question: Json) -> Json:
    found = probe(_text(question, "family"))
    if not found["ok"]:
        raise BadInput(found["message"])
    return found


def _ping(question: Json) -> Json:
    return {"pid": os.getpid()}


QUESTIONS: dict[str, Callable[[Json], Json]] = {
    "check": _check,
    "environments": _environments,
    "algorithms": _algorithms,
    "checkpoint": _checkpoint,
    "model": _model,
    "probe": _probe,
    "ping": _ping,
}


def _text(question: Json, key: str) -> str:
    value = question.get(key)
    if not isinstance(value, str) or not value or "\0" in value:
        raise BadInput(f"{key}: expected a text.")
    return value


def answer(line: bytes) -> Json:
    """The reply to one line, whatever it holds."""
    try:
        question = json.loads(line)
    except (ValueError, RecursionError):
        return {"id": None, "ok": False, "error": "BadInput", "message": "A question must be one line of JSON."}
    if not isinstance(question, dict):
        return {"id": None, "ok": False, "error": "BadInput", "message": "A question must be a JSON object."}
    number = question.get("id")
    try:
        asked = str(question.get("ask"))
        if asked not in QUESTIONS:
            raise unknown("question", asked, QUESTIONS)
        return {"id": number, "ok": True, **QUESTIONS[asked](question)}
    except MosaicError as error:
        return {"id": number, "ok": False, "error": type(error).__name__, "message": str(error)}
    except Exception as error:
        # An environment of somebody else's may raise anything; the next question still wants its answer.
        traceback.print_exc()
        said = f"{type(error).__name__}: {error}"
        return {"id": number, "ok": False, "error": "MosaicError", "message": f"The check itself failed: {said}"}


def _as_line(reply: Json) -> bytes:
    """One line of strict JSON: a number that is not finite becomes null."""
    try:
        return json.dumps(reply, allow_nan=False, default=str).encode() + b"\n"
    except ValueError:
        return json.dumps(_finite(reply), default=str).encode() + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and (value != value or abs(value) == float("inf")) else value


def serve(questions: IO[bytes] | None = None) -> int:
    """Answers until stdin ends. What libraries print on stdout goes to stderr instead."""
    replies = os.dup(1)
    os.dup2(2, 1)
    os.environ.pop(RUN_DIR_VARIABLE, None)
    _warm_up()
    for line in questions or sys.stdin.buffer:
        if line.strip():
            try:
                _write(replies, _as_line(answer(line)))
            except BrokenPipeError:
                break
    os.close(replies)
    return 0


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _warm_up() -> None:
    """Imports what the first question would wait for."""
    for name in ("ppo", "ppo_continuous_action"):
        try:
            check(assigned({"algo": name, "env_id": "CartPole-v1", "seed": DEFAULT_SEED}))
        except MosaicError:
            continue
