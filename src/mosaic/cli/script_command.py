"""`mosaic run -- python script.py`: any script of the user's as a run."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.cli.parameters import run_options
from mosaic.contracts.errors import BadInput
from mosaic.submission.caller_environment import caller_environment
from mosaic.submission.run_payloads import build_payload

PROBE_PARTS = ("frames", "metrics", "checkpoints", "console", "wandb")
ENV_ID_FLAGS = ("env-id", "env", "environment", "gym-id")
TOTAL_TIMESTEPS_FLAGS = ("total-timesteps", "n-timesteps", "num-timesteps", "timesteps", "total-steps")
SEED_FLAGS = ("seed",)


@command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--env-id-from", metavar="FLAG", help="Which of the script's arguments names its environment.")
@click.option("--total-timesteps", metavar="N", type=click.IntRange(1), help="How many steps it will take, if known.")
@click.option("--compat", is_flag=True, help="It was written for gymnasium 0.29: give it that behavior on 1.x.")
@click.option(
    "--without",
    metavar="PART",
    multiple=True,
    type=click.Choice((*PROBE_PARTS, "probe")),
    help=f"Leave a part of the probe out: {', '.join(PROBE_PARTS)}, or the whole probe.",
)
@run_options("run_name", "tags", "notes", "group", "priority", "max_seconds", "memory_mb", "cpus", "gpus")
@click.option("--detach", is_flag=True, help="Do not wait; the run continues in the background.")
@click.argument("argv", metavar="-- COMMAND…", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_context
def run(
    context: CliContext,
    /,
    env_id_from: str | None,
    total_timesteps: int | None,
    compat: bool,
    without: tuple[str, ...],
    detach: bool,
    argv: tuple[str, ...],
    **options: Any,
) -> int:
    """Runs any script of yours as a run: queue, logs, limits, history, live frames and curves, without editing it.

    \b
    mosaic run -- python my_script.py --any args
    mosaic run -- /path/to/venv/bin/python -m package.module
    mosaic run -- torchrun --nproc-per-node 2 my_script.py

    It runs in this folder and with this shell's environment. `--without probe` runs it untouched.
    """
    from mosaic.cli.train_commands import submit_run

    _require_program(argv)
    is_bare = "probe" in without
    parts = {part: not is_bare and part not in without for part in PROBE_PARTS}
    environment = caller_environment()
    config = script_config(argv, os.getcwd(), environment, env_id_from)
    config["probe"] = {**parts, "compat": compat and not is_bare}
    if total_timesteps is not None:
        config["total_timesteps"] = total_timesteps
    payload = build_payload({"id": "script", "config": config}, options)
    return submit_run(context, payload, detach, environment)


def _require_program(argv: Sequence[str]) -> None:
    """Refuses `my_script.py` alone: a script that cannot be executed needs its interpreter."""
    if argv[0].endswith(".py") and shutil.which(argv[0]) is None:
        raise BadInput(
            f"{argv[0]} is not a program that can be executed. Put python before it: "
            f"mosaic run -- python {shlex.join(argv)}"
        )


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
