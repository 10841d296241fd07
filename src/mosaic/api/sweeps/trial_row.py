"""Trials of a sweep as everyone but Optuna sees them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MIN_TRIALS_FOR_IMPORTANCE = 8
"""Completed trials below which no setting is called important."""


class TrialStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    PRUNED = "pruned"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class TrialRow:
    """A trial as it is stored."""

    number: int
    status: TrialStatus
    params: dict[str, Any]
    score: float | None = None
    reports: dict[int, float] = field(default_factory=dict)
    """By number of the report."""
    seed_scores: tuple[float, ...] = ()
    problem: str = ""
    pruned_at: int | None = None
    """The report at which pruning was decided."""
    is_complete: bool = True
    """Whether all of its settings were chosen: a sweep may be killed while it asks for them."""

    @property
    def last_score(self) -> float | None:
        """The score, or the last report of a trial without one."""
        return self.score if self.score is not None or not self.reports else self.reports[max(self.reports)]
