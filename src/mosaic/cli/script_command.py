"""`mosaic run -- python script.py`: any script of the user's as a run."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from typing import Any

import click

from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.cli.parameters import COUNT, run_options
from mosaic.contracts.errors import BadInput
from mosaic.submission.caller_environment import caller_environment
from mosaic.submission.run_payloads import build_payload
from mosaic.submission.script_payloads import PROBE_PARTS, script_config


@command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--env-id-from", metavar="FLAG", help="Which of the script's arguments names its environment.")
@click.option("--total-timesteps", metavar="N", type=COUNT, help="How many steps it will take, if known.")
@click.option("--compat", is_flag=True, help="It was written for gymnasium 0.29: give it that behavior on 1.x.")
@click.option(
    "--without",
    metavar="PART",
    multiple=True,
    type=click.Choice((*PROBE_PARTS, "probe")),
    help=f"Leave a part of the probe out: {', '.join(PROBE_PARTS)}, or the whole probe.",
)
@run_options("run_name", "tags", "notes", "group", "priority", "max_seconds", "memory_mb", "cpus", "gpus", "gpu")
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
