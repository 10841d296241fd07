"""`mosaic plot`: figures of runs and groups for papers."""

from __future__ import annotations

from pathlib import Path

import click

from mosaic import formatting
from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.cli.compare_commands import comparison_options, describe_normalization, describe_superseded, run_comparison
from mosaic.cli.parameters import runs_argument

KINDS = ("curves", "efficiency", "aggregates")
DEFAULT_SMOOTHING = 0.9


@command()
@runs_argument()
@click.option("--out", required=True, metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Where to write it: .pdf, .svg or .png.")  # fmt: skip
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default=KINDS[0],
    show_default=True,
    help="Learning curves; the IQM of normalized returns over steps; or normalized scores with intervals.",
)
@click.option(
    "--width",
    default="full",
    show_default=True,
    metavar="column|full|INCHES",
    help="3.3 inches for a column, 6.75 for a page of two.",
)
@click.option(
    "--smoothing",
    type=click.FloatRange(0, 1, max_open=True),
    default=DEFAULT_SMOOTHING,
    show_default=True,
    metavar="WEIGHT",
    help="Of the exponential moving average of a run's curve, as in TensorBoard; 0: none.",
)
@comparison_options
@pass_context
def plot(
    context: CliContext, /, runs: tuple[str, ...], out: Path, kind: str, width: str, smoothing: float, **choices: object
) -> None:
    """Draws runs or groups for a paper. Needs matplotlib, from the extra `plot`.

    Curves are means over the runs of a setting with Student's 95 % interval, with one panel per environment. The other
    kinds are normalized on each environment, by the compared runs or by --reference-scores, with 95 % bootstrap
    intervals.
    """
    from mosaic.api.figures import FigureKind, check_score, parse_width, save_figure

    width_in = parse_width(width)
    check_score(FigureKind(kind), str(choices["score"]))
    result = run_comparison(context, runs, choices)
    save_figure(result, out, FigureKind(kind), width_in, smoothing)
    if result.superseded:
        output.print_message(describe_superseded(result.superseded))
    for note in result.notes:
        output.print_message(note)
    if kind == FigureKind.EFFICIENCY and result.aggregates is not None and not result.aggregates.is_reference:
        output.print_message(
            "Returns were normalized on each environment from the lowest (0) to the highest (1) value of these curves."
        )
    elif kind != FigureKind.CURVES:
        output.print_message(describe_normalization(result.aggregates))
    path = out.absolute()
    context.print_result(
        {"file": str(path), "kind": kind, "runs": [entry.run_id for entry in result.entries]},
        f"Wrote {path} ({formatting.format_size(path.stat().st_size)})",
    )
