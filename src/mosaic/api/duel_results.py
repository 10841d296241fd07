"""The result of a duel: every episode, and statistics of each actor and of its difference to the first."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mosaic.api.metric_arrays import html_table, make_frame
from mosaic.common.files import atomic_write
from mosaic.contracts.printable import make_printable
from mosaic.contracts.views import ActorTotals
from mosaic.statistics.curves import score_with_interval

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DuelEpisode:
    """A complete episode of one actor."""

    actor: str
    """Its label."""
    seed: int
    side: int
    """Which agent of a game the actor was, from 1."""
    episodic_return: float
    opponent_return: float | None
    """In a game, that of the other agent, or the mean of the others."""
    length: int
    ending: str
    run: str

    @property
    def outcome(self) -> str | None:
        """In a game: `win`, `draw` or `loss`."""
        if self.opponent_return is None:
            return None
        difference = self.episodic_return - self.opponent_return
        return "win" if difference > 0 else "loss" if difference < 0 else "draw"

    def to_json(self) -> dict[str, Any]:
        """Return one line of the results; returns that are not finite are null."""
        game = {} if self.opponent_return is None else {"outcome": self.outcome, "side": self.side}
        line = {"actor": self.actor, "seed": self.seed, "return": self.episodic_return}
        if self.opponent_return is not None:
            line["opponent_return"] = self.opponent_return
        return _finite(line) | {"length": self.length, "ending": self.ending, **game, "run": self.run}


@dataclass(frozen=True)
class MeanEstimate:
    """A mean over seeds, its error and 95 % interval: of a rate Wilson's, else Student's; one seed has no interval."""

    mean: float
    standard_error: float | None
    ci95: tuple[float, float] | None


@dataclass(frozen=True)
class ActorResult:
    label: str
    actor: str
    runs: tuple[str, ...]
    """Its sessions: one, in a game one for each side."""
    episodes: int
    """Those that are complete."""
    expected_episodes: int
    problem: str | None
    """Why it is incomplete; then there are no statistics."""
    returns: MeanEstimate | None
    """In a game over the seeds, each with the mean of its sides."""
    difference: MeanEstimate | None
    """To the first actor, seed by seed; None for the first itself, and where one of the two is incomplete."""
    avg_length: float | None
    totals: ActorTotals | None = None
    """Fallbacks, tokens, cost and latency, of an actor that counts them."""
    wins: int | None = None
    draws: int | None = None
    losses: int | None = None

    @property
    def is_complete(self) -> bool:
        return self.problem is None


@dataclass(frozen=True)
class DuelResult:
    """The comparison of actors under the same seeds."""

    name: str
    """The group of its runs."""
    env_id: str
    seeds: tuple[int, ...]
    opponent: str | None
    actors: tuple[ActorResult, ...]
    episodes: tuple[DuelEpisode, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every actor has played all of its episodes."""
        return all(actor.is_complete for actor in self.actors)

    def __getitem__(self, label: str) -> ActorResult:
        return {actor.label: actor for actor in self.actors}[label]

    def to_json(self) -> dict[str, Any]:
        """Return everything but the single episodes."""
        actors = [
            {
                **asdict(actor),
                "totals": None if actor.totals is None else actor.totals.model_dump(),
                "is_complete": actor.is_complete,
            }
            for actor in self.actors
        ]
        return {
            "duel": self.name,
            "env_id": self.env_id,
            "seeds": list(self.seeds),
            "opponent": self.opponent,
            "is_complete": self.is_complete,
            "actors": actors,
        }

    def write_jsonl(self, path: str | Path) -> None:
        """Write one line of JSON per episode; a file that exists is replaced."""
        with atomic_write(path) as file:
            for episode in self.episodes:
                file.write(json.dumps(episode.to_json()).encode() + b"\n")

    def to_frame(self) -> pd.DataFrame:
        """Return one row per episode. Requires pandas."""
        rows = [episode.to_json() for episode in self.episodes]
        return make_frame({name: [row[name] for row in rows] for name in (rows[0] if rows else ())})

    def __repr__(self) -> str:
        means = ", ".join(
            f"{actor.label}: {'incomplete' if actor.returns is None else f'{actor.returns.mean:.6g}'}"
            for actor in self.actors
        )
        return make_printable(f"<DuelResult {self.name} on {self.env_id}, {len(self.seeds)} seeds: {means}>")

    def _repr_html_(self) -> str:
        header = ("actor", "episodes", "mean", "95 % interval", "difference", "95 % interval")
        rows = [
            (
                actor.label,
                f"{actor.episodes} of {actor.expected_episodes}",
                *_cells(actor.returns),
                *_cells(actor.difference),
            )
            for actor in self.actors
        ]
        return html_table(header, rows)


def _cells(estimate: MeanEstimate | None) -> tuple[str, str]:
    if estimate is None:
        return "", ""
    interval = "" if estimate.ci95 is None else f"{estimate.ci95[0]:.6g} to {estimate.ci95[1]:.6g}"
    return f"{estimate.mean:.6g}", interval


def _finite(line: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in line.items()
    }


# --- statistics


def estimate_mean(values: Floats) -> MeanEstimate | None:
    """None where a value is not finite."""
    mean, low, high = score_with_interval(values)
    if not math.isfinite(mean):
        return None
    if len(values) < 2:
        return MeanEstimate(mean, None, None)
    return MeanEstimate(mean, float(values.std(ddof=1) / math.sqrt(len(values))), (low, high))


def values_by_seed(episodes: Sequence[DuelEpisode], seeds: Sequence[int]) -> Floats:
    """Return the return of each seed, in a game the mean of the sides: the two games of a seed are not independent."""
    returns: dict[int, list[float]] = {seed: [] for seed in seeds}
    for episode in episodes:
        returns[episode.seed].append(episode.episodic_return)
    return np.array([np.mean(returns[seed]) for seed in seeds], np.float64)
