"""Running a script of the user's own CleanRL: checked as ours are, then this process becomes the script."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cleanrl_worker.user_cleanrl import (
    EXTRA_TO_FLAG,
    USER_CLEANRL_PREFIX,
    CleanrlCheckout,
    build_command,
    find_checkout,
    missing_package_problem,
    script_fields,
    validate_settings,
)
from cleanrl_worker.worker_config import WorkerRequest
from mosaic.contracts.errors import ConfigRefused, MissingExtra
from mosaic.contracts.folder import CALLER_VARIABLE, RunFolder, Workspace
from mosaic.contracts.script_config import ProbeParts
from mosaic.probe.script_env import script_environment

Json = dict[str, Any]
_CORE_SETTINGS = ("env_id", "total_timesteps", "seed")
_WITHHELD_VARIABLES = ("MOSAIC_TOKEN", CALLER_VARIABLE)
"""The script is not ours: it is not told what only the daemon and its workers share."""
_DAEMON_VARIABLES = ("CUDA_VISIBLE_DEVICES",)
"""What the daemon gave to the run counts, not what the caller had."""


def _caller_environment() -> dict[str, str]:
    """The environment of whoever asked for the run; ours where the worker was started by hand."""
    told = os.environ.get(CALLER_VARIABLE)
    given: dict[str, str] = json.loads(told) if told else dict(os.environ)
    ours = {name: os.environ[name] for name in _DAEMON_VARIABLES if name in os.environ}
    return {name: value for name, value in given.items() if name not in _WITHHELD_VARIABLES} | ours


@dataclass(frozen=True)
class ScriptJob:
    checkout: CleanrlCheckout
    script: Path
    fields: list[Json]
    settings: Json
    """Those that were given."""

    @property
    def all_settings(self) -> Json:
        return {field["name"]: self.settings.get(field["name"], field["default"]) for field in self.fields}

    @property
    def command(self) -> list[str]:
        return build_command(self.checkout, self.script, self.fields, self.settings)

    def summary(self) -> Json:
        settings = self.all_settings
        return {
            "module": str(self.script),
            "algo": USER_CLEANRL_PREFIX + self.script.stem,
            "command": self.command,
            "settings": settings,
            **{name: settings.get(name) for name in _CORE_SETTINGS},
        }

    def run(self, folder: RunFolder) -> None:
        """Does not return: its exit status is the script's."""
        caller = _caller_environment()
        caller["PYTHONPATH"] = os.pathsep.join(filter(None, [str(self.checkout.root), caller.get("PYTHONPATH")]))
        env = script_environment(
            caller,
            folder,
            Workspace.containing(folder).probe,
            ProbeParts(compat=True).model_dump(),
            total_timesteps=self.all_settings.get("total_timesteps"),
        )
        folder.path.mkdir(parents=True, exist_ok=True)
        os.chdir(folder.path)  # where it puts its models and videos
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(self.command[0], self.command, env)


def build_script_job(request: WorkerRequest) -> ScriptJob:
    """What would be run; or why it is refused."""
    extras = request.extras
    if extras.cleanrl is None:
        raise ConfigRefused(
            f"LOG705 extras.cleanrl: missing; {request.algo!r} is a script of your own CleanRL. Say where it is: "
            "--cleanrl PATH"
        )
    if request.is_evaluation:
        raise ConfigRefused("LOG705 extras.mode: scripts of your own CleanRL evaluate by themselves, if at all.")
    found = find_checkout(extras.cleanrl, extras.cleanrl_python)
    script = found.script(request.algo.removeprefix(USER_CLEANRL_PREFIX))
    known = script_fields(script)
    given = {name: getattr(extras, name) for name in EXTRA_TO_FLAG if getattr(extras, name) is not None}
    settings = {EXTRA_TO_FLAG[name]: value for name, value in given.items()} | request.settings
    paths = {EXTRA_TO_FLAG[name]: f"extras.{name}" for name in given} | request.setting_paths
    core = {name: getattr(request.config, name) for name in _CORE_SETTINGS if getattr(request.config, name) is not None}
    for name, value in core.items():
        if settings.setdefault(name, value) != value:
            raise ConfigRefused(
                f"LOG705 {paths[name]} is {settings[name]!r}, but {name} is {value!r}. Give one of them."
            )
    checked = validate_settings(f"{request.algo} ({script})", known, settings, paths)
    problem = missing_package_problem(found, script)
    if problem is not None:
        raise MissingExtra(problem)
    return ScriptJob(found, script, known, checked)
