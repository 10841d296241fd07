"""What a submitted config must satisfy before its worker is asked, and what is recorded of it."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mosaic.base.worker_registry import get_worker
from mosaic.contracts.errors import ConfigRefused, FieldProblem, NotTrusted, refuse_key
from mosaic.contracts.extras import TranslatedPayload
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.model import field_problems, refuse
from mosaic.contracts.options import LOCAL_EXECUTOR, MAX_TIMESTEPS, OPTIONS, RunKind, value_at
from mosaic.contracts.payload import Payload, ScriptConfig
from mosaic.contracts.play import PLAY_WORKER, list_risks

MAX_SHOWN_PROGRAM = 1000
SYSTEM_FOLDERS = ("/proc", "/dev", "/sys")
"""No module is imported from them."""


def parse_payload(translated: TranslatedPayload) -> Payload:
    """A payload as it was submitted, with the worker's own id in place of an alias."""
    payload = Payload.from_translated(translated)
    worker = get_worker(payload.metadata.worker.id)
    return payload if worker.id == payload.metadata.worker.id else payload.with_worker(id=worker.id)


def restore_written_paths(error: ConfigRefused, translated: TranslatedPayload) -> ConfigRefused:
    """The worker's refusal with the paths that the user wrote, such as `…extras.gamma` for `…algo_params.gamma`."""
    message = str(error)
    for path, written in translated.written_paths.items():
        message = re.sub(rf"(?<![\w.]){re.escape(path)}(?!\.?\w)", written, message)
    return ConfigRefused(message, [FieldProblem(translated.written_path(path), text) for path, text in error.problems])


def check_steps(steps: object) -> None:
    """Refuse a number of steps that no run would finish."""
    if isinstance(steps, int) and steps > MAX_TIMESTEPS:
        path = OPTIONS["total_timesteps"].path
        raise refuse_key(path, f"{steps:,} is too large; expected at most {MAX_TIMESTEPS:,} steps.")


def mark_imported(payload: Payload, is_imported: bool) -> Payload:
    if payload.metadata.is_imported is is_imported:
        return payload
    return payload.model_copy(update={"metadata": payload.metadata.model_copy(update={"is_imported": is_imported})})


def require_trust(payload: Payload) -> None:
    """A config that was imported starts no program and imports no module unless its user trusts it."""
    if not payload.metadata.is_imported:
        return
    choice = payload.metadata.worker
    programs = {key: value_at(choice.config, key) for key in get_worker(choice.id).programs}
    found = [f"start a program ({key}: {_shorten(value)})" for key, value in programs.items() if value is not None]
    found += [f"import the module {module!r} ({setting})" for module, setting in payload.modules.items()]
    if choice.id == PLAY_WORKER:
        found += list_risks(choice.config)
    if found:
        raise NotTrusted.for_risk(f"This config was imported and would {' and '.join(found)}.")


def refuse_import_folders(payload: Payload, trainer_folder: Path) -> None:
    """Refuse folders whose content the config's author may have chosen: a process's own, and those of runs.

    `/proc/self/cwd` is the run's own folder, wherever it is. Links can change, so this is asked again before a start.
    """
    path = "metadata.worker.imports.folders"
    imports = payload.metadata.worker.imports
    for folder in () if imports is None else imports.folders:
        if system := _system_folder_on_the_way(folder):
            raise refuse_key(path, f"{folder!r} is in {system}, where no modules are. Name another folder.")
        place = Path(os.path.realpath(folder))
        around = map(RunFolder, (place, *place.parents))
        is_of_run = any(one.record.exists() and one.config.exists() for one in around)
        if is_of_run or place.is_relative_to(os.path.realpath(trainer_folder)):
            raise refuse_key(path, f"{folder!r} is in a run or a workspace. Move the modules to a folder of your own.")


def _system_folder_on_the_way(folder: str) -> str | None:
    """The first of the system's folders that is entered, also by a link: where that leads depends on the process."""
    here, rest, links = "/", [*reversed(Path(folder).parts[1:])], 0
    while rest:
        here = os.path.normpath(os.path.join(here, rest.pop()))
        if here in SYSTEM_FOLDERS:
            return here
        if os.path.islink(here) and links < 40:  # the system follows no more
            links += 1
            target = os.readlink(here)
            rest += reversed(Path(target).parts)  # of an absolute one, the first is the root
            here = os.path.dirname(here)
    return None


def _shorten(program: Any) -> str:
    """Return a command as a shell would take it; if it is very long, its start and how much is left out."""
    text = shlex.join(map(str, program)) if isinstance(program, list | tuple) else str(program)
    left_out = len(text) - MAX_SHOWN_PROGRAM
    return text if left_out <= 0 else f"{text[:MAX_SHOWN_PROGRAM]}… and {left_out:,} more characters"


def pin_env_version(payload: Payload, created_id: str | None) -> Payload:
    """Record `CartPole` as the `CartPole-v1` that was created: the newest version will be another one some day."""
    config = payload.metadata.worker.config
    module, colon, name = str(config.get("env_id") or "").rpartition(":")
    if not created_id or not name or not re.fullmatch(rf"{re.escape(name)}-v\d+", created_id):
        return payload
    return payload.with_worker(config={**config, "env_id": f"{module}{colon}{created_id}"})


def choose_executor(payload: Payload, default: str) -> str:
    """Return the executor that a run names, or the trainer's default where a run of its kind may run there.

    Only training of MOSAIC's workers leaves this machine: scripts and sessions belong to their caller's, and an
    evaluation needs files of another run.
    """
    choice = payload.metadata.worker
    worker = get_worker(choice.id)
    kinds = {
        "a program of yours": worker.has_own_command or any(value_at(choice.config, key) for key in worker.programs),
        "a play session": payload.kind is RunKind.PLAY,
        "an evaluation": payload.is_evaluation,
    }
    bound = next((kind for kind, is_it in kinds.items() if is_it), None)
    asked = payload.resources.executor
    if bound is None:
        return asked or default
    if asked not in (None, LOCAL_EXECUTOR):
        raise refuse_key(
            "resources.executor", f"{bound} runs on the trainer's machine only, not by {asked!r}. Leave it out."
        )
    return LOCAL_EXECUTOR


def refuse_programs(payload: Payload, has_environment: bool) -> None:
    """A submitted config must not choose which program is run."""
    choice = payload.metadata.worker
    worker = get_worker(choice.id)
    for key in worker.programs:
        if value_at(choice.config, key) is not None and not has_environment:
            raise refuse_key(
                f"metadata.worker.config.{key}",
                "a submitted config may not choose a program to run. "
                "Name it on the command line: mosaic run -- python script.py, mosaic train ALGORITHM --cleanrl PATH, "
                "or mosaic resubmit RUN.",
            )
    if worker.has_own_command:
        try:
            ScriptConfig.model_validate(choice.config)
        except ValidationError as error:
            raise refuse(field_problems(error, "metadata.worker.config"), "The config was") from None
