"""What a sweep has found."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mosaic.contracts.printable import make_printable

if TYPE_CHECKING:
    from mosaic.features.sweeps.core import SweepPlan, TrialRow

ENDED_STATUSES = ("done", "pruned", "failed")


@dataclass(frozen=True)
class SweepResult:
    """The trials of a sweep."""

    name: str
    trials: tuple[TrialRow, ...]
    """In the order in which they were started: number, status, params, score, seed_scores and so on."""

    @property
    def best(self) -> TrialRow | None:
        """The completed trial with the highest score; None where no trial was completed."""
        return best_trial(self.trials)

    @property
    def best_settings(self) -> dict[str, Any]:
        """The searched settings of the best trial, such as for `mosaic.train`; empty where there is none."""
        return {} if self.best is None else dict(self.best.params)

    def __repr__(self) -> str:
        score = None if self.best is None else self.best.score
        return make_printable(
            f"<SweepResult {self.name}: {len(self.trials)} trials, best score {score}, {self.best_settings}>"
        )


def best_trial(rows: Sequence[TrialRow]) -> TrialRow | None:
    """Return the completed trial with the highest score, the first of equal ones."""
    done = [row for row in rows if row.score is not None]
    return max(done, key=lambda row: (row.score or 0.0, -row.number)) if done else None


# --- as text


def format_trial_counts(plan: SweepPlan, rows: Sequence[TrialRow]) -> str:
    """`12 of 20 trials ended: 7 done, 4 pruned, 1 failed; 2 running`."""
    counts = Counter(str(row.status) for row in rows)
    ended = sum(counts[status] for status in ENDED_STATUSES)
    parts = [f"{counts[status]} {status}" for status in ENDED_STATUSES if counts[status] or status == "done"]
    running = f"; {counts['running']} running" if counts["running"] else ""
    return f"{ended} of {plan.trial_count} trials ended: {', '.join(parts)}{running}"


def describe_score(plan: SweepPlan) -> str:
    """`the mean return over all steps: its mean over seeds`."""
    metric, is_mean = plan.config.metric, plan.config.score == "mean"
    measured = "the mean return over all steps" if metric == "area" else "the mean return of the last fifth"
    over = "its mean over seeds" if is_mean else "the lower end of its 95 % interval over seeds"
    return f"{measured}: {over}"


def format_params(row: TrialRow) -> str:
    return ", ".join(f"{name} {format_param(value)}" for name, value in row.params.items())


def format_param(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
