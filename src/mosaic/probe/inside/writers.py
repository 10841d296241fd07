"""Patches the SummaryWriter of torch and of tensorboardX: its folder and its scalars."""

from __future__ import annotations

import functools
import os
from typing import Any

from mosaic.probe.inside.core import WRITER, current_probe
from mosaic.probe.inside.hooks import report_failure

TENSORBOARD_VARIABLE = "CLEANRL_TENSORBOARD_DIR"
_redirected_folders: dict[str, str] = {}


def redirect_log_dir(log_dir: Any) -> str | None:
    """Return the run's TensorBoard folder for the first log dir, and a subfolder of it for each further one."""
    run_log_dir = os.environ.get(TENSORBOARD_VARIABLE)
    if not run_log_dir:
        return None
    script_path = os.path.abspath(os.fspath(log_dir)) if log_dir else ""
    if script_path and not script_path.startswith(run_log_dir):
        # The script may expect its own folder to exist: models are often saved next to the event file.
        os.makedirs(script_path, exist_ok=True)
    if script_path not in _redirected_folders:
        subfolder = os.path.join(run_log_dir, os.path.basename(script_path) or "run")
        _redirected_folders[script_path] = subfolder if run_log_dir in _redirected_folders.values() else run_log_dir
    return _redirected_folders[script_path]


def patch_writer(module: Any) -> None:
    kind = module.SummaryWriter
    _patch_init(kind, "logdir" if module.__name__.startswith("tensorboardX") else "log_dir")
    _patch_add_scalar(kind)
    _patch_add_scalars(kind)


def _patch_init(kind: Any, keyword: str) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            log_dir = args[0] if args else kwargs.get(keyword, kwargs.get("log_dir"))
            folder = redirect_log_dir(log_dir)
            current_probe().has_writer = True
            if folder is not None:
                args = args[1:]
                kwargs = {name: value for name, value in kwargs.items() if name not in (keyword, "log_dir")}
                kwargs[keyword] = folder
        except Exception as error:
            report_failure("writers", error)
        original(self, *args, **kwargs)

    kind.__init__ = __init__


def _patch_add_scalar(kind: Any) -> None:
    original = kind.add_scalar

    @functools.wraps(original)
    def add_scalar(self: Any, tag: Any, scalar_value: Any, global_step: Any = None, *args: Any, **kwargs: Any) -> Any:
        result = original(self, tag, scalar_value, global_step, *args, **kwargs)
        try:
            current_probe().add_scalar(WRITER, tag, scalar_value, global_step)
        except Exception as error:
            report_failure("writers", error)
        return result

    kind.add_scalar = add_scalar


def _patch_add_scalars(kind: Any) -> None:
    original = kind.add_scalars

    @functools.wraps(original)
    def add_scalars(
        self: Any, main_tag: Any, tag_scalar_dict: Any, global_step: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        result = original(self, main_tag, tag_scalar_dict, global_step, *args, **kwargs)
        try:
            for tag, value in tag_scalar_dict.items():
                current_probe().add_scalar(WRITER, f"{main_tag}/{tag}", value, global_step)
        except Exception as error:
            report_failure("writers", error)
        return result

    kind.add_scalars = add_scalars
