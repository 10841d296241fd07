"""Metrics and episodes of a run as numpy arrays, and tables of them for pandas and notebooks."""

from __future__ import annotations

import html
from collections import UserDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mosaic.contracts.errors import MissingExtra
from mosaic.contracts.printable import make_printable

if TYPE_CHECKING:
    import pandas as pd

    from mosaic.contracts.views import EpisodeRow
    from mosaic.contracts.views import MetricSeries as SeriesPart

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MetricSeries:
    """The points of one metric, in the order in which they were logged."""

    tag: str
    steps: Ints
    times: Floats
    """Seconds since 1970."""
    values: Floats

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        last = f", last {self.values[-1]:.6g} at step {self.steps[-1]:,}" if len(self) else ""
        return f"MetricSeries({self.tag!r}, {len(self):,} points{last})"

    def to_frame(self) -> pd.DataFrame:
        """Return the columns step, time and value. Requires pandas."""
        return make_frame({"step": self.steps, "time": self.times, "value": self.values})


class Metrics(UserDict[str, MetricSeries]):
    """All metrics of a run by tag."""

    def __repr__(self) -> str:
        return f"Metrics({', '.join(map(repr, self.values()))})"

    def to_frame(self) -> pd.DataFrame:
        """Return the columns tag, step, time and value, one row per point. Requires pandas."""
        series = [empty_series(""), *self.values()]
        return make_frame(
            {
                "tag": [one.tag for one in series for _ in range(len(one))],
                "step": np.concatenate([one.steps for one in series]),
                "time": np.concatenate([one.times for one in series]),
                "value": np.concatenate([one.values for one in series]),
            }
        )


@dataclass(frozen=True, eq=False)
class Episodes:
    """The finished episodes of a run, one element per episode in each array."""

    steps: Ints
    """Environment steps of the run when the episode ended."""
    times: Floats
    """Seconds since 1970."""
    returns: Floats
    """NaN where a return was not finite."""
    lengths: Ints
    envs: Ints
    """Index of the environment that it was played in."""

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        finite = [value for value in self.returns[-100:] if np.isfinite(value)]
        mean = f", mean return of the last 100: {np.mean(finite):.6g}" if finite else ""
        return f"Episodes({len(self):,} episodes{mean})"

    def to_frame(self) -> pd.DataFrame:
        """Return the columns step, time, return, length and env. Requires pandas."""
        columns: dict[str, Ints | Floats] = {"step": self.steps, "time": self.times, "return": self.returns}
        return make_frame({**columns, "length": self.lengths, "env": self.envs})


def join_series(parts: Iterable[SeriesPart]) -> dict[str, MetricSeries]:
    """Join the parts in which the daemon sends the points, by tag."""
    by_tag: dict[str, list[SeriesPart]] = {}
    for part in parts:
        by_tag.setdefault(part.tag, []).append(part)
    return {
        tag: MetricSeries(
            tag,
            np.concatenate([np.array(part.steps, np.int64) for part in tag_parts]),
            np.concatenate([np.array(part.at, np.float64) for part in tag_parts]),
            np.concatenate([np.array(part.values, np.float64) for part in tag_parts]),
        )
        for tag, tag_parts in by_tag.items()
    }


def empty_series(tag: str) -> MetricSeries:
    return MetricSeries(tag, np.empty(0, np.int64), np.empty(0), np.empty(0))


def join_episodes(rows: Iterable[EpisodeRow]) -> Episodes:
    episodes = list(rows)
    return Episodes(
        np.array([row.step for row in episodes], np.int64),
        np.array([row.at for row in episodes], np.float64),
        np.array([np.nan if row.episodic_return is None else row.episodic_return for row in episodes], np.float64),
        np.array([row.length for row in episodes], np.int64),
        np.array([row.env for row in episodes], np.int64),
    )


# --- tables


def make_frame(columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]]) -> pd.DataFrame:
    """Return a data frame of columns of equal length; MissingExtra where pandas is not installed."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise MissingExtra("to_frame() needs pandas, which is not installed: pip install 'mosaic-rl[pandas]'") from None
    return pd.DataFrame(dict(columns))


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a small HTML table; cells are escaped, and a `$` in them begins no formula."""
    head = "".join(f"<th style='text-align:left'>{html.escape(name)}</th>" for name in header)
    cells = [[html.escape(make_printable(str(cell))) for cell in row] for row in rows]
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in row) + "</tr>" for row in cells
    )
    start = f"<thead><tr>{head}</tr></thead>" if header else ""
    return f"<table class='mathjax_ignore tex2jax_ignore'>{start}<tbody>{body}</tbody></table>"
