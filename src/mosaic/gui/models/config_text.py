"""The config of a run as text that starts the same run: a command, or Python."""

from __future__ import annotations

import json
import pprint
import shlex
from collections.abc import Mapping
from typing import Any

from mosaic.contracts.errors import MosaicError
from mosaic.contracts.options import CONFIG_PATH, OPTIONS, RunKind, value_at
from mosaic.gui.models.draft import (
    Draft,
    draft_from_payload,
)
from mosaic.submission.algorithm_schema import command_name
from mosaic.submission.run_payloads import CORE_FIELD_NAMES

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
