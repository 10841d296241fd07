"""How long a run will take and what it will use, from the runs that were made before. No widget here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from mosaic.base.formatting import format_count, format_duration, format_megabytes, format_size
from mosaic.contracts.options import RunKind

if TYPE_CHECKING:  # it needs pydantic, which `mosaic train --help` does not load
    from mosaic.contracts.views import RunView

MAX_RUNS = 5
"""The newest ones are asked."""
SETTLING_S = 10.0
"""After this time a run uses about as much memory as later."""
MAX_EXPECTED_S = 30 * 86400.0
"""A run that would take longer is warned of: most likely, a digit too many was typed."""
FAST_SPS = 100_000.0
"""Steps per second of a fast algorithm in a small environment, where no earlier run has measured them."""


@dataclass(frozen=True)
class RunEstimate:
    seconds: float | None = None
    memory_mb: float | None = None
    disk_bytes: float | None = None
    source: str = ""
    """The runs that it is based on, in words; empty where there are none."""
    steps: int = 0
    sps: float | None = None

    def format(self, count: int = 1) -> str:
        """A sentence for a run, or for each of several ones."""
        if not self.source:
            return "How long it takes is not known yet: no earlier run of this algorithm has measured it."
        parts = [
            format_duration(self.seconds) if self.seconds is not None else "",
            f"{format_megabytes(self.memory_mb)} of memory" if self.memory_mb else "",
            f"{format_size(self.disk_bytes)} of disk" if self.disk_bytes else "",
        ]
        each = f" for each of {count} runs" if count > 1 else ""
        return f"About {', '.join(part for part in parts if part)}{each}, judging by {self.source}."

    @property
    def warning(self) -> str:
        """A sentence about a run that would hardly end; empty for others."""
        seconds = self.steps / (self.sps or FAST_SPS)
        if seconds <= MAX_EXPECTED_S:
            return ""
        pace = f"at {format_count(self.sps)} steps/s" if self.sps else f"even at {FAST_SPS:,.0f} steps/s"
        return f"{self.steps:,} steps would take about {format_duration(seconds)} {pace}. Check the number of steps."


def earlier_runs(views: Iterable[RunView], algo: str, env_id: str) -> list[RunView]:
    """The newest trainings with this algorithm whose speed is known: in this environment, else in others."""
    known = [view for view in views if view.kind == RunKind.TRAIN and view.algo == algo and view.sps]
    same = [view for view in known if view.env_id == env_id]
    return sorted(same or known, key=lambda view: view.submitted_at, reverse=True)[:MAX_RUNS]


def _is_settled(view: RunView) -> bool:
    """Whether its memory was sampled when it had everything in memory."""
    return view.hardware is not None and view.hardware.at - (view.started_at or view.submitted_at) >= SETTLING_S


def estimate_run(runs: Sequence[RunView], env_id: str, steps: int, disk_bytes: float | None = None) -> RunEstimate:
    """`disk_bytes` is the mean size of these runs on the disk."""
    if not runs:
        return RunEstimate(steps=steps)
    speed = median(view.sps for view in runs if view.sps)
    memory = [view.hardware.rss_mb for view in runs if view.hardware is not None and _is_settled(view)]
    where = env_id if all(view.env_id == env_id for view in runs) else "other environments"
    many = "an earlier run" if len(runs) == 1 else f"{len(runs)} earlier runs"
    source = f"{many} of {runs[0].algo} in {where}"
    return RunEstimate(steps / speed, max(memory, default=None), disk_bytes, source, steps, speed)
