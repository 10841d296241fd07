"""The tables of the compare page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtGui import QColor

from mosaic.gui.views.read_table import ReadTable, interval_words
from mosaic.gui.views.run_chips import dot_icon
from mosaic.gui.views.words import run_title
from mosaic.gui.workbench import Json
from mosaic.statistics.comparison import Comparison, without_common, words


class ResultsTable(ReadTable):
    def __init__(self) -> None:
        super().__init__("compare.results")

    def fill(self, found: Comparison, colours: Mapping[str, QColor]) -> None:
        scaled = ", scaled" if found.is_scaled else ""
        self.begin(len(found.groups), ("Group", "Runs", "Mean [95 %]", f"IQM{scaled} [95 %]"))
        tips = (
            "",
            "",
            "Mean over the runs of the mean return of their last 100 episodes, with Student's interval",
            "Interquartile mean of the same, with a stratified bootstrap interval"
            + (", scaled to 0…1 within each environment" if found.is_scaled else ""),
        )
        for column, tip in enumerate(tips):
            head = self.horizontalHeaderItem(column)
            if head is not None:
                head.setToolTip(tip)
        for row, group in enumerate(found.groups):
            self.put(row, 0, group.name).setIcon(dot_icon(colours[group.name]))
            self.put(row, 1, str(len(group.run_ids)))
            self.put(row, 2, interval_words(group.final))
            self.put(row, 3, interval_words(group.iqm))


class BetterTable(ReadTable):
    """Rows against columns."""

    def __init__(self) -> None:
        super().__init__("compare.better")

    def fill(self, found: Comparison) -> None:
        names = [group.name for group in found.groups]
        if not found.better:
            self.begin(0, ("Group runs by a setting to see how likely one group is better than another.",))
            return
        self.begin(len(names), ("P(row returns more than column)", *names))
        for row, one in enumerate(names):
            self.put(row, 0, one)
            for column, other in enumerate(names, 1):
                value = found.better.get((one, other))
                text = "–" if value is None else f"{value.point:.2f}  [{value.low:.2f}, {value.high:.2f}]"
                self.put(row, column, text)


class SettingsTable(ReadTable):
    def __init__(self) -> None:
        super().__init__("compare.settings")

    def fill(self, rows: Mapping[str, Sequence[Any]], views: Sequence[Json]) -> None:
        if not rows:
            text = "All settings are the same." if len(views) > 1 else "Add a second run to see what differs."
            self.begin(0, (text,))
            return
        titles = [run_title(view) for view in views]
        short = without_common(titles)
        self.begin(len(rows), ("Setting", *(short[title] for title in titles)))
        for row, (name, values) in enumerate(rows.items()):
            self.put(row, 0, name)
            for column, value in enumerate(values, 1):
                self.put(row, column, words(value))
