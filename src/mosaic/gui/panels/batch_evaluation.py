"""The form that evaluates the policies of several runs, and a table of how far they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QHideEvent, QKeySequence, QShortcut, QShowEvent
from PySide6.QtWidgets import QWidget

from mosaic.contracts.views import RunView
from mosaic.formatting import count_noun, format_count, run_title
from mosaic.gui import theme
from mosaic.gui.forms.form_rows import FieldRow, LabelledRow, align_labels, form_combo
from mosaic.gui.forms.submit_controller import VerdictLine
from mosaic.gui.forms.trust_question import ask_with_trust
from mosaic.gui.models.batch_evaluation import (
    BatchSubmission,
    PolicyJob,
    batch_fields,
    batch_options,
    batch_problems,
    format_job,
    mean_of,
)
from mosaic.gui.models.draft import is_default
from mosaic.gui.models.form_layout import field_label
from mosaic.gui.models.runs_model import Evaluations
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.tables import STATE_ICON_SIZE, Cell, RowsTable, format_interval
from mosaic.gui.views.wrapping_row import WrappingRow
from mosaic.gui.workbench import Workbench

COLUMN_TITLES = ("Policy of run", "Mean [95 %]", "Episodes", "State")
MAX_FORM_WIDTH = 760


class BatchEvaluation(QWidget):
    left = Signal()
    """Show the form for one policy instead."""

    def __init__(self, workbench: Workbench, worker: str) -> None:
        super().__init__()
        self._workbench = workbench
        self._fields = batch_fields(worker)
        self._texts: dict[str, str] = {}
        self._jobs: list[PolicyJob] = []
        self._episodes = 0
        self.is_busy = False
        self._evaluations = Evaluations(workbench.bridge, self)
        self._evaluations.changed.connect(self._fill)
        self._title = ui.heading_label("")
        back = ui.button("Evaluate one policy", "batch.back", self.left.emit, "Choose a run, a checkpoint or a file")
        self.table = RowsTable("batch.runs", text_columns=(0, 3), elided_column=3)
        self.table.opened.connect(self._open_run)
        self.table.setMinimumHeight(120)
        self.table.setIconSize(QSize(STATE_ICON_SIZE, STATE_ICON_SIZE))
        self._line = VerdictLine("batch.verdict")
        self.submit_button = ui.accent_button("Evaluate", "batch.submit", self.submit)
        self.submit_button.setToolTip("Start an evaluation for each run (Ctrl+Return)")
        keys = QShortcut(QKeySequence("Ctrl+Return"), self, context=Qt.ShortcutContext.WidgetWithChildrenShortcut)
        keys.activated.connect(self.submit_button.click)
        self.leaderboard_button = ui.button(
            "Leaderboard", "batch.leaderboard", lambda: workbench.page_requested.emit("leaderboard"),
            "All evaluated policies, ranked",
        )  # fmt: skip
        self.compare_button = ui.button(
            "Compare", "batch.compare", self._compare, "Put the runs that were evaluated together on the compare page"
        )
        split = ui.splitter(
            Qt.Orientation.Vertical, self._build_form(), self.table, sizes=[280, 260], stretch=1, name="batch.split"
        )
        links = ui.row(self.leaderboard_button, self.compare_button)
        ui.column(
            WrappingRow([self._title, ui.Stretch(), back]),
            (split, 1),
            self._line,
            WrappingRow([links, ui.Stretch(), ui.row(ui.Stretch(), self.submit_button)]),
            parent=self,
            margins=ui.PAGE_MARGINS,
        )
        workbench.runs.changed.connect(self._on_runs_changed)
        self._refresh()

    def _build_form(self) -> QWidget:
        self._checkpoint = form_combo("batch.checkpoint")
        self._checkpoint.addItem("The last checkpoint", "last")
        self._checkpoint.addItem("The best checkpoint", "best")
        self._rows = {field.name: FieldRow(field, "batch") for field in self._fields}
        for field_row in self._rows.values():
            field_row.edited.connect(self._on_edited)
        rows: list[FieldRow | LabelledRow] = [LabelledRow("Checkpoint", self._checkpoint), *self._rows.values()]
        align_labels(rows)
        self._workbench.theme_changed.connect(lambda: align_labels(rows))
        body = ui.widget_column(*rows, ui.Stretch(), margins=(0, 0, theme.MARGIN, 0))
        body.setMaximumWidth(MAX_FORM_WIDTH)
        return ui.form_area(body, "batch.scroll")

    # --- which runs

    @property
    def has_results(self) -> bool:
        """Whether evaluations were submitted here, whose progress is shown."""
        return any(job.evaluation is not None or job.problem for job in self._jobs)

    @property
    def is_running(self) -> bool:
        return self.is_busy or (self.has_results and not all(map(self._is_over, self._jobs)))

    def show_runs(self, trained: Sequence[RunView]) -> None:
        """Offer to evaluate these; results of the same runs stay."""
        if [job.trained.run_id for job in self._jobs] != [view.run_id for view in trained]:
            self._jobs = [PolicyJob(view) for view in trained]
            self._line.clear()
            self._refresh()

    # --- editing

    def _on_edited(self, name: str, text: str) -> None:
        field_row = self._rows[name]
        self._texts.pop(name, None)
        if not is_default(field_row.field, text):
            self._texts[name] = text
        field_row.show_text(text)
        self._line.clear()
        self._refresh()

    def _refresh(self) -> None:
        problems = batch_problems(self._fields, self._texts)
        for name, field_row in self._rows.items():
            field_row.show_state(name in self._texts, problems.get(name, ""))
        count = len(self._jobs)
        self._title.setText(f"Evaluate the policies of {count_noun(count, 'run')}")
        self.submit_button.setText(f"Evaluate {count_noun(count, 'run')}{' again' if self.has_results else ''}")
        self._fill()

    # --- submitting

    def submit(self) -> None:
        problems = batch_problems(self._fields, self._texts)
        if problems:
            name, problem = next(iter(problems.items()))
            self._line.show_text(f"{field_label(self._rows[name].field)}: {problem}", "bad")
            self._rows[name].take_focus()
            return
        options = batch_options(self._fields, self._texts)
        self._episodes = int(options["eval_batch_size"])
        batch = BatchSubmission([job.trained for job in self._jobs], options, self._checkpoint.currentData())
        self._set_busy(True)
        ask_with_trust(
            self._workbench,
            batch,
            self._on_submitted,
            self,
            self._on_failed,
            lambda: self._on_submitted(list(batch.jobs)),
            is_repeatable=True,
        )

    def _on_submitted(self, jobs: list[PolicyJob]) -> None:
        self._set_busy(False)
        self._jobs = list(jobs)
        views = [job.evaluation for job in jobs if job.evaluation is not None]
        self._workbench.runs.update(views)
        self._workbench.runs_submitted.emit([view.run_id for view in views])
        self._evaluations.watch_run("")
        refused = len(jobs) - len(views)
        text = f"{count_noun(len(views), 'evaluation')} submitted."
        self._line.show_text(
            f"{text} {refused} refused: see the table." if refused else text, "bad" if refused else "good"
        )
        self._refresh()

    def _on_failed(self, error: Exception) -> None:
        self._set_busy(False)
        self._workbench.events.add_error(error)
        self._line.show_text(str(error), "bad")

    def _set_busy(self, is_busy: bool) -> None:
        self.is_busy = is_busy
        self.submit_button.setEnabled(not is_busy)
        if is_busy:
            self._line.show_text("Submitting…", "muted")

    # --- results

    def _view_of(self, job: PolicyJob) -> RunView | None:
        return job.evaluation and (self._workbench.runs.get(job.evaluation.run_id) or job.evaluation)

    def _is_over(self, job: PolicyJob) -> bool:
        return replace(job, evaluation=self._view_of(job)).is_over

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        if any(job.evaluation is not None and job.evaluation.run_id in run_ids for job in self._jobs):
            self._evaluations.refresh()
            self._fill()
            if not self.is_running:
                self._line.clear()  # the table says what became of each

    def _fill(self) -> None:
        known = {evaluation.run_id: evaluation for evaluation in self._evaluations.evaluations}
        rows: list[list[str | Cell]] = []
        for job in self._jobs:
            view = self._view_of(job)
            evaluation = known.get(view.run_id) if view is not None else None
            mean = mean_of(evaluation)
            state = format_job(job, view, None if evaluation is None else evaluation.summary, self._episodes)
            status = "failed" if job.problem else view.status if view is not None else ""
            icon = theme.state_icon(status) if status else None
            rows.append(
                [
                    Cell(run_title(job.trained), icon=ui.dot_icon(theme.run_color(job.trained.run_id))),
                    "–" if mean is None else format_interval(mean),
                    "–" if evaluation is None else format_count(evaluation.summary.episodes),
                    Cell(state, icon=icon),
                ]
            )
        self.table.show_rows(COLUMN_TITLES, rows)
        has_means = any(row[1] != "–" for row in rows)
        self.leaderboard_button.setEnabled(has_means)
        self.compare_button.setEnabled(len(self._jobs) > 1)

    def _open_run(self, row: int) -> None:
        view = self._view_of(self._jobs[row]) or self._jobs[row].trained
        self._workbench.select(view.run_id, "overview")

    def _compare(self) -> None:
        self._workbench.comparison_requested.emit([job.trained.run_id for job in self._jobs])

    # --- events

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self.has_results:
            self._evaluations.watch_run("")

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._evaluations.suspend()
