"""The table of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mosaic.base import formatting
from mosaic.cli import output
from mosaic.contracts.options import RunKind
from mosaic.contracts.printable import make_printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    from mosaic.contracts.views import RunView

COLUMNS = ("RUN", "STATUS", "NAME", "ALGO", "ENV", "SEED", "DONE", "RETURN", "STEPS/S", "AGE", "USER", "TAGS")
PROBLEM_MARK = "!"
"""After the status of a run with files that cannot be read."""
OPTIONAL_COLUMNS = ("STEPS/S", "AGE", "ENV", "ALGO", "SEED")
"""Left out in a narrow terminal, the later ones only while they say the same of each of several runs."""
TRUNCATED_COLUMNS = ("TAGS", "USER", "ENV", "ALGO", "NAME")
COLUMNS_IF_FILLED = ("NAME", "TAGS")
RIGHT_ALIGNED_COLUMNS = ("SEED", "DONE", "RETURN", "STEPS/S", "AGE")
GAP = "  "


class RunsTable:
    """A table of runs for rich, whose own tables take a millisecond per row: there may be thousands.

    In a narrow terminal, what can be missed is left out before names are cut.
    """

    def __init__(self, views: Sequence[RunView]) -> None:
        short = formatting.short_ids([view.run_id for view in views])
        self._rows = [
            {column: make_printable(text, kept="") for column, text in _row_cells(view, short[view.run_id]).items()}
            for view in views
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        from rich.segment import Segment

        widths = self._column_widths(options.max_width)
        header = (_fit_cell(column, column, width) for column, width in widths.items())
        yield Segment(f"{GAP.join(header)}\n", console.get_style("bold"))
        for row in self._rows:
            style = console.get_style(output.OUTCOME_STYLES.get(row["STATUS"].split()[0], "none"))
            run, status, *others = (_fit_cell(column, row[column], width) for column, width in widths.items())
            yield Segment(run + GAP)
            yield Segment(status, style)
            yield Segment(f"{GAP}{GAP.join(others)}\n")

    def _column_widths(self, width: int) -> dict[str, int]:
        from rich.cells import cell_len

        widths = {name: max([len(name), *(cell_len(row[name]) for row in self._rows)]) for name in COLUMNS}
        for column in COLUMNS_IF_FILLED:
            if not any(row[column] for row in self._rows):
                del widths[column]
        if len({row["USER"] for row in self._rows}) < 2:
            del widths["USER"]
        excess = sum(widths.values()) + len(GAP) * (len(widths) - 1) - width
        are_equal = {name: len({row[name] for row in self._rows}) == 1 < len(self._rows) for name in OPTIONAL_COLUMNS}
        for column in OPTIONAL_COLUMNS:
            if excess > 0 and (are_equal[column] or column not in ("ENV", "ALGO")):
                excess -= widths.pop(column) + len(GAP)
        for column in (name for name in TRUNCATED_COLUMNS if name in widths):
            cut = max(0, min(excess, widths[column] - len(column)))
            widths[column] -= cut
            excess -= cut
        return widths


def _fit_cell(column: str, text: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…"
    padding = " " * (width - cell_len(text))
    return padding + text if column in RIGHT_ALIGNED_COLUMNS else text + padding


def _row_cells(view: RunView, short: str) -> dict[str, str]:
    algo = view.algo or view.worker or formatting.PLACEHOLDER
    return {
        "RUN": short,
        "STATUS": f"{view.status} {PROBLEM_MARK}" if view.problem else view.status,
        "NAME": view.run_name or "",
        "ALGO": f"{algo} (eval)" if view.kind == RunKind.POLICY_EVAL else algo,
        "ENV": view.env_id or formatting.PLACEHOLDER,
        "SEED": formatting.PLACEHOLDER if view.seed is None else str(view.seed),
        "DONE": formatting.format_progress(view),
        "RETURN": formatting.format_number(view.episodic_return),
        "STEPS/S": formatting.format_count(view.sps),
        "AGE": formatting.format_age(view.submitted_at),
        "USER": view.submitted_by or "",
        "TAGS": ",".join(view.tags or ()),
    }
