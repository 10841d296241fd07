"""The RUN arguments of commands, with their completion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def _complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from mosaic.cli.completion import run_ids

    return [run_id for run_id in run_ids(ctx) if run_id.startswith(incomplete)]


def run_argument(name: str = "run", metavar: str = "RUN", required: bool = True) -> Callable[[Any], Any]:
    shown = metavar if required else f"[{metavar}]"
    return click.argument(name, metavar=shown, required=required, shell_complete=_complete_run)


def runs_argument(required: bool = True) -> Callable[[Any], Any]:
    shown = "RUN…" if required else "[RUN…]"
    return click.argument("runs", metavar=shown, nargs=-1, required=required, shell_complete=_complete_run)
