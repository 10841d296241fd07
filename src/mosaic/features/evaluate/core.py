"""Ranks evaluated policies by the lower confidence bound of their mean return."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mosaic.base.curves import ConfidenceInterval, mean_with_interval
from mosaic.base.scores import iqm

if TYPE_CHECKING:
    from mosaic.contracts.views import Evaluation, TrainedRun


@dataclass(frozen=True)
class LeaderboardEntry:
    """One policy on one environment."""

    rank: int
    """From 1, on this environment; policies that are equally good share one."""
    run_id: str
    """The evaluation."""
    env_id: str
    algo: str
    policy_path: str
    trained: TrainedRun | None
    """The run that trained the policy; None where it is not in this workspace."""
    step: int | None
    is_deterministic: bool
    episodes: int
    mean: ConfidenceInterval
    """Over the episodes of all batches, with Student's 95 % interval; none for one episode alone."""
    iqm: float
    evaluated_at: float

    @property
    def policy_label(self) -> str:
        """A name for a policy whose run is not here: the file, or the folder that contains its checkpoint."""
        parts = PurePath(self.policy_path).parts
        if "checkpoints" in parts[1:]:
            return parts[parts.index("checkpoints") - 1]
        return parts[-1] if parts else self.policy_path

    def to_json(self) -> dict[str, object]:
        return {
            "rank": self.rank,
            "env_id": self.env_id,
            "run_id": self.trained.run_id if self.trained else None,
            "algo": self.algo,
            "seed": self.trained.seed if self.trained else None,
            "checkpoint_step": self.step,
            "policy_path": self.policy_path,
            "deterministic": self.is_deterministic,
            "episodes": self.episodes,
            "avg_return": self.mean.point,
            "ci95": [self.mean.low, self.mean.high],
            "iqm": self.iqm,
            "evaluated_at": self.evaluated_at,
            "evaluation": self.run_id,
        }


def rank_policies(evaluations: Iterable[Evaluation]) -> list[LeaderboardEntry]:
    """By environment, then by the lower end of the interval. `evaluations` are as the daemon gives them, newest first.

    The newest evaluation of a policy counts, with all its batches. A policy evaluated stochastically is not the same
    as that policy evaluated deterministically.
    """
    newest: dict[tuple[Any, ...], Evaluation] = {}
    for one in evaluations:
        newest.setdefault((one.summary.env_id, _policy_key(one), one.summary.deterministic), one)
    ordered = sorted(
        (_build_entry(one) for one in newest.values()), key=lambda place: (place.env_id, *_sort_key(place))
    )
    places: list[LeaderboardEntry] = []
    for _, group in itertools.groupby(ordered, key=lambda place: place.env_id):
        rank, score = 0, None
        for at, place in enumerate(group, 1):
            if _sort_key(place) != score:
                rank, score = at, _sort_key(place)
            places.append(replace(place, rank=rank))
    return places


def _policy_key(evaluation: Evaluation) -> tuple[Any, ...]:
    """A checkpoint of a known run is identified by run and step; other policies by their path."""
    if evaluation.trained is not None and evaluation.summary.checkpoint_step is not None:
        return evaluation.trained.run_id, evaluation.summary.checkpoint_step
    return (evaluation.summary.policy_path,)


def evaluation_returns(evaluation: Evaluation) -> npt.NDArray[np.float64]:
    """The returns of all batches; NaN where one was not finite."""
    return np.array([value for batch in evaluation.summary.batches for value in batch.returns], np.float64)


def _build_entry(evaluation: Evaluation) -> LeaderboardEntry:
    returns = evaluation_returns(evaluation)
    return LeaderboardEntry(
        rank=0,
        run_id=evaluation.run_id,
        env_id=str(evaluation.summary.env_id),
        algo=str(evaluation.summary.algo),
        policy_path=str(evaluation.summary.policy_path),
        trained=evaluation.trained,
        step=evaluation.summary.checkpoint_step,
        is_deterministic=evaluation.summary.deterministic,
        episodes=len(returns),
        mean=mean_with_interval(returns),
        iqm=iqm(returns),
        evaluated_at=evaluation.evaluated_at,
    )


def _sort_key(entry: LeaderboardEntry) -> tuple[float, float]:
    """Lower is better. Policies without an interval come last."""
    low = entry.mean.low
    return -low if math.isfinite(low) else math.inf, -entry.mean.point
