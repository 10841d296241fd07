"""`mosaic runs`, `config` and `diff`, and the table of runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from mosaic import formatting
from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.cli.parameters import find_run, run_argument
from mosaic.contracts.options import RunKind
from mosaic.contracts.printable import make_printable
from mosaic.contracts.states import ENDED

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    from mosaic.contracts.views import RunView

DEFAULT_LIMIT = 30
COLUMNS = ("RUN", "STATUS", "NAME", "ALGO", "ENV", "SEED", "DONE", "RETURN", "STEPS/S", "AGE", "USER", "TAGS")
PROBLEM_MARK = "!"
"""After the status of a run with files that cannot be read."""
OPTIONAL_COLUMNS = ("STEPS/S", "AGE", "ENV", "ALGO", "SEED")
"""Left out in a narrow terminal, the later ones only while they say the same of each of several runs."""
TRUNCATED_COLUMNS = ("TAGS", "USER", "ENV", "ALGO", "NAME")
COLUMNS_IF_FILLED = ("NAME", "TAGS")
RIGHT_ALIGNED_COLUMNS = ("SEED", "DONE", "RETURN", "STEPS/S", "AGE")
GAP = "  "
STATUSES = (
    *("queued", "starting", "running", "paused", "stopping", "finished"),
    *("succeeded", "failed", "cancelled", "rejected", "lost"),
)


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


@command()
@click.option(
    "--status", multiple=True, type=click.Choice(STATUSES), help="Only runs at this stage or with this outcome."
)
@click.option("--tag", "tags", multiple=True, help="Only runs with this tag.")
@click.option("--algo", default="", help="Only runs of this algorithm.")
@click.option("--env", "env_id", default="", help="Only runs on this environment.")
@click.option("--group", default="", help="Only runs of this group.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1),
    help=f"Show at most N.  [default: {DEFAULT_LIMIT}, with --json all]",
)
@click.option("--all", "is_all", is_flag=True, help="All of them.")
@click.option("--archived", is_flag=True, help="Archived runs, too.")
@pass_context
def runs(
    context: CliContext, /, limit: int | None, is_all: bool, archived: bool, **filters: str | tuple[str, ...]
) -> None:
    """Lists runs, newest first."""
    if limit is None:
        limit = 0 if is_all or context.is_json else DEFAULT_LIMIT + 1
    views = context.runs(**filters, include_archived=archived, limit=limit)
    if context.is_json:
        output.print_json(views)
        return
    if not views:
        output.print_message(
            f"No run in {context.place} matches."
            if any(filters.values())
            else f"No runs yet in {context.place}. Make one: mosaic train ppo --env-id CartPole-v1"
        )
        return
    is_cut = limit == DEFAULT_LIMIT + 1 and len(views) == limit
    output.console().print(RunsTable(views[:DEFAULT_LIMIT] if is_cut else views))
    if is_cut:
        output.print_message(f"Only the newest {DEFAULT_LIMIT} are shown. All of them: mosaic runs --all")
    elif len(views) > 1:
        output.print_message(summarize_runs(views))
    with_problem = [view for view in views if view.problem]
    if with_problem:
        short = formatting.short_id(with_problem[0].run_id)
        number = f"{len(with_problem)} runs have" if len(with_problem) > 1 else "One run has"
        output.print_message(f"{PROBLEM_MARK} {number} files that cannot be read. See: mosaic show {short}")


def summarize_runs(views: list[RunView]) -> str:
    """`30 runs: 18 succeeded, 2 running, 10 queued. Next in the queue: 2 of 2 slots busy, place 1.`"""
    numbers = Counter(view.status for view in views)
    listed = ", ".join(f"{numbers[status]} {status}" for status in (*STATUSES, ENDED, "stalled") if numbers[status])
    queued = sorted((view for view in views if view.queue_position), key=lambda view: view.queue_position or 0)
    waiting = f" Next in the queue: {queued[0].wait_reason}." if queued else ""
    return f"{formatting.count_noun(len(views), 'run')}: {listed}.{waiting}"


@command()
@run_argument()
@pass_context
def config(context: CliContext, run: str) -> None:
    """Prints the config that made a run, as it can be submitted again."""
    payload = context.trainer().config(find_run(context, run).run_id)
    if context.is_json:
        output.print_json(payload)
    else:
        output.print_json(payload, indent=2)


@command()
@run_argument("one")
@run_argument("other")
@pass_context
def diff(context: CliContext, one: str, other: str) -> None:
    """Shows which settings of two runs differ. A setting that was not given counts with its default."""
    from mosaic.submission.run_payloads import diff_settings, effective_settings

    trainer = context.trainer()
    views = [find_run(context, one), find_run(context, other)]
    differences = diff_settings(*(effective_settings(trainer.config(view.run_id)) for view in views))
    short = formatting.short_ids([view.run_id for view in views])
    if context.is_json:
        output.print_json({"runs": [view.run_id for view in views], "differences": differences})
        return
    if not differences:
        output.print_message("The two runs have the same settings.")
        return
    heads = [short[view.run_id] for view in views]
    table = output.create_table("SETTING", *heads, wrap=heads)
    for name, values in differences.items():
        table.add_row(name, *("not set" if value is None else _format_value(value) for value in values))
    output.console().print(table)


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
