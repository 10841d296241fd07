"""The tables of the compare page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PySide6.QtGui import QColor

from mosaic.formatting import run_title
from mosaic.gui.views.read_only_table import ReadOnlyTable, format_interval
from mosaic.gui.views.run_chips import dot_icon
from mosaic.statistics.comparison import Comparison, format_value, strip_common_parts

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView


class ResultsTable(ReadOnlyTable):
    def __init__(self) -> None:
        super().__init__("compare.results")

    def fill(self, comparison: Comparison, colours: Mapping[str, QColor]) -> None:
        scaled = ", scaled" if comparison.is_normalized else ""
        self.reset_rows(len(comparison.groups), ("Group", "Runs", "Mean [95 %]", f"IQM{scaled} [95 %]"))
        tips = (
            "",
            "",
            "Mean over the runs of the mean return of their last 100 episodes, with Student's interval",
            "Interquartile mean of the same, with a stratified bootstrap interval"
            + (", scaled to 0…1 within each environment" if comparison.is_normalized else ""),
        )
        for column, tip in enumerate(tips):
            head = self.horizontalHeaderItem(column)
            if head is not None:
                head.setToolTip(tip)
        for row, group in enumerate(comparison.groups):
            self.set_cell(row, 0, group.name).setIcon(dot_icon(colours[group.name]))
            self.set_cell(row, 1, str(len(group.run_ids)))
            self.set_cell(row, 2, format_interval(group.final_return))
            self.set_cell(row, 3, format_interval(group.iqm))


class ProbabilityTable(ReadOnlyTable):
    """Rows against columns."""

    def __init__(self) -> None:
        super().__init__("compare.better")

    def fill(self, comparison: Comparison) -> None:
        names = [group.name for group in comparison.groups]
        if not comparison.improvement_probability:
            self.reset_rows(0, ("Group runs by a setting to see how likely one group is better than another.",))
            return
        self.reset_rows(len(names), ("P(row returns more than column)", *names))
        for row, one in enumerate(names):
            self.set_cell(row, 0, one)
            for column, other in enumerate(names, 1):
                value = comparison.improvement_probability.get((one, other))
                text = "–" if value is None else f"{value.point:.2f}  [{value.low:.2f}, {value.high:.2f}]"
                self.set_cell(row, column, text)


class SettingsTable(ReadOnlyTable):
    def __init__(self) -> None:
        super().__init__("compare.settings")

    def fill(self, rows: Mapping[str, Sequence[Any]], views: Sequence[RunView]) -> None:
        if not rows:
            text = "All settings are the same." if len(views) > 1 else "Add a second run to see what differs."
            self.reset_rows(0, (text,))
            return
        titles = [run_title(view) for view in views]
        short = strip_common_parts(titles)
        self.reset_rows(len(rows), ("Setting", *(short[title] for title in titles)))
        for row, (name, values) in enumerate(rows.items()):
            self.set_cell(row, 0, name)
            for column, value in enumerate(values, 1):
                self.set_cell(row, column, format_value(value))
