"""Runs a script of the user's CleanRL checkout: its settings are checked like ours, then this process becomes it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cleanrl_worker.registry import ALGORITHMS
from cleanrl_worker.shell.user_cleanrl import (
    OPTIONS_WITHOUT_EFFECT,
    SECTION_FLAGS,
    USER_CLEANRL_PREFIX,
    CleanrlCheckout,
    build_command,
    check_settings,
    find_checkout,
    find_installed,
    missing_package_problem,
    missing_packages,
    script_fields,
)
from cleanrl_worker.shell.worker_config import CORE_SETTINGS, WorkerRequest, add_core_settings
from mosaic.base.processes import SAFE_PATH_VARIABLE
from mosaic.contracts.errors import MissingExtra, refuse_key
from mosaic.contracts.folder import CALLER_VARIABLE, KEEPER_VARIABLE, TOKEN_VARIABLE, RunFolder, Workspace
from mosaic.contracts.options import OPTIONS, value_at
from mosaic.contracts.payload import ProbeParts
from mosaic.contracts.setting_field import SettingField
from mosaic.probe.script_env import script_environment

_WITHHELD_VARIABLES = (TOKEN_VARIABLE, CALLER_VARIABLE)
"""Variables shared only by the daemon and its workers, which a foreign script must not see."""
_DAEMON_VARIABLES = ("CUDA_VISIBLE_DEVICES", KEEPER_VARIABLE)
"""For these the value set by the daemon or the keeper counts, not the caller's."""


def _caller_environment() -> dict[str, str]:
    """Return the environment of the process that submitted the run; our own if the worker was started by hand."""
    caller_json = os.environ.get(CALLER_VARIABLE)
    # The worker imports nothing from where it runs; a script may.
    own = {name: value for name, value in os.environ.items() if name != SAFE_PATH_VARIABLE}
    caller: dict[str, str] = json.loads(caller_json) if caller_json else own
    from_daemon = {name: os.environ[name] for name in _DAEMON_VARIABLES if name in os.environ}
    return {name: value for name, value in caller.items() if name not in _WITHHELD_VARIABLES} | from_daemon


@dataclass(frozen=True)
class ScriptJob:
    checkout: CleanrlCheckout
    script: Path
    fields: list[SettingField]
    settings: Mapping[str, Any]
    """The given settings; the others keep their defaults."""
    records_evaluation: bool = False
    """Whether its evaluation after training records videos."""

    @property
    def all_settings(self) -> dict[str, Any]:
        return {field.name: self.settings.get(field.name, field.default) for field in self.fields}

    @property
    def command(self) -> list[str]:
        return build_command(self.checkout, self.script, self.fields, self.settings)

    @property
    def _useful_gpus(self) -> int:
        """As for the algorithm of the same name; a config that says `cuda` asks for one."""
        spec = ALGORITHMS.get(self.script.stem)
        if not self.all_settings.get("cuda"):
            return 0
        return 1 if "cuda" in self.settings else spec.gpus if spec is not None else 0

    def summary(self) -> dict[str, Any]:
        """Return the script's part of a dry run's summary."""
        settings = self.all_settings
        return {
            "module": str(self.script),
            "algo": USER_CLEANRL_PREFIX + self.script.stem,
            "command": self.command,
            "settings": settings,
            "gpus": self._useful_gpus,
            "warnings": self._warnings(),
            **{name: settings.get(name) for name in CORE_SETTINGS},
        }

    def _warnings(self) -> tuple[str, ...]:
        if not self.records_evaluation or not missing_packages(self.checkout, ["moviepy"]):
            return ()
        return (
            f"{self.checkout.python} lacks the package moviepy, without which gymnasium records no videos: the "
            "evaluation after training will fail. The run and its model are kept.",
        )

    def run(self, folder: RunFolder) -> None:
        """Replace this process by the script. Does not return."""
        caller = _caller_environment()
        caller["PYTHONPATH"] = os.pathsep.join(filter(None, [str(self.checkout.root), caller.get("PYTHONPATH")]))
        env = script_environment(
            caller,
            folder,
            Workspace.containing(folder).probe,
            {
                **ProbeParts(compat=True).model_dump(),
                "own_evaluation": True,
                "eval_capture_video": self.records_evaluation,
            },
            str(folder.origin),
            total_timesteps=self.all_settings.get("total_timesteps"),
        )
        folder.path.mkdir(parents=True, exist_ok=True)
        os.chdir(folder.path)  # the script writes its models and videos to the working directory
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(self.command[0], self.command, env)


def build_script_job(request: WorkerRequest) -> ScriptJob:
    """Check a request and return the job; raise if it is refused."""
    config = request.config
    folder = config.cleanrl or find_installed(config.cleanrl_python)
    if folder is None:
        raise refuse_key(
            "cleanrl",
            f"missing; {request.algo!r} is a script of a CleanRL checkout, and no package cleanrl is installed. "
            "Give its path: --cleanrl PATH",
        )
    if request.is_evaluation:
        raise refuse_key("kind", "policies of scripts of a CleanRL checkout cannot be evaluated here.")
    checkout = find_checkout(folder, config.cleanrl_python)
    script = checkout.script(request.algo.removeprefix(USER_CLEANRL_PREFIX))
    fields = script_fields(script)
    _refuse_options_without_effect(request)
    video_path = OPTIONS["eval_capture_video"].path
    option_path = request.written_paths.get(video_path, video_path)
    sections = _section_flags(request)
    settings = {flag: value for flag, (_, value) in sections.items()} | request.settings
    paths = {flag: path for flag, (path, _) in sections.items()} | request.setting_paths
    records_evaluation = request.artifacts.video.capture_evaluation
    if records_evaluation and not settings.setdefault("save_model", True):
        raise refuse_key(option_path, f"records the evaluation of the saved model, but {paths['save_model']} is false.")
    paths = {"save_model": option_path, **paths} if records_evaluation else paths
    add_core_settings(request, settings, paths)
    check_settings(f"{request.algo} ({script})", fields, settings, paths)
    problem = missing_package_problem(checkout, script)
    if problem is not None:
        raise MissingExtra(problem)
    return ScriptJob(checkout, script, fields, settings, records_evaluation)


def _refuse_options_without_effect(request: WorkerRequest) -> None:
    payload = request.payload.to_json()
    for option in (OPTIONS[name] for name in OPTIONS_WITHOUT_EFFECT):
        if value_at(payload, option.path) not in (None, option.default):
            raise refuse_key(
                request.written_paths.get(option.path, option.path), "has no effect on a script of a CleanRL checkout."
            )


def _section_flags(request: WorkerRequest) -> dict[str, tuple[str, Any]]:
    """By flag of the script: the path that the user set it under, and its value, where one was given."""
    given = {}
    payload = request.payload.to_json()
    for path, flag in SECTION_FLAGS.items():
        value: Any = payload
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            given[flag] = (request.written_paths.get(path, path), value)
    return given
