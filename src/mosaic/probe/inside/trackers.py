"""Records wandb.log. Its folders and its offline mode are set by environment variables before the import."""

from __future__ import annotations

import functools
import numbers
from typing import Any

from mosaic.probe.inside.core import WANDB, current_probe
from mosaic.probe.inside.hooks import report_failure

_STEP_NAMES = ("global_step", "step", "_step")


def patch_run(module: Any) -> None:
    kind = module.Run
    original = kind.log

    @functools.wraps(original)
    def log(self: Any, data: Any, step: Any = None, *args: Any, **kwargs: Any) -> Any:
        default_step = getattr(self, "step", None)
        result = original(self, data, step, *args, **kwargs)
        try:
            _add_logged_scalars(data, step, default_step)
        except Exception as error:
            report_failure("wandb", error)
        return result

    kind.log = log


def patch_monitor(module: Any) -> None:
    """Disable `monitor_gym`, which on gymnasium 1.x breaks closing every environment that records videos."""
    module.monitor = lambda: None


def _add_logged_scalars(data: Any, step: Any, default_step: Any) -> None:
    if step is None:
        step = next((data[name] for name in _STEP_NAMES if isinstance(data.get(name), numbers.Real)), default_step)
    probe = current_probe()
    for tag, value in data.items():
        if tag in _STEP_NAMES or isinstance(value, bool):
            continue
        if isinstance(value, numbers.Real) or getattr(value, "shape", None) == ():
            probe.add_scalar(WANDB, str(tag), value, step)
