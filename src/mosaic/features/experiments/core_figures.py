"""Figures for papers: learning curves, sample efficiency and aggregates, as PDF, SVG or PNG.

matplotlib is imported here, when a figure is drawn, and nowhere in the daemon. No window is opened: a figure is drawn
into a file without pyplot's global state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from mosaic.base import comparison
from mosaic.base.comparison import ComparedRun, ScoreKind
from mosaic.base.curves import ConfidenceBand, ConfidenceInterval, resample, smooth
from mosaic.base.files import atomic_write
from mosaic.base.scores import Aggregates, ScoreRange, iqm_curve, min_max_range
from mosaic.contracts.errors import BadInput, MissingExtra, NotAllowed, unknown_name_error
from mosaic.contracts.names import RETURN_TAG
from mosaic.contracts.printable import make_printable
from mosaic.features.experiments.core_comparison import CURVE_SMOOTHING, ComparisonResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTHS = {"column": 3.3, "full": 6.75}
"""Widths in inches, of one column and of the text of a page with two columns."""
MIN_WIDTH, MAX_WIDTH = 1.5, 40.0
FORMATS = ("pdf", "svg", "png")
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#A8A000")
"""Okabe and Ito's, which people with any colour vision tell apart; yellow is darkened to be visible as a line."""
LINE_STYLES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
"""Further settings repeat the colours with another style."""
GRID_POINTS = 200
SAME_LENGTH = 0.05
"""Environments whose trainings differ by no more than this share of their steps have the same axis."""
_PANEL_WIDTH_IN = 1.55
_MIN_PANEL_HEIGHT_IN = 1.2
_MAX_PANEL_HEIGHT_IN = 2.2
_LEGEND_ROW_IN = 0.155
POINT_SIZE = 8
_RC: dict[Any, Any] = {
    "text.parse_math": False,  # a `$` in a name begins no formula
    "text.usetex": False,
    "axes.formatter.use_mathtext": False,
    "font.size": POINT_SIZE,
    "axes.titlesize": POINT_SIZE,
    "axes.labelsize": POINT_SIZE,
    "xtick.labelsize": POINT_SIZE - 1,
    "ytick.labelsize": POINT_SIZE - 1,
    "legend.fontsize": POINT_SIZE - 1,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.2,
    "pdf.fonttype": 42,  # TrueType, which publishers accept and editors can search
    "ps.fonttype": 42,
    "svg.hashsalt": "mosaic",  # the same runs give the same file
    "savefig.dpi": 300,
}


class FigureKind(StrEnum):
    CURVES = "curves"
    """Learning curves by setting, one panel per environment."""
    EFFICIENCY = "efficiency"
    """The IQM of normalized returns over steps."""
    AGGREGATES = "aggregates"
    """Aggregates of normalized scores, with their intervals."""


class _Style(NamedTuple):
    color: str
    line: Literal["-", "--", ":", "-."]


def parse_kind(text: str) -> FigureKind:
    if text not in tuple(FigureKind):
        raise unknown_name_error("kind of figure", text, map(str, FigureKind))
    return FigureKind(text)


def check_score(kind: FigureKind, score: str) -> None:
    """Refuse a score that a figure does not show."""
    if score == ScoreKind.AREA and kind is not FigureKind.AGGREGATES:
        raise BadInput(f"A figure of kind {str(kind)!r} shows curves, so the score 'area' has no effect. Leave it out.")


def parse_width(text: str) -> float:
    """Return the width in inches that `column`, `full` or a number means."""
    try:
        width = WIDTHS[text] if text in WIDTHS else float(text)
    except ValueError:
        width = math.nan
    if not MIN_WIDTH <= width <= MAX_WIDTH:
        raise BadInput(f"width: expected column, full or inches from {MIN_WIDTH:g} to {MAX_WIDTH:g}, not {text!r}.")
    return width


def parse_format(path: Path, flag: str = "") -> str:
    """Return the format that the name of a file states, one of FORMATS; `flag`, such as png, is the only one taken."""
    image_format = path.suffix.lower().removeprefix(".")
    expected = (flag,) if flag else FORMATS
    if image_format in expected:
        return image_format
    hint = f" For this name: --{image_format} {path}" if image_format in FORMATS else ""
    subject = f"--{flag} {path}" if flag else path.name
    raise BadInput(f"{subject}: expected a name that ends in {', '.join(f'.{one}' for one in expected)}.{hint}")


def save_figure(
    result: ComparisonResult,
    path: Path,
    kind: FigureKind = FigureKind.CURVES,
    width_in: float = WIDTHS["full"],
    smoothing: float = CURVE_SMOOTHING,
) -> None:
    """Draw compared runs into a file, whose name decides the format."""
    write_figure(path, width_in, lambda figure: _DRAWERS[kind](figure, result, width_in, smoothing))


def write_figure(path: Path, width_in: float, draw: Callable[[Figure], None]) -> None:
    """Write what `draw` draws into a file, whose name decides the format. `draw` sets the height."""
    image_format = parse_format(path)
    if not path.absolute().parent.is_dir():
        raise BadInput(f"{path}: there is no folder {path.absolute().parent}.")
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise MissingExtra("A figure needs matplotlib: pip install 'mosaic-rl[plot]'.") from None

    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    with mpl.rc_context(_RC), atomic_write(path) as file:
        figure = Figure(figsize=(width_in, 1.0), layout="constrained")
        draw(figure)
        figure.savefig(file, format=image_format, metadata=undated.get(image_format))


# --- the kinds


def _draw_curves(figure: Figure, result: ComparisonResult, width_in: float, smoothing: float) -> None:
    tasks = sorted({entry.task for entry in result.entries})
    styles = _styles(result)
    panels = _add_panels(figure, len(tasks), width_in, styles)
    for axes, task in zip(panels, tasks, strict=True):
        own = [entry for entry in result.entries if entry.task == task]
        compared = comparison.compare(own, result.by, smoothing)
        for group in sorted(compared.groups, key=lambda group: list(styles).index(group.name)):
            _draw_band(axes, compared.grid, group.curve, styles[group.name])
        axes.set_title(make_printable(task))
        _format_steps(axes, "environment steps")
    rows = _row_count(panels)
    for axes in panels[:: math.ceil(len(panels) / rows)]:
        axes.set_ylabel("episodic return" if result.tag == RETURN_TAG else make_printable(result.tag))
    figure.align_ylabels()
    _add_legend(figure, styles, width_in)


def _draw_efficiency(figure: Figure, result: ComparisonResult, width_in: float, smoothing: float) -> None:
    aggregates = _require_aggregates(result, FigureKind.EFFICIENCY)
    styles = _styles(result)
    (axes,) = _add_panels(figure, 1, width_in, styles)
    entries = [entry for entry in result.entries if entry.task in aggregates.ranges and len(entry.x)]
    curves = {entry.run_id: smooth(entry.y, smoothing) for entry in entries}
    ranges = aggregates.ranges if aggregates.is_reference else _curve_ranges(entries, curves)
    ends = {task: max(entry.x[-1] for entry in entries if entry.task == task) for task in aggregates.ranges}
    is_same = max(ends.values()) <= (1 + SAME_LENGTH) * min(ends.values())
    scales = dict.fromkeys(ends, 1.0) if is_same else ends
    grid = np.linspace(0.0, max(ends.values()) if is_same else 1.0, GRID_POINTS)
    for name, group in comparison.group_entries(entries, result.by).items():
        tasks: dict[str, list[comparison.Floats]] = {}
        for entry in group:
            values = ranges[entry.task].normalize(curves[entry.run_id])
            tasks.setdefault(entry.task, []).append(resample(entry.x / scales[entry.task], values, grid))
        _draw_band(axes, grid, iqm_curve([np.stack(rows) for rows in tasks.values()]), styles[name])
    _format_steps(axes, "environment steps" if is_same else "share of each environment's steps", is_same)
    axes.set_ylabel("IQM of normalized return")
    figure.align_ylabels()
    _add_legend(figure, styles, width_in)


def _curve_ranges(entries: Sequence[ComparedRun], curves: Mapping[str, comparison.Floats]) -> dict[str, ScoreRange]:
    """By environment: from the lowest to the highest value of all curves, so that every curve is between 0 and 1.

    The range of final scores alone would be tiny where all runs end equally well.
    """
    return {
        task: min_max_range(value for entry in entries if entry.task == task for value in curves[entry.run_id])
        for task in {entry.task for entry in entries}
    }


def _draw_aggregates(figure: Figure, result: ComparisonResult, width_in: float, _: float) -> None:
    from matplotlib.ticker import MaxNLocator

    aggregates = _require_aggregates(result, FigureKind.AGGREGATES)
    styles = _styles(result)
    groups = sorted(aggregates.groups, key=lambda group: list(styles).index(group.name))
    metrics = {
        "IQM": [group.iqm for group in groups],
        "median": [group.median for group in groups],
        "mean": [group.mean for group in groups],
        "optimality gap": [group.optimality_gap for group in groups],
    }
    columns = len(metrics) if width_in >= WIDTHS["full"] else 2
    rows = math.ceil(len(metrics) / columns)
    figure.set_size_inches(width_in, rows * (0.55 + 0.2 * len(groups)) + 0.2)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for axes, (title, values) in zip(panels.flat, metrics.items(), strict=True):
        for place, (group, value) in enumerate(zip(groups, values, strict=True)):
            _draw_interval(axes, place, value, styles[group.name].color)
        axes.set_title(title)
        axes.use_sticky_edges = False  # bars do not touch the sides
        axes.margins(x=0.08)
        axes.set_yticks(range(len(groups)), [make_printable(group.name) for group in groups])
        axes.set_ylim(len(groups) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(3 if rows > 1 else 4))
        axes.grid(axis="x", alpha=0.25, linewidth=0.5)
        axes.spines[["top", "right", "left"]].set_visible(False)
    figure.supxlabel("normalized score", fontsize=POINT_SIZE)


_DRAWERS = {
    FigureKind.CURVES: _draw_curves,
    FigureKind.EFFICIENCY: _draw_efficiency,
    FigureKind.AGGREGATES: _draw_aggregates,
}


# --- parts


def _require_aggregates(result: ComparisonResult, kind: FigureKind) -> Aggregates:
    if result.aggregates is None:
        reason = "these groups have no environment in common" if result.environments else "all these runs are on one"
        raise NotAllowed(
            f"A figure of kind {str(kind)!r} shows normalized scores over environments, and {reason}. "
            "Draw curves, or give reference scores."
        )
    return result.aggregates


def _styles(result: ComparisonResult) -> dict[str, _Style]:
    """By group, in the order in which its first run was given, so that colours do not depend on results."""
    names = comparison.group_entries(result.entries, result.by)
    return {
        name: _Style(COLORS[at % len(COLORS)], LINE_STYLES[at // len(COLORS) % len(LINE_STYLES)])
        for at, name in enumerate(names)
    }


def _add_panels(figure: Figure, count: int, width_in: float, styles: Mapping[str, _Style]) -> list[Axes]:
    """Panels of the same size, whatever the number of rows of the legend."""
    columns = max(1, min(count, int(width_in / _PANEL_WIDTH_IN)))
    columns = math.ceil(count / math.ceil(count / columns))  # rows of equal length where possible
    rows = math.ceil(count / columns)
    height_in = min(max(0.62 * width_in / columns, _MIN_PANEL_HEIGHT_IN), _MAX_PANEL_HEIGHT_IN)
    legend_in = _LEGEND_ROW_IN * math.ceil(len(styles) / _legend_columns(styles, width_in)) if len(styles) > 1 else 0.0
    figure.set_size_inches(width_in, rows * (height_in + 0.35) + legend_in)
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels[count:]:
        axes.remove()
    for axes in panels[:count]:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.5)
    return panels[:count]


def _row_count(panels: Sequence[Axes]) -> int:
    spec = panels[0].get_subplotspec()
    return 1 if spec is None else spec.get_gridspec().nrows


def _draw_band(axes: Axes, x: comparison.Floats, band: ConfidenceBand, style: _Style) -> None:
    axes.plot(x, band.mean, color=style.color, linestyle=style.line)
    axes.fill_between(x, band.low, band.high, color=style.color, alpha=0.2, linewidth=0)


def _draw_interval(axes: Axes, place: int, value: ConfidenceInterval, color: str) -> None:
    if math.isfinite(value.low):
        axes.barh(place, value.high - value.low, left=value.low, height=0.5, color=color, alpha=0.55, linewidth=0)
    axes.vlines(value.point, place - 0.25, place + 0.25, color="black", linewidth=1.2)


def _format_steps(axes: Axes, label: str, is_count: bool = True) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    if is_count:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)
    axes.set_xlabel(label)


def _legend_columns(styles: Mapping[str, _Style], width_in: float) -> int:
    """As many as fit, by the longest name: letters are about half as wide as high."""
    entry_in = (max(map(len, styles)) * 0.52 * (POINT_SIZE - 1) + 28) / 72
    return max(1, min(len(styles), int(width_in / entry_in)))


def _add_legend(figure: Figure, styles: Mapping[str, _Style], width_in: float) -> None:
    """Below all panels."""
    if len(styles) < 2:
        return
    from matplotlib.lines import Line2D

    handles: list[Any] = [Line2D([], [], color=style.color, linestyle=style.line) for style in styles.values()]
    figure.legend(
        handles,
        [make_printable(name) for name in styles],
        loc="outside lower center",
        ncols=_legend_columns(styles, width_in),
        frameon=False,
        handlelength=1.6,
        columnspacing=1.2,
        borderaxespad=0.2,
    )
