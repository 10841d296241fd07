"""The RUN arguments of commands, with their completion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def _complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from mosaic.cli.completion import run_ids

    return [run_id for run_id in run_ids(ctx) if run_id.startswith(incomplete)]


def run_argument(name: str = "run", metavar: str = "RUN") -> Callable[[Any], Any]:
    return click.argument(name, metavar=metavar, shell_complete=_complete_run)


def runs_argument() -> Callable[[Any], Any]:
    return click.argument("runs", metavar="RUN…", nargs=-1, required=True, shell_complete=_complete_run)
