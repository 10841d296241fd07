"""The page of sweeps: all sweeps of the workspace with their progress, and the page of one sweep."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QGuiApplication, QHideEvent, QKeyEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QInputDialog, QProgressBar, QToolButton, QWidget

from mosaic.base.formatting import PLACEHOLDER, format_si_number
from mosaic.base.processes import is_alive
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.contracts.views import RunView
from mosaic.features.experiments.core import match_runs
from mosaic.features.sweeps.api import describe_score, format_param, format_params
from mosaic.features.sweeps.core import TrialRow, TrialStatus, score_interval
from mosaic.features.sweeps.window_charts import HistoryChart, ImportanceBars, ParallelPlot
from mosaic.features.sweeps.window_model import (
    SweepCommands,
    SweepsModel,
    SweepState,
    SweepStatus,
    build_axes,
    build_lines,
)
from mosaic.window import run_actions as handlers
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.specs import Page
from mosaic.window.tables import STATE_ICON_SIZE, Cell, RowsTable, format_interval
from mosaic.window.widgets import ButtonRow
from mosaic.window.workbench import Workbench

# --- The buttons of a sweep page: continue, stop, its runs, its figure, and the command that continues it.


FIGURE_FILTER = "PDF (*.pdf);;SVG (*.svg);;PNG (*.png)"
START_CHECK_MS = 500


class SweepActions(QWidget):
    def __init__(self, workbench: Workbench, commands: SweepCommands) -> None:
        super().__init__()
        self._workbench = workbench
        self._commands = commands
        self._state: SweepState | None = None
        self._started: tuple[str, ProcessIdentity] | None = None
        """The sweep that was started here and its process, until it runs."""
        self._is_stopping = False
        self._continue = self._button("continue", "mdi6.play", "Continue", self.start)
        self._stop = self._button("stop", "mdi6.stop", "Stop", self._ask_stop)
        self._runs = self._button("runs", "mdi6.folder-multiple-outline", "Show runs", self._show_runs)
        self._figure = self._button("figure", "mdi6.file-image-outline", "Export figure", self._ask_figure_path)
        self._command = self._button("command", "mdi6.console", "", self._copy_command)
        self._runs.setToolTip("All runs of this sweep as a group: curves by trial, cancel, archive")
        buttons = (self._continue, self._stop, self._runs, self._figure, self._command)
        ui.column(ButtonRow(buttons), parent=self)
        self._check_timer = ui.create_timer(self, START_CHECK_MS, self._check_started)

    def _button(self, name: str, icon: str, text: str, on_click: ui.Call) -> QToolButton:
        return ui.tool_button(f"sweep.{name}", icon, "", on_click, text, is_flat=False)

    def show_state(self, state: SweepState) -> None:
        """Show what is possible now."""
        self._state = state
        status, running = state.status, state.count("running")
        is_starting = self._started is not None and self._started[0] == state.name
        if is_starting and status is SweepStatus.RUNNING:
            self._started, is_starting = None, False
            self._check_timer.stop()
        can_continue = status in (SweepStatus.DETACHED, SweepStatus.STOPPED) and not is_starting
        self._continue.setEnabled(can_continue and not self._is_stopping)
        self._continue.setText("Starting…" if is_starting else "Continue")
        self._continue.setToolTip(
            "Start a process that runs the trials that are left; it continues when the window is closed"
            if can_continue
            else state.describe_status()
        )
        self._stop.setEnabled((status is SweepStatus.RUNNING or running > 0) and not self._is_stopping)
        self._stop.setText("Stopping…" if self._is_stopping else "Stop")
        self._stop.setToolTip("End the process that runs this sweep, and cancel its running trials; the study is kept")
        self._figure.setEnabled(state.best is not None)
        self._figure.setToolTip("Draw history, importance and trials by setting into a PDF, SVG or PNG file")
        self._command.setToolTip(f"Copy the command that continues it in a terminal:\n{self._shown_command()}")

    # --- starting and stopping

    def start(self) -> None:
        """Start a process that continues the sweep and does not end with the window."""
        if self._state is None:
            return
        try:
            self._started = self._state.name, self._commands.start(self._state.name)
        except MosaicError as error:
            self._workbench.show_error(error)
            return
        self._check_timer.start()
        self.show_state(self._state)

    def _check_started(self) -> None:
        """Report why the process has ended, if it has before it could run the sweep."""
        if self._started is None or is_alive(self._started[1]):
            return
        name, _ = self._started
        self._started = None
        self._check_timer.stop()
        self._workbench.bridge.run_in_background(
            lambda: self._commands.read_log(name),
            lambda text: self._workbench.show_message(text or f"The sweep {name} ended at once.", "warning"),
            self._workbench.show_error,
            self,
        )
        if self._state is not None:
            self.show_state(self._state)

    def _ask_stop(self) -> None:
        if self._state is None:
            return
        name = self._state.name
        ui.confirm(
            self._workbench.window,
            "sweep.stop.question",
            "Stop sweep",
            f"Stop the sweep {name}?",
            "Its process is ended and its running trials are cancelled, which cannot be undone. Trials that have ended "
            "are kept; Continue starts others in place of those that were cancelled.",
            "Stop sweep",
            lambda: self.stop(name),
            "Keep running",
        )

    def stop(self, name: str) -> None:
        self._is_stopping = True
        if self._state is not None:
            self.show_state(self._state)
        self._workbench.bridge.run_in_background(
            lambda: self._commands.cancel(name), self._on_stopped, self._on_stop_failed, self
        )

    def _on_stopped(self, text: str) -> None:
        self._end_stopping()
        self._workbench.show_message(text, "good")

    def _on_stop_failed(self, error: Exception) -> None:
        self._end_stopping()
        self._workbench.show_error(error)

    def _end_stopping(self) -> None:
        self._is_stopping = False
        if self._state is not None:
            self.show_state(self._state)

    # --- the rest

    def _show_runs(self) -> None:
        if self._state is not None:
            name = self._state.name
            if any(view.group == name for view in self._workbench.runs.all()):
                self._workbench.group_requested.emit(name)
            else:
                self._workbench.show_message(f"This trainer has no runs of the sweep {name}.", "warning")

    def _shown_command(self) -> str:
        return "" if self._state is None else self._commands.shown_command(self._state.name)

    def _copy_command(self) -> None:
        QGuiApplication.clipboard().setText(self._shown_command())
        self._workbench.show_message(f"Copied: {self._shown_command()}")

    def _ask_figure_path(self) -> None:
        if self._state is None:
            return
        folder = Path(self._workbench.settings.get("export.folder", str(Path.home())))
        ui.open_save_dialog(
            self._workbench.window,
            "sweep.figure.file",
            f"Export figure of {self._state.name}",
            folder / f"{self._state.name}.pdf",
            FIGURE_FILTER,
            self.write_figure,
        )

    def write_figure(self, path: Path) -> None:
        if self._state is None:
            return
        name = self._state.name
        self._workbench.settings.put("export.folder", str(path.parent))
        self._workbench.bridge.run_in_background(
            lambda: self._commands.plot(name, path),
            lambda text: self._workbench.show_message(text, "good"),
            self._workbench.show_error,
            self,
        )


# --- One sweep: its progress and best settings, its trials by setting, and which settings matter.


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


# --- The page of sweeps: all sweeps of the workspace with their progress, and the page of one sweep.


COLUMN_TITLES = ("Sweep", "State", "Trials", "Best score", "Best settings")
EMPTY_TEXT = (
    "A sweep searches for the settings of an algorithm with Optuna. Write its file and run it in a terminal:\n"
    "mosaic sweep init ppo CartPole-v1 > study.yaml\n"
    "mosaic sweep study.yaml"
)
REMOTE_TEXT = "Sweeps are stored where their process runs. This page shows those of this machine's workspace, {}."


class SweepsPage(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._wanted = ""
        """The sweep to show as soon as it was read."""
        self._names: list[str] = []
        """Of the rows of the table."""
        self.sweeps = SweepsModel(workbench.workspace, workbench.bridge, self)
        self.sweeps.changed.connect(self._refresh)
        workbench.closing.connect(self.sweeps.close)
        self.table = RowsTable("sweeps.list", text_columns=(0, 1, 2, 4), elided_column=4)
        self.table.setIconSize(QSize(STATE_ICON_SIZE, STATE_ICON_SIZE))
        self.table.opened.connect(lambda row: self.show_sweep(self._names[row]))
        self.table.itemSelectionChanged.connect(self._update_buttons)
        self._open = ui.button(
            "Open", "sweeps.open", self._open_selected, "Show the selected sweep (Return, or a double click)"
        )
        self._empty = ui.EmptyState("Reading the sweeps…")
        self._note = ui.muted_label("", "sweeps.note")
        self._lists = ui.stack(self._empty, ui.widget_column(self._note, (self.table, 1)))
        head = ui.row(ui.heading_label("Sweeps"), ui.Stretch(), self._open)
        # The name of a remote trainer is known only after the pages were created.
        self.commands = SweepCommands(workbench.workspace, lambda: workbench.trainer_name)
        self.page = SweepPage(workbench, self.commands)
        self.page.left.connect(self.show_list)
        self._stack = ui.stack(ui.widget_column(head, (self._lists, 1)), self.page)
        ui.column(self._stack, parent=self, margins=ui.PAGE_MARGINS)
        workbench.sweep_requested.connect(self._on_sweep_requested)
        self._wanted = workbench.settings.get_for_workspace("sweep", "")
        self._refresh()

    # --- which sweep

    def _on_sweep_requested(self, name: str) -> None:
        self.show_sweep(name)
        self._workbench.page_requested.emit("sweeps")

    def show_sweep(self, name: str) -> None:
        self._wanted = name
        self._workbench.settings.put_for_workspace("sweep", name)
        self._refresh()

    def show_list(self) -> None:
        self._wanted = ""
        self._workbench.settings.put_for_workspace("sweep", "")
        self._refresh()
        self.table.setFocus()

    def _open_selected(self) -> None:
        row = self.table.selected_row()
        if row is not None:
            self.show_sweep(self._names[row])

    # --- what is shown

    def _refresh(self) -> None:
        state = self.sweeps.states.get(self._wanted)
        if state is not None:
            self.page.show_state(state)
        self._stack.setCurrentIndex(1 if state is not None else 0)
        states = self.sweeps.listed()
        self._lists.setCurrentIndex(1 if states else 0)
        self._open.setVisible(bool(states))
        self._show_empty()
        selected = self.table.selected_row()
        name = self._names[selected] if selected is not None and selected < len(self._names) else ""
        self._names = [state.name for state in states]
        self.table.show_rows(COLUMN_TITLES, [_cells(state) for state in states])
        if name in self._names:
            self.table.selectRow(self._names.index(name))
        self._update_buttons()

    def _show_empty(self) -> None:
        remote = REMOTE_TEXT.format(self._workbench.workspace.root) if self._workbench.is_remote else ""
        self._note.setText(remote)
        self._note.setVisible(bool(remote))
        if self.sweeps.problem:
            self._empty.set_text("Sweeps cannot be read", self.sweeps.problem)
        elif self.sweeps.is_loaded:
            self._empty.set_text("No sweeps yet", "\n\n".join(filter(None, (remote, EMPTY_TEXT))))
        else:
            self._empty.set_text("Reading the sweeps…", remote)

    def _update_buttons(self) -> None:
        self._open.setEnabled(self.table.selected_row() is not None)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.sweeps.watch()
        self._refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.sweeps.suspend()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self._stack.currentWidget() is self.page:
            self.show_list()
        else:
            super().keyPressEvent(event)


def _cells(state: SweepState) -> list[str | Cell]:
    best = state.best
    status = str(state.status)
    return [
        state.name,
        Cell(status, state.describe_status(), theme.state_icon(status)),
        Cell(state.short_line, state.line),
        PLACEHOLDER if best is None else format_si_number(best.score),
        "" if best is None else format_params(best),
    ]


PAGES = (Page("sweeps", "Sweeps", "mdi6.tune-vertical", SweepsPage, position=6),)
