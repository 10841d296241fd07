"""Decides what to warn of when nothing of a user's program is recorded."""

from __future__ import annotations

from mosaic.contracts.folder import RunFolder
from mosaic.journal import Follower

WARN_AFTER_S = 60.0
"""A program that runs longer is checked then, others at their end."""
_RECORDED_KINDS = frozenset(("environment", "episodes", "metrics", "progress"))
_ADVICE = (
    'Print lines such as "global_step=500, episodic_return=12.5", which are read, or report from Python with '
    "mosaic.start_run()."
)


def missing_records_warning(folder: RunFolder) -> dict[str, str] | None:
    """Return the fields of a warning, if neither an environment nor a metric was recorded."""
    journals = [path for path in folder.journals() if path.exists()]
    if any(line.body["kind"] in _RECORDED_KINDS for path in journals for line in Follower(path).read_rest()):
        return None
    if not journals:
        reason = "The probe is not in this program: it is not Python, or Python's options -E, -I or -S keep it out."
        return {"text": f"{reason} {_ADVICE}", "code": "probe_kept_out"}
    seen = "Gymnasium, Gym, PettingZoo, EnvPool, TensorBoard and W&B"
    return {"text": f"No environment and no metric was seen; those of {seen} are. {_ADVICE}", "code": "nothing_seen"}
