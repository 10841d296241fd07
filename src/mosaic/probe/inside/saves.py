"""Records the models and checkpoints that the script saves itself."""

from __future__ import annotations

import functools
import os
import time
from typing import Any

from mosaic.probe.inside.core import current_probe
from mosaic.probe.inside.hooks import report_failure

_MAX_FILES = 1000
_SUFFIXES = (".zip", "")


def patch_torch(module: Any) -> None:
    original = module.save

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(obj, f, *args, **kwargs)
        try:
            if isinstance(f, (str, os.PathLike)):
                report_saved_file(os.fspath(f))
        except Exception as error:
            report_failure("checkpoints", error)
        return result

    module.save = save


def report_saved_file(path: str) -> None:
    """Report a file that the script has saved; the file is not moved."""
    probe = current_probe()
    path = os.path.abspath(path)
    saved_path = next((path + suffix for suffix in _SUFFIXES if os.path.isfile(path + suffix)), None)
    if saved_path is None or os.path.abspath(saved_path).startswith(os.path.join(probe.run_dir, "wandb")):
        return
    saved_files = probe.saved_files
    if len(saved_files) >= _MAX_FILES and saved_path not in saved_files:
        return
    step = probe.global_step
    entry = {"path": saved_path, "step": step, "size_bytes": os.path.getsize(saved_path), "at": time.time()}
    saved_files[saved_path] = entry
    probe.has_unwritten_analytics = True
    probe.write_event("artifact", what="checkpoint_file", path=saved_path, step=step, size_bytes=entry["size_bytes"])
