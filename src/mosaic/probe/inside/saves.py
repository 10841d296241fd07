"""What the script saves: models and checkpoints of its own, wherever it puts them."""

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
    """Tells of a file that was written; it stays where the script put it."""
    picked = current_probe()
    path = os.path.abspath(path)
    found = next((path + suffix for suffix in _SUFFIXES if os.path.isfile(path + suffix)), None)
    if found is None or os.path.abspath(found).startswith(os.path.join(picked.run_dir, "wandb")):
        return
    listed = picked.saved_files
    if len(listed) >= _MAX_FILES and found not in listed:
        return
    step = picked.global_step
    facts = {"path": found, "step": step, "size_bytes": os.path.getsize(found), "at": time.time()}
    listed[found] = facts
    picked.has_unwritten_analytics = True
    picked.write_event("artifact", what="checkpoint_file", path=found, step=step, size_bytes=facts["size_bytes"])
