"""Payloads of scripts: what is known of a command without running it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic.contracts.errors import BadInput

PROBE_PARTS = ("frames", "metrics", "checkpoints", "console", "wandb")
ENV_ID_FLAGS = ("env-id", "env", "environment", "gym-id")
TOTAL_TIMESTEPS_FLAGS = ("total-timesteps", "n-timesteps", "num-timesteps", "timesteps", "total-steps")
SEED_FLAGS = ("seed",)


def script_config(
    argv: Sequence[str], cwd: str, environment: Mapping[str, str], env_id_from: str | None = None
) -> dict[str, Any]:
    """What is known of a command without running it."""
    config: dict[str, Any] = {
        "argv": list(argv),
        "cwd": cwd,
        "env_names": sorted(name for name in environment if not name.startswith("LD_")),
        "algo": script_name(argv),
    }
    if env_id_from is not None:
        env_id = flag_value(argv, [env_id_from.lstrip("-")])
        if env_id is None:
            raise BadInput(f"--env-id-from {env_id_from}: no such argument in: {shlex.join(argv)}")
    else:
        env_id = flag_value(argv, ENV_ID_FLAGS)
    total, seed = (_parse_int(flag_value(argv, flags)) for flags in (TOTAL_TIMESTEPS_FLAGS, SEED_FLAGS))
    known = {"env_id": env_id, "total_timesteps": total or None, "seed": seed}
    return config | {key: value for key, value in known.items() if value is not None}


def flag_value(argv: Sequence[str], names: Sequence[str]) -> str | None:
    """The value of the first of these flags, written `--flag value` or `--flag=value`, with - or _."""
    flags = {name.replace("_", "-") for name in names}
    for at, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if not flag.startswith("-") or flag.lstrip("-").replace("_", "-") not in flags:
            continue
        if equals:
            return value
        if at + 1 < len(argv) and not argv[at + 1].startswith("--"):
            return argv[at + 1]
    return None


def _parse_int(text: str | None) -> int | None:
    try:
        value = float(text) if text is not None else -1.0
    except ValueError:
        return None
    return int(value) if value >= 0 and value.is_integer() else None


def script_name(argv: Sequence[str]) -> str:
    """`my_script` for `python my_script.py`, `package.module` for `python -m package.module`."""
    for at, word in enumerate(argv):
        if word == "-m" and at + 1 < len(argv):
            return argv[at + 1]
        if word.endswith((".py", ".sh")):
            return Path(word).stem
    return Path(argv[0]).name
