"""The figure of a sweep: the history of its best score, its trials by setting, and which settings matter."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mosaic.contracts.errors import NotAllowed
from mosaic.contracts.printable import make_printable
from mosaic.features.experiments.core_figures import COLORS, POINT_SIZE, WIDTHS, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mosaic.features.sweeps.core import Dimension, SweepPlan, TrialRow

_COLOR_MAP = "viridis"
_ROW_HEIGHT_IN = 2.3
_BAR_HEIGHT_IN = 0.17
_PRUNED_COLOR = "0.75"


def save_sweep_figure(plan: SweepPlan, rows: Sequence[TrialRow], importances: Mapping[str, float], path: Path) -> None:
    """Draw a sweep into a file, whose name decides the format."""
    done = [row for row in rows if row.score is not None]
    if not done:
        raise NotAllowed(f"No trial of the sweep {plan.config.name!r} is done yet, so there is nothing to draw.")
    write_figure(path, WIDTHS["full"], lambda figure: _draw(figure, plan, rows, done, importances))


def _draw(
    figure: Figure,
    plan: SweepPlan,
    rows: Sequence[TrialRow],
    done: Sequence[TrialRow],
    importances: Mapping[str, float],
) -> None:
    top_height = max(_ROW_HEIGHT_IN, 0.8 + _BAR_HEIGHT_IN * len(plan.dimensions))
    figure.set_size_inches(WIDTHS["full"], top_height + _ROW_HEIGHT_IN + 0.4)
    grid = figure.add_gridspec(2, 2, height_ratios=(top_height, _ROW_HEIGHT_IN + 0.2))
    _draw_history(figure.add_subplot(grid[0, 0]), plan, rows, done)
    _draw_importances(figure.add_subplot(grid[0, 1]), importances)
    _draw_coordinates(figure, figure.add_subplot(grid[1, :]), plan, rows, done)


def _draw_history(axes: Axes, plan: SweepPlan, rows: Sequence[TrialRow], done: Sequence[TrialRow]) -> None:
    from matplotlib.ticker import MaxNLocator

    pruned = [row for row in rows if str(row.status) == "pruned" and row.last_score is not None]
    if pruned:
        axes.plot([row.number for row in pruned], [row.last_score or 0.0 for row in pruned], "x", color="0.55",
                  markersize=4, label="pruned, last report")  # fmt: skip
    numbers, scores = [row.number for row in done], [row.score or 0.0 for row in done]
    axes.plot(numbers, scores, "o", color=COLORS[0], markersize=3, label="done")
    best = list(itertools.accumulate(scores, max))
    last = max(row.number for row in rows)
    axes.step([*numbers, last], [*best, best[-1]], color=COLORS[1], where="post", label="best so far")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("trial")
    axes.set_ylabel(_describe_score(plan))
    axes.set_title("History")
    # Below the axes: its markers look like trials.
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=3, columnspacing=1.0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.5)


def _describe_score(plan: SweepPlan) -> str:
    metric = "mean return, all steps" if plan.config.metric == "area" else "mean return, last fifth"
    unit = f"normalized {metric}" if plan.config.reference_scores else metric
    return unit if plan.config.score == "mean" else f"{unit}, lower 95 %"


def _draw_importances(axes: Axes, importances: Mapping[str, float]) -> None:
    axes.set_title("Importance for the best quarter (PED-ANOVA)")
    axes.spines[["top", "right"]].set_visible(False)
    if not importances:
        axes.set_axis_off()
        text = "unknown: too few trials are done"
        axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
        return
    places = range(len(importances))
    axes.barh(places, list(importances.values()), color=COLORS[0], height=0.65)
    axes.set_yticks(places, list(importances))
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("share of what separates the best quarter\nof completed trials from the others")


def _draw_coordinates(
    figure: Figure, axes: Axes, plan: SweepPlan, rows: Sequence[TrialRow], done: Sequence[TrialRow]
) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    ranked = sorted(done, key=lambda row: row.score or 0.0)  # the best on top
    scores = np.array([row.score for row in ranked], np.float64)
    low, high = float(scores[0]), float(scores[-1])
    scale = ScalarMappable(Normalize(low, high if high > low else low + 1.0), colormaps[_COLOR_MAP])
    dimensions = plan.dimensions
    places = range(len(dimensions))
    for row in rows:
        if str(row.status) == "pruned" and row.is_complete:
            axes.plot(places, _positions(dimensions, row.params), color=_PRUNED_COLOR, linewidth=0.6, zorder=1)
    for row, color in zip(ranked, scale.to_rgba(scores), strict=True):
        axes.plot(places, _positions(dimensions, row.params), color=color, linewidth=1.1, zorder=2)
    for place, dimension in enumerate(dimensions):
        axes.axvline(place, color="black", linewidth=0.6, zorder=3)
        for at, text in _axis_labels(dimension):
            axes.annotate(
                text,
                (place, at),
                (2, 0),
                textcoords="offset points",
                va="center",
                fontsize=POINT_SIZE - 2,
                zorder=4,
                bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.3},
            )
    names = [f"{dimension.name} (log)" if dimension.is_log else dimension.name for dimension in dimensions]
    axes.set_xticks(places, names, rotation=25, ha="right")
    axes.set_yticks([])
    axes.set_ylim(-0.06, 1.06)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    has_pruned = any(str(row.status) == "pruned" for row in rows)
    axes.set_title("Trials by setting (grey: pruned)" if has_pruned else "Trials by setting")
    figure.colorbar(scale, ax=axes, label=_describe_score(plan), pad=0.01)


def _positions(dimensions: Sequence[Dimension], params: Mapping[str, Any]) -> list[float]:
    return [dimension.position(params[dimension.name]) for dimension in dimensions]


def _axis_labels(dimension: Dimension) -> list[tuple[float, str]]:
    if dimension.options:
        return [(dimension.position(one), make_printable(str(one))) for one in dimension.options]
    return [(0.0, f"{dimension.low:.3g}"), (1.0, f"{dimension.high:.3g}")]
