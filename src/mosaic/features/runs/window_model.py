"""The config of a run as text that starts the same run: a command, or Python."""

from __future__ import annotations

import json
import pprint
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from mosaic.base.algorithm_schema import command_name
from mosaic.base.formatting import SHOWN_PACKAGES, count_noun, format_commit, format_size
from mosaic.base.run_payloads import CORE_FIELD_NAMES
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.options import CONFIG_PATH, OPTIONS, RunKind, value_at
from mosaic.contracts.run_settings import RunSettings
from mosaic.features.train.window_model import Draft, draft_from_payload
from mosaic.window.form_model import format_value

SCRIPT_WORKER = "script"
_SCRIPT_OPTIONS = ("run_name", "notes", "group", "priority", "max_seconds", "memory_mb", "cpus", "gpus", "gpu")
"""Those of `mosaic run` with one value."""


def to_command(payload: dict[str, Any]) -> str:
    """Return a command for a terminal; empty for a run that only its own program can start."""
    config = value_at(payload, CONFIG_PATH)
    if config.get("attached") is True:
        return ""
    if value_at(payload, "metadata.worker.id") == SCRIPT_WORKER:
        return _script_command(payload, config)
    draft = _to_draft(payload)
    if draft is not None:
        return draft.command_line()
    return f"printf %s {shlex.quote(json.dumps(payload))} | mosaic submit -"


def _script_command(payload: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    words = ["mosaic", "run"]
    probe = config.get("probe") or {}
    parts = {name: is_on for name, is_on in probe.items() if name != "compat"}
    if parts and not any(parts.values()):
        words += ["--without", "probe"]
    else:
        words += [word for name, is_on in parts.items() if not is_on for word in ("--without", name)]
    if probe.get("compat"):
        words.append("--compat")
    if config.get("total_timesteps") is not None:
        words += ["--total-timesteps", str(config["total_timesteps"])]
    for name in _SCRIPT_OPTIONS:
        value = value_at(payload, OPTIONS[name].path)
        if value is not None:
            words += [OPTIONS[name].flag, str(value)]
    words += [word for tag in value_at(payload, OPTIONS["tags"].path) or () for word in ("--tag", tag)]
    return f"cd {shlex.quote(config['cwd'])} && {shlex.join([*words, '--', *config['argv']])}"


def to_python(payload: dict[str, Any]) -> str:
    """Return Python that starts the run; empty for a program, which needs a terminal's environment."""
    if value_at(payload, "metadata.worker.id") == SCRIPT_WORKER:
        return ""
    draft = _to_draft(payload)
    if draft is None or draft.cleanrl:
        return f"import mosaic\n\nrun = mosaic.submit({pprint.pformat(payload, width=100, sort_dicts=False)})\n"
    config = value_at(draft.payloads(0.0)[0], CONFIG_PATH)
    named = {name: config[name] for name in CORE_FIELD_NAMES if name in config and name != "env_id"}
    named |= {name: value for name, value in draft.values().items() if name not in CORE_FIELD_NAMES}
    if "run_name" in named:
        named["name"] = named.pop("run_name")
    arguments = [repr(command_name(draft.worker, draft.algorithm)), repr(config["env_id"])]
    arguments += [f"{name}={value!r}" for name, value in named.items()]
    return "import mosaic\n\nrun = mosaic.train(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")\n"


def _to_draft(payload: dict[str, Any]) -> Draft | None:
    """The draft that builds this payload; None where it has parts that no form shows."""
    if payload.get("kind", RunKind.TRAIN) != RunKind.TRAIN:
        return None
    try:
        draft = draft_from_payload(payload)
        draft.payloads(0.0)
    except MosaicError:
        return None
    return None if draft.rest else draft


# --- The settings of a run and what it was started with, as rows of a table. No widget here.


NAMES = {"metadata.worker.id": "worker", "algo": "algorithm", "env_id": "environment"}
"""Of settings whose own name says less."""
UNSET = "unset"
SOFTWARE, MACHINE = "Software of its newest attempt", "Machine of its newest attempt"


class SettingRow(NamedTuple):
    group: str
    name: str
    value: str
    default: str = ""
    """Empty: there is none."""
    is_changed: bool = False
    tooltip: str = ""

    def contains(self, text: str) -> bool:
        return text.lower() in f"{self.name} {self.value}".lower()


def setting_rows(settings: RunSettings) -> list[SettingRow]:
    """Rows of one group follow each other, in the order of the groups' first settings."""
    groups = dict.fromkeys(setting.group for setting in settings.settings)
    return [
        SettingRow(
            group,
            NAMES.get(setting.name, setting.name.removeprefix(f"{CONFIG_PATH}.")),
            _format(setting.value),
            _format(setting.default) if setting.has_default else "",
            setting.is_changed,
        )
        for group in groups
        for setting in settings.settings
        if setting.group == group
    ]


def surroundings_rows(settings: RunSettings) -> list[SettingRow]:
    rows = []
    packages = settings.packages
    if settings.python:
        rows.append(SettingRow(SOFTWARE, "Python", settings.python))
        rows += [SettingRow(SOFTWARE, name, packages[name]) for name in SHOWN_PACKAGES if name in packages]
        listed = "\n".join(f"{name} {version}" for name, version in packages.items())
        rows.append(
            SettingRow(SOFTWARE, "all packages", count_noun(len(packages), "package"), tooltip=_first_lines(listed))
        )
    for source in settings.sources:
        tip = f"{source.commit}\n{format_commit(source)}"
        rows.append(SettingRow(SOFTWARE, "commit", format_commit(source), tooltip=tip))
    machine = settings.machine
    if machine is not None:
        facts = {
            "host": machine.host,
            "system": machine.system,
            "CPU": f"{machine.cpus} × {machine.cpu}" if machine.cpus else machine.cpu,
            "memory": format_size(machine.memory_mb * 2**20) if machine.memory_mb else "",
            "GPU": ", ".join(machine.gpus),
        }
        rows += [SettingRow(MACHINE, name, value) for name, value in facts.items() if value]
    return rows


def packages_text(settings: RunSettings) -> str:
    """As `pip freeze` writes them."""
    return "".join(f"{name}=={version}\n" for name, version in settings.packages.items())


def _format(value: Any) -> str:
    return format_value(value) or UNSET


def _first_lines(text: str, count: int = 30) -> str:
    lines = text.splitlines()
    return text if len(lines) <= count else "\n".join([*lines[:count], f"… and {len(lines) - count} more"])
