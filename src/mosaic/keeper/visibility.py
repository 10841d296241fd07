"""Decides what to warn of when nothing of a user's program is recorded."""

from __future__ import annotations

import time

from mosaic.contracts.folder import RunFolder
from mosaic.journal import Follower

WARN_AFTER_S = 60.0
"""A program that runs longer is checked then, others at their end."""
CHECK_AGAIN_S = 15.0
"""Whether something is recorded after all, or the program still imports its modules."""
_IMPORTING_S = 30.0
_IMPORT_MARK = ".importing"
_RECORDED_KINDS = frozenset(("environment", "episodes", "metrics", "progress"))
_ADVICE = (
    'Print lines such as "global_step=500, episodic_return=12.5", which are read, or report from Python with '
    "mosaic.start_run()."
)


def is_importing(folder: RunFolder) -> bool:
    """Return whether the program has imported a module in the last half minute, after its first seconds."""
    try:
        return time.time() - (folder.path / _IMPORT_MARK).stat().st_mtime < _IMPORTING_S
    except OSError:
        return False


def missing_records_warning(folder: RunFolder) -> dict[str, str] | None:
    """Return the fields of a warning, if neither an environment nor a metric was recorded."""
    journals = [path for path in folder.journals() if path.exists()]
    if any(line.body["kind"] in _RECORDED_KINDS for path in journals for line in Follower(path).read_rest()):
        return None
    if not journals:
        reason = "The probe is not in this program: it is not Python, or Python's options -E, -I or -S keep it out."
        return {"text": f"{reason} {_ADVICE}", "code": "probe_kept_out"}
    seen = "Gymnasium, Gym, PettingZoo, EnvPool, TensorBoard and W&B"
    reason = (
        f"No environment and no metric was seen; those of {seen} are, unless a program is started without MOSAIC_PROBE"
    )
    return {"text": f"{reason} in its environment. {_ADVICE}", "code": "nothing_seen"}
