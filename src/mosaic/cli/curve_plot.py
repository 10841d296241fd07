"""Draws the curve of a run's returns."""

from __future__ import annotations

import math
from typing import IO, TYPE_CHECKING

from mosaic import formatting
from mosaic.cli.live_view import EPISODES_IN_MEAN
from mosaic.contracts.errors import MissingExtra, NotAllowed

if TYPE_CHECKING:
    from mosaic.contracts.views import EpisodeRow, RunView

_LINE_COLOR = "#1f4e79"


def draw_curve(view: RunView, episodes: list[EpisodeRow], file: IO[bytes]) -> None:
    """Each episode as a dot, the mean of the last 100 as a line."""
    if not episodes:
        raise NotAllowed(
            f"Run {formatting.short_id(view.run_id)} has finished no episode yet: there is nothing to draw."
        )
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter
    except ModuleNotFoundError:
        raise MissingExtra("A curve needs the training extra: pip install 'mosaic-rl[train]'.") from None
    steps = [episode.step for episode in episodes]
    returns = [math.nan if episode.episodic_return is None else episode.episodic_return for episode in episodes]
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    size = 9 if len(steps) < 500 else 4
    axes.scatter(
        steps, returns, s=size, color=_LINE_COLOR, alpha=0.22, linewidths=0, label="one episode", rasterized=True
    )
    axes.plot(
        steps, running_mean(returns), color=_LINE_COLOR, linewidth=2, label=f"mean of the last {EPISODES_IN_MEAN}"
    )
    axes.set_title(f"{view.algo} on {view.env_id}, seed {view.seed}", loc="left", fontweight="bold")
    axes.set_xlabel("environment steps")
    axes.set_ylabel("episodic return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(0, max(steps))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    figure.text(0.995, 0.005, view.run_id, ha="right", va="bottom", fontsize=6, color="grey")
    figure.savefig(file, format="png")


def running_mean(values: list[float], window: int = EPISODES_IN_MEAN) -> list[float]:
    means: list[float] = []
    total = 0.0
    for at, value in enumerate(values):
        total += value - (values[at - window] if at >= window else 0.0)
        means.append(total / min(at + 1, window))
    return means
