"""Reads the script's total number of steps from its own arguments and their defaults."""

from __future__ import annotations

import functools
from typing import Any

from mosaic.probe.inside.core import current_probe
from mosaic.probe.inside.hooks import report_failure

_STEP_ARGUMENTS = ("total_timesteps", "n_timesteps", "num_timesteps", "total_steps")


def read_total_timesteps(arguments: Any) -> None:
    for name in _STEP_ARGUMENTS:
        value = getattr(arguments, name, None)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 1:
            probe = current_probe()
            if probe.total_timesteps is None:
                probe.total_timesteps = int(value)
            return


def patch_argparse(module: Any) -> None:
    original = module.ArgumentParser.parse_known_args

    @functools.wraps(original)
    def parse_known_args(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        try:
            read_total_timesteps(result[0])
        except Exception as error:
            report_failure("arguments", error)
        return result

    module.ArgumentParser.parse_known_args = parse_known_args


def patch_tyro(module: Any) -> None:
    original = module.cli

    @functools.wraps(original)
    def cli(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            read_total_timesteps(result)
        except Exception as error:
            report_failure("arguments", error)
        return result

    module.cli = cli
