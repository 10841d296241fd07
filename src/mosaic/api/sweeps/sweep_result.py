"""What a sweep has found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mosaic.api.sweeps.study import TrialRow


@dataclass(frozen=True)
class SweepResult:
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
        return f"<SweepResult {self.name}: {len(self.trials)} trials, best score {score}, {self.best_settings}>"


def best_trial(rows: Sequence[TrialRow]) -> TrialRow | None:
    """Return the completed trial with the highest score, the first of equal ones."""
    done = [row for row in rows if row.score is not None]
    return max(done, key=lambda row: (row.score or 0.0, -row.number)) if done else None
