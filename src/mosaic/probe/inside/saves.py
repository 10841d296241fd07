"""What the script saves: models and checkpoints of its own, wherever it puts them."""

from __future__ import annotations

import functools
import os
import time
from typing import Any

from mosaic.probe.inside.core import probe
from mosaic.probe.inside.hooks import failed

_MOST = 1000
_SUFFIXES = (".zip", "")


def patch_torch(module: Any) -> None:
    original = module.save

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(obj, f, *args, **kwargs)
        try:
            if isinstance(f, (str, os.PathLike)):
                saved(os.fspath(f))
        except Exception as error:
            failed("checkpoints", error)
        return result

    module.save = save


def saved(path: str) -> None:
    """Tells of a file that was written; it stays where the script put it."""
    picked = probe()
    path = os.path.abspath(path)
    found = next((path + suffix for suffix in _SUFFIXES if os.path.isfile(path + suffix)), None)
    if found is None or os.path.abspath(found).startswith(os.path.join(picked.run_dir, "wandb")):
        return
    listed = picked.saved_files
    if len(listed) >= _MOST and found not in listed:
        return
    step = picked.global_step
    facts = {"path": found, "step": step, "size_bytes": os.path.getsize(found), "at": time.time()}
    listed[found] = facts
    picked.has_news = True
    picked.event("artifact", what="checkpoint_file", path=found, step=step, size_bytes=facts["size_bytes"])
