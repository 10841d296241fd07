"""One sweep: its progress and best settings, its trials by setting, and which settings matter."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QInputDialog, QProgressBar, QWidget

from mosaic.api.experiment_state import match_runs
from mosaic.api.sweeps.sweep_result import describe_score, format_param
from mosaic.api.sweeps.trial_row import TrialRow, TrialStatus
from mosaic.api.sweeps.trial_scores import score_interval
from mosaic.contracts.views import RunView
from mosaic.formatting import PLACEHOLDER, format_si_number
from mosaic.gui import run_action_handlers as handlers
from mosaic.gui import theme
from mosaic.gui.models.sweep_commands import SweepCommands
from mosaic.gui.models.sweep_state import SweepState, build_axes, build_lines
from mosaic.gui.panels.sweep_actions import SweepActions
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.parallel_plot import ParallelPlot
from mosaic.gui.views.sweep_charts import HistoryChart, ImportanceBars
from mosaic.gui.views.tables import STATE_ICON_SIZE, Cell, RowsTable, format_interval
from mosaic.gui.workbench import Workbench

IMPORTANCE_TEXT = (
    "How much a setting decides whether a completed trial is among the best quarter (PED-ANOVA), not its share in the "
    "variance of all scores: a setting that ruins every trial outside of a small range may rank low. Rough below 20 "
    "trials."
)
NO_TRIALS_TEXT = "No trial is done yet. Each one becomes a line here, colored by its score."
HINT_TEXT = "Point at a line to see its trial; a click selects it. Thin grey: pruned."
SCORE_COLUMN = 2
BEST_FIRST = (SCORE_COLUMN, True)


class SweepPage(QWidget):
    left = Signal()
    """The user goes back to the list of sweeps."""

    def __init__(self, workbench: Workbench, commands: SweepCommands) -> None:
        super().__init__()
        self._workbench = workbench
        self._state: SweepState | None = None
        self._rows: list[TrialRow] = []
        """In the order of the table."""
        self._sort = BEST_FIRST
        """The column of the table, and whether its largest value comes first."""
        self.buttons = SweepActions(workbench, commands)
        self._build()
        workbench.theme_changed.connect(self.history.redraw)

    # --- building

    def _build(self) -> None:
        back = ui.tool_button("sweep.back", "mdi6.arrow-left", "All sweeps (Esc)", self.left.emit)
        self._title = ui.with_object_name(ui.ElidedLabel(), "sweep.title")
        self._title.setProperty("heading", True)
        self._line = ui.with_object_name(ui.ElidedLabel(), "sweep.line")
        self._progress = ui.with_object_name(QProgressBar(), "sweep.progress")
        self._progress.setProperty("thin", True)
        self._progress.setTextVisible(False)
        self._progress.setRange(0, 1000)
        self._icon = ui.IconLabel(16)
        self._status = ui.selectable_label("sweep.status")
        self.history = HistoryChart("sweep.history")
        self.history.hovered.connect(self._show_hovered)
        self.importance = ImportanceBars("sweep.importance")
        self.parallel = ParallelPlot("sweep.parallel")
        self.parallel.hovered.connect(self._show_hovered)
        self.parallel.clicked.connect(self._select_trial)
        self._hover_label = ui.with_object_name(ui.ElidedLabel(HINT_TEXT), "sweep.hovered")
        self._hover_label.setProperty("muted", True)
        self.table = RowsTable("sweep.trials", text_columns=(1,))
        self.table.setMinimumHeight(180)
        self.table.setIconSize(QSize(STATE_ICON_SIZE, STATE_ICON_SIZE))
        self.table.setToolTip("A double click shows the runs of a trial; a click on a column's title sorts by it")
        self.table.opened.connect(lambda row: self.open_trial(self._rows[row].number))
        self.table.itemSelectionChanged.connect(self._on_row_selected)
        header = self.table.horizontalHeader()
        header.setSectionsClickable(True)
        header.sectionClicked.connect(self._sort_by)
        content = ui.widget_column(
            self._build_best(),
            ui.row((self.history, 3), (self._build_importance(), 2), spacing=theme.GAP),
            ui.section_label("Trials by setting"),
            (self.parallel, 1),
            self._hover_label,
            ui.section_label("Trials"),
            (self.table, 1),
            margins=(0, 0, theme.GAP, 0),
        )
        ui.column(
            ui.row(back, self._title, theme.GAP, (self._line, 1)),
            self._progress,
            ui.row((self._icon, Qt.AlignmentFlag.AlignTop), (self._status, 1)),
            self.buttons,
            (ui.scroll_area(content, "sweep.scroll", is_vertical_only=True), 1),
            parent=self,
        )

    def _build_best(self) -> QWidget:
        card = QFrame()
        card.setProperty("card", True)
        self._best_title = ui.with_object_name(ui.section_label(""), "sweep.best")
        self._best_title.setWordWrap(True)
        self._best_settings = ui.selectable_label("sweep.best.settings")
        self._score_note = ui.muted_label("")
        self._score_note.setProperty("note", True)
        self._copy = ui.button("Copy", "sweep.copy", self._copy_settings, "Copy these settings as JSON")
        self._save = ui.button(
            "Save as preset…",
            "sweep.preset",
            self._ask_preset_name,
            "Offer these settings in the train form and in mosaic train",
        )
        texts = ui.column(self._best_title, self._best_settings, self._score_note, spacing=2)
        ui.row(
            (texts, 1), self._copy, self._save, parent=card, margins=(theme.MARGIN, theme.GAP, theme.MARGIN, theme.GAP)
        )
        return card

    def _build_importance(self) -> QWidget:
        note = ui.muted_label(IMPORTANCE_TEXT)
        note.setProperty("note", True)
        return ui.widget_column(ui.section_label("Importance"), self.importance, note, ui.Stretch(), spacing=4)

    # --- what is shown

    @property
    def sweep(self) -> str:
        return "" if self._state is None else self._state.name

    def show_state(self, state: SweepState) -> None:
        is_other = state.name != self.sweep
        self._state = state
        if is_other:
            self._sort = BEST_FIRST
            self.table.clearSelection()
            self._show_hovered(None)
        self._title.setText(state.name)
        self._title.setToolTip(state.name)
        self._line.setText(state.line)
        self._line.setToolTip(state.line)
        self._progress.setValue(round(1000 * state.ended_share))
        self._icon.set_icon(theme.state_icon(str(state.status)))
        self._status.setText(state.describe_status())
        self.buttons.show_state(state)
        self._show_best(state)
        dimensions = [] if state.plan is None else state.plan.dimensions
        self.history.show_trials(state.trials, 1 if state.plan is None else state.plan.trial_count)
        self.importance.show_values(state.snapshot.importances or {}, state.describe_importance())
        self.parallel.show_trials(
            build_axes(dimensions, state.trials), build_lines(dimensions, state.trials), NO_TRIALS_TEXT
        )
        self._fill_table()

    def _show_best(self, state: SweepState) -> None:
        best = state.best
        for widget in (self._copy, self._save):
            widget.setEnabled(best is not None and state.plan is not None)
        if best is None or state.plan is None:
            self._best_title.setText("Best so far: no trial is done yet")
            self._best_settings.setText("")
        else:
            has_interval = len(best.seed_scores) > 1 and state.plan.config.score == "mean"
            score = format_interval(score_interval(best.seed_scores)) if has_interval else format_si_number(best.score)
            self._best_title.setText(f"Best so far: {score}  (trial {best.number})")
            self._best_settings.setText("   ".join(f"{name} {format_param(v)}" for name, v in best.params.items()))
        self._best_settings.setVisible(best is not None)
        if state.plan is not None:
            self._score_note.setText(
                f"{state.plan.config.algorithm.name} on {', '.join(one.id for one in state.plan.config.environments)}. "
                f"The score is {describe_score(state.plan)}. The best of many trials is too good on its own seeds: "
                "train it with others before you report it."
            )

    def _show_hovered(self, number: int | None) -> None:
        self.parallel.highlight(self._selected_number() if number is None else number)
        row = next((row for row in self._rows if row.number == number), None)
        self._hover_label.setText(HINT_TEXT if row is None else describe_trial(row))
        self._hover_label.setToolTip("" if row is None else describe_trial(row))

    # --- the table of trials

    def _columns(self) -> list[tuple[str, Callable[[TrialRow], Any]]]:
        """By title: the value by which rows are sorted."""
        state = self._state
        names = [] if state is None or state.plan is None else [dimension.name for dimension in state.plan.dimensions]
        columns: list[tuple[str, Callable[[TrialRow], Any]]] = [
            ("Trial", lambda row: row.number),
            ("State", lambda row: str(row.status)),
            ("Score [95 %]" if self._has_seeds() else "Score", lambda row: row.last_score),
        ]
        if self._has_mean_column():
            columns.append(("Mean over seeds [95 %]", lambda row: row.score))
        return [*columns, *((name, lambda row, name=name: row.params.get(name)) for name in names)]

    def _has_seeds(self) -> bool:
        """Whether the score is a mean over several seeds."""
        plan = None if self._state is None else self._state.plan
        return plan is not None and plan.config.seeds_per_trial > 1 and plan.config.score == "mean"

    def _has_mean_column(self) -> bool:
        """Whether the score is not the mean over seeds, which then has a column of its own."""
        plan = None if self._state is None else self._state.plan
        return plan is not None and plan.config.seeds_per_trial > 1 and plan.config.score != "mean"

    def _fill_table(self) -> None:
        if self._state is None:
            return
        columns = self._columns()
        column, is_descending = self._sort
        selected = self._selected_number()
        self._rows = sort_trials(self._state.trials, columns[column][1], is_descending)
        titles = [title + (" ↓" if is_descending else " ↑") * (n == column) for n, (title, _) in enumerate(columns)]
        has_mean = self._has_mean_column()
        names = [title for title, _ in columns[3 + has_mean :]]
        self.table.show_rows(titles, [trial_cells(row, names, has_mean) for row in self._rows])
        if selected is not None:
            self._select_trial(selected)

    def _sort_by(self, column: int) -> None:
        if column < len(self._columns()):
            # A score is sorted from the best one first.
            self._sort = (column, not self._sort[1] if column == self._sort[0] else column == SCORE_COLUMN)
            self._fill_table()

    def _selected_number(self) -> int | None:
        row = self.table.selected_row()
        return self._rows[row].number if row is not None and row < len(self._rows) else None

    def _select_trial(self, number: int) -> None:
        rows = [row.number for row in self._rows]
        if number in rows and self.table.selected_row() != rows.index(number):
            self.table.selectRow(rows.index(number))

    def _on_row_selected(self) -> None:
        self.parallel.highlight(self._selected_number())

    def open_trial(self, number: int) -> None:
        """Show the runs of a trial: mark them in the list of runs, and open the first."""
        state = self._state
        if state is None or state.plan is None or not state.trials[number].is_complete:
            return
        plan, study_id, row = state.plan, state.snapshot.study_id, state.trials[number]
        views = [view for view in self._workbench.runs.all() if view.group == state.name]

        def find() -> list[RunView]:
            found = match_runs(plan.plan_trial(study_id, number, row.params), views)
            return [run.view for run in found if run.view is not None]

        self._workbench.bridge.run_in_background(find, self._show_runs, self._workbench.show_error, self)

    def _show_runs(self, views: Sequence[RunView]) -> None:
        if views:
            handlers.show_runs(self._workbench, views)
        else:
            self._workbench.show_message(
                "This trial has no runs on this trainer: it was not started, they were deleted, or it ran elsewhere.",
                "warning",
            )

    # --- the best settings

    def _copy_settings(self) -> None:
        if self._state is not None and (best := self._state.best) is not None:
            QGuiApplication.clipboard().setText(json.dumps(best.params))
            self._workbench.show_message(f"Copied the settings of trial {best.number}.")

    def _ask_preset_name(self) -> None:
        dialog = ui.with_object_name(QInputDialog(self.window()), "sweep.preset.name")
        dialog.setWindowTitle("Save as preset")
        dialog.setLabelText("Name of the preset; one with the same name is replaced:")
        dialog.setTextValue(self.sweep)
        dialog.textValueSelected.connect(self.save_preset)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def save_preset(self, name: str) -> None:
        """Save the best settings for further trainings."""
        state = self._state
        if not name.strip() or state is None or state.plan is None or state.best is None:
            return
        name = name.strip()
        preset = state.plan.build_preset(state.best.params)
        self._workbench.save_preset(name, preset, f"Saved trial {state.best.number} as preset {name!r}.")


def describe_trial(row: TrialRow) -> str:
    """`Trial 7 (done, 482.1): learning_rate 0.0024, num_steps 64`."""
    score = "" if row.last_score is None else f", {format_si_number(row.last_score)}"
    settings = ", ".join(f"{name} {format_param(value)}" for name, value in row.params.items())
    problem = f" {row.problem}" if row.problem else ""
    return f"Trial {row.number} ({row.status}{score}): {settings}{problem}"


def trial_cells(row: TrialRow, names: Sequence[str], has_mean: bool) -> list[str | Cell]:
    """`has_mean`: the mean over seeds has a column of its own, as it is not the score."""
    mean = format_interval(score_interval(row.seed_scores)) if len(row.seed_scores) > 1 else PLACEHOLDER
    if row.score is not None:
        is_mean = not has_mean and len(row.seed_scores) > 1
        score = Cell(mean if is_mean else format_si_number(row.score), f"{row.score:.6g}")
    elif row.last_score is not None:
        score = Cell(f"({format_si_number(row.last_score)})", f"Report {max(row.reports)}, not a final score")
    else:
        score = Cell(PLACEHOLDER)
    state = Cell(str(row.status), row.problem or str(row.status), theme.state_icon(str(row.status)))
    values = [format_param(row.params[name]) if name in row.params else PLACEHOLDER for name in names]
    return [str(row.number), state, score, *([mean] if has_mean else []), *values]


def sort_trials(rows: Sequence[TrialRow], key: Callable[[TrialRow], Any], is_descending: bool) -> list[TrialRow]:
    """Sort trials by a value; those without one come last in either order."""
    known = [row for row in rows if key(row) is not None]
    is_number = all(isinstance(key(row), int | float) for row in known)
    known.sort(key=lambda row: key(row) if is_number else json.dumps(key(row)), reverse=is_descending)
    # Among trials by score, what was measured on all steps comes before reports of trials that ended early.
    if any(row.status is TrialStatus.PRUNED and key(row) == row.last_score for row in known):
        known.sort(key=lambda row: row.score is None)
    return [*known, *(row for row in rows if key(row) is None)]
