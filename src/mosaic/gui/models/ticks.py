"""The runs that are ticked in the list: charts show them next to the selected one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from PySide6.QtCore import QObject, Signal

from mosaic.contracts.views import RunView
from mosaic.formatting import run_title
from mosaic.gui import theme
from mosaic.gui.gui_settings import GuiSettings
from mosaic.gui.models.runs_model import RunsModel
from mosaic.statistics.comparison import shorten_titles

MAX_TICKED = len(theme.RUN_COLORS) + len(theme.FURTHER_RUN_COLORS) - 1
"""One less than there are colors, so that no two curves have the same: the selected run has one, too."""


def short_labels(views: Sequence[RunView]) -> dict[str, str]:
    """Return labels of runs that are shown together, by run."""
    return shorten_titles({view.run_id: run_title(view) for view in views})


class Ticks(QObject):
    changed = Signal()

    def __init__(self, runs: RunsModel, settings: GuiSettings, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._settings = settings
        self._ids: list[str] = [str(run_id) for run_id in settings.get_for_workspace("ticked", [])][:MAX_TICKED]
        self._runs = runs
        runs.removed.connect(self._on_runs_removed)
        runs.reset.connect(self._on_runs_reset)

    @property
    def ids(self) -> list[str]:
        """In the order in which they were ticked."""
        return list(self._ids)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._ids

    def toggle(self, run_ids: Iterable[str]) -> int:
        """Tick these runs, or untick them where all of them are, or some are and no more can be.

        Return how many had no place.
        """
        wanted = list(dict.fromkeys(run_ids))
        new = [run_id for run_id in wanted if run_id not in self._ids]
        room = MAX_TICKED - len(self._ids)
        if len(new) < len(wanted) and (not new or not room):
            self._set([run_id for run_id in self._ids if run_id not in wanted])
            return 0
        self._set([*self._ids, *new[:room]])
        return max(0, len(new) - room)

    def clear(self) -> None:
        self._set([])

    def _on_runs_removed(self, run_ids: set[str]) -> None:
        if not run_ids.isdisjoint(self._ids):
            self._set([run_id for run_id in self._ids if run_id not in run_ids])

    def _on_runs_reset(self) -> None:
        self._set([run_id for run_id in self._ids if self._runs.get(run_id) is not None])

    def _set(self, run_ids: list[str]) -> None:
        has_new_colors = theme.run_colors.separate(run_ids)
        if run_ids != self._ids or has_new_colors:
            self._ids = run_ids
            self._settings.put_for_workspace("ticked", run_ids)
            self.changed.emit()
