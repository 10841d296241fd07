"""torch's SummaryWriter and tensorboardX's: their folder, and their scalars."""

from __future__ import annotations

import functools
import os
from typing import Any

from mosaic.probe.inside.core import WRITER, current_probe
from mosaic.probe.inside.hooks import report_failure

TENSORBOARD_VARIABLE = "CLEANRL_TENSORBOARD_DIR"
_redirected_folders: dict[str, str] = {}


def redirect_log_dir(wanted: Any) -> str | None:
    """The run's TensorBoard folder for the first that is asked for; a folder inside of it for each further one."""
    ours = os.environ.get(TENSORBOARD_VARIABLE)
    if not ours:
        return None
    named = os.path.abspath(os.fspath(wanted)) if wanted else ""
    if named and not named.startswith(ours):
        # The script may count on the folder that it named: models are often saved beside the event file.
        os.makedirs(named, exist_ok=True)
    if named not in _redirected_folders:
        inside = os.path.join(ours, os.path.basename(named) or "run")
        _redirected_folders[named] = inside if ours in _redirected_folders.values() else ours
    return _redirected_folders[named]


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
            wanted = args[0] if args else kwargs.get(keyword, kwargs.get("log_dir"))
            folder = redirect_log_dir(wanted)
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
