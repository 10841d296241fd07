"""The buttons of a group page: what can be done with all runs of a group."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QMenu, QToolButton, QWidget

from mosaic.api.figures import FigureKind
from mosaic.api.sweeps.sweep_folder import sweep_names
from mosaic.gui import run_action_handlers as handlers
from mosaic.gui.models.groups import GroupState
from mosaic.gui.models.policy_form import runs_with_policy
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.button_row import ButtonRow
from mosaic.gui.workbench import Workbench

FIGURES = {
    FigureKind.CURVES: "Learning curves…",
    FigureKind.EFFICIENCY: "Sample efficiency…",
    FigureKind.AGGREGATES: "Aggregates over environments…",
}
FIGURE_FILTER = "PDF (*.pdf);;SVG (*.svg);;PNG (*.png)"


class GroupActions(QWidget):
    figure_requested = Signal(object, object)
    """The kind of figure and the path of its file."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._state = GroupState("", ())
        self._cancel = self._button("cancel", "mdi6.stop", self._cancel_runs)
        self._retry = self._button("retry", "mdi6.replay", self._retry_runs)
        self._compare = self._button("compare", "mdi6.compare", self._compare_runs)
        self._evaluate = self._button("evaluate", "mdi6.clipboard-check-outline", self._evaluate_runs)
        self._archive = self._button("archive", "mdi6.archive-arrow-down-outline", self._archive_runs)
        self._figure = self._button("figure", "mdi6.file-image-outline", None)
        self._sweep = self._button("sweep", "mdi6.tune-vertical", self._open_sweep)
        _show_action(self._compare, "Compare", "Put the runs of this group onto the compare page", True)
        _show_action(self._sweep, "Show sweep", "These are the runs of a sweep: show its trials", True)
        self._figure.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        menu = ui.with_object_name(QMenu(self._figure), "group.figure.menu")
        for kind, title in FIGURES.items():
            menu.addAction(title, partial(self._ask_figure_path, kind))
        self._figure.setMenu(menu)
        self._sweep.hide()
        buttons = (self._cancel, self._retry, self._compare, self._evaluate, self._figure, self._archive, self._sweep)
        ui.column(ButtonRow(buttons), parent=self)

    def _button(self, name: str, icon: str, on_click: ui.Call | None) -> QToolButton:
        return ui.tool_button(f"group.{name}", icon, "", on_click, "–", is_flat=False)

    def show_state(self, state: GroupState, has_points: bool) -> None:
        """Show what is possible now."""
        self._state = state
        stoppable, retryable, archivable = state.stoppable, state.retryable, state.archivable
        _show_action(
            self._cancel,
            f"Cancel {_count_runs(len(stoppable))}" if stoppable else "Cancel",
            "Stop the runs that have not ended, with a checkpoint where it can" if stoppable else "All runs have ended",
            bool(stoppable),
        )
        _show_action(
            self._retry,
            f"Retry {_count_runs(len(retryable))}" if retryable else "Retry",
            "Submit the runs that failed, were cancelled or lost again, each as a further attempt"
            if retryable
            else "No run of an experiment has ended without success",
            bool(retryable),
        )
        evaluable = runs_with_policy(state.views)
        _show_action(
            self._evaluate,
            f"Evaluate {_count_runs(len(evaluable))}" if evaluable else "Evaluate",
            "Play episodes with their policies on unseen seeds" if evaluable else "No run has saved a policy yet",
            bool(evaluable),
        )
        is_restore = not archivable and state.is_archived
        _show_action(
            self._archive,
            "Unarchive" if is_restore else "Archive",
            "Put the runs into the list again"
            if is_restore
            else "Take the runs out of the lists without deleting them, when all have ended",
            is_restore or (bool(archivable) and not state.is_active),
        )
        _show_action(
            self._figure,
            "Export figure",
            "Draw a figure for a paper into a PDF, SVG or PNG file"
            if has_points
            else "There are no points to draw yet",
            has_points,
        )

    def find_sweep(self, group: str) -> None:
        """Offer the sweep whose runs these are, if it is one of this workspace."""
        self._sweep.hide()
        self._workbench.bridge.run_in_background(
            lambda: group in sweep_names(self._workbench.workspace),
            lambda is_sweep: self._sweep.setVisible(is_sweep and group == self._state.name),
            self._workbench.show_error,
            self,
        )

    def _cancel_runs(self) -> None:
        handlers.cancel_runs(self._workbench, self._state.stoppable)

    def _retry_runs(self) -> None:
        handlers.retry_runs(self._workbench, self._state.retryable)

    def _compare_runs(self) -> None:
        self._workbench.comparison_requested.emit([view.run_id for view in self._state.views[::-1]])

    def _evaluate_runs(self) -> None:
        evaluable = runs_with_policy(self._state.views)
        self._workbench.evaluation_requested.emit([view.run_id for view in evaluable])

    def _archive_runs(self) -> None:
        if self._state.archivable:
            handlers.archive_runs(self._workbench, self._state.archivable)
        else:
            every = [*self._state.views, *self._state.superseded]
            handlers.archive_runs(self._workbench, every, is_archived=False)

    def _open_sweep(self) -> None:
        self._workbench.sweep_requested.emit(self._state.name)

    def _ask_figure_path(self, kind: FigureKind) -> None:
        folder = Path(self._workbench.settings.get("export.folder", str(Path.home())))
        ui.open_save_dialog(
            self._workbench.window,
            "group.figure.file",
            f"Export figure of {self._state.name}",
            folder / f"{self._state.name}-{kind}.pdf",
            FIGURE_FILTER,
            partial(self.figure_requested.emit, kind),
        )


def _count_runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def _show_action(button: QToolButton, text: str, tip: str, is_enabled: bool) -> None:
    button.setText(text)
    button.setToolTip(tip)
    button.setEnabled(is_enabled)
