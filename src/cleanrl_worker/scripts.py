"""Running a script of the user's own CleanRL: checked as ours are, then this process becomes the script."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cleanrl_worker.config import Assignment
from cleanrl_worker.foreign import FLAGS_OF_EXTRAS, PREFIX, Checkout, checked_settings, checkout, command, fields, lacks
from mosaic.contracts.errors import ConfigRefused, MissingExtra
from mosaic.contracts.folder import CALLER_VARIABLE, RunFolder, Workspace
from mosaic.contracts.script import ProbeParts
from mosaic.probe.launch import script_environment

Json = dict[str, Any]
_CORE = ("env_id", "total_timesteps", "seed")
_UNSENT = ("MOSAIC_TOKEN", CALLER_VARIABLE)
"""The script is not ours: it is not told what only the daemon and its workers share."""
_ASSIGNED = ("CUDA_VISIBLE_DEVICES",)
"""What the daemon gave to the run counts, not what the caller had."""


def _caller() -> dict[str, str]:
    """The environment of whoever asked for the run; ours where the worker was started by hand."""
    told = os.environ.get(CALLER_VARIABLE)
    given: dict[str, str] = json.loads(told) if told else dict(os.environ)
    ours = {name: os.environ[name] for name in _ASSIGNED if name in os.environ}
    return {name: value for name, value in given.items() if name not in _UNSENT} | ours


@dataclass(frozen=True)
class Plan:
    found: Checkout
    script: Path
    known: list[Json]
    settings: Json
    """Those that were given."""

    @property
    def all_settings(self) -> Json:
        return {field["name"]: self.settings.get(field["name"], field["default"]) for field in self.known}

    @property
    def argv(self) -> list[str]:
        return command(self.found, self.script, self.known, self.settings)

    def summary(self) -> Json:
        settings = self.all_settings
        return {
            "module": str(self.script),
            "algo": PREFIX + self.script.stem,
            "command": self.argv,
            "settings": settings,
            **{name: settings.get(name) for name in _CORE},
        }

    def run(self, folder: RunFolder) -> None:
        """Does not return: its exit status is the script's."""
        caller = _caller()
        caller["PYTHONPATH"] = os.pathsep.join(filter(None, [str(self.found.root), caller.get("PYTHONPATH")]))
        env = script_environment(
            caller,
            folder,
            Workspace.of(folder).probe,
            ProbeParts(compat=True).model_dump(),
            total_timesteps=self.all_settings.get("total_timesteps"),
        )
        folder.path.mkdir(parents=True, exist_ok=True)
        os.chdir(folder.path)  # where it puts its models and videos
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(self.argv[0], self.argv, env)


def planned(assignment: Assignment) -> Plan:
    """What would be run; or why it is refused."""
    extras = assignment.extras
    if extras.cleanrl is None:
        raise ConfigRefused(
            f"LOG705 extras.cleanrl: missing; {assignment.algo!r} is a script of your own CleanRL. Say where it is: "
            "--cleanrl PATH"
        )
    if assignment.is_evaluation:
        raise ConfigRefused("LOG705 extras.mode: scripts of your own CleanRL evaluate by themselves, if at all.")
    found = checkout(extras.cleanrl, extras.cleanrl_python)
    script = found.script(assignment.algo.removeprefix(PREFIX))
    known = fields(script)
    given = {name: getattr(extras, name) for name in FLAGS_OF_EXTRAS if getattr(extras, name) is not None}
    settings = {FLAGS_OF_EXTRAS[name]: value for name, value in given.items()} | assignment.settings
    paths = {FLAGS_OF_EXTRAS[name]: f"extras.{name}" for name in given} | assignment.paths
    core = {name: getattr(assignment.config, name) for name in _CORE if getattr(assignment.config, name) is not None}
    for name, value in core.items():
        if settings.setdefault(name, value) != value:
            raise ConfigRefused(
                f"LOG705 {paths[name]} is {settings[name]!r}, but {name} is {value!r}. Give one of them."
            )
    checked = checked_settings(f"{assignment.algo} ({script})", known, settings, paths)
    problem = lacks(found, script)
    if problem is not None:
        raise MissingExtra(problem)
    return Plan(found, script, known, checked)
