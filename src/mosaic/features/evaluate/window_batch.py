"""The form that evaluates the policies of several runs, and a table of how far they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QWidget

from mosaic.base.formatting import count_noun, format_count, run_title
from mosaic.contracts.views import RunView
from mosaic.features.evaluate.window_model import (
    BATCH_FIELDS,
    BatchSubmission,
    PolicyJob,
    evaluation_fields,
    format_job,
    mean_of,
)
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.form import MAX_FORM_WIDTH, SubmitView
from mosaic.window.form_model import FieldTexts
from mosaic.window.form_rows import FormRow, LabelledRow, align_labels, form_combo
from mosaic.window.runs import Evaluations
from mosaic.window.tables import STATE_ICON_SIZE, Cell, RowsTable, format_interval
from mosaic.window.widgets import WrappingRow
from mosaic.window.workbench import Workbench

COLUMN_TITLES = ("Policy of run", "Mean [95 %]", "Episodes", "State")


class BatchEvaluation(SubmitView):
    left = Signal()
    """Show the form for one policy instead."""

    def __init__(self, workbench: Workbench, worker: str) -> None:
        super().__init__(workbench, "batch", "Evaluate", "Start an evaluation for each run")
        self._form = FieldTexts(evaluation_fields(worker, BATCH_FIELDS))
        self._jobs: list[PolicyJob] = []
        self._episodes = 0
        self._evaluations = Evaluations(workbench.bridge, self)
        self._evaluations.changed.connect(self._fill)
        self._title = ui.heading_label("")
        back = ui.button("Evaluate one policy", "batch.back", self.left.emit, "Choose a run, a checkpoint or a file")
        self.table = RowsTable("batch.runs", text_columns=(0, 3), elided_column=3)
        self.table.opened.connect(self._open_run)
        self.table.setMinimumHeight(120)
        self.table.setIconSize(QSize(STATE_ICON_SIZE, STATE_ICON_SIZE))
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
            self.line,
            WrappingRow([links, ui.Stretch(), ui.row(ui.Stretch(), self.submit_button)]),
            parent=self,
            margins=ui.PAGE_MARGINS,
        )
        workbench.runs.changed.connect(self._on_runs_changed)
        self.refresh()

    def _build_form(self) -> QWidget:
        self._checkpoint = form_combo("batch.checkpoint")
        self._checkpoint.addItem("The last checkpoint", "last")
        self._checkpoint.addItem("The best checkpoint", "best")
        rows: list[FormRow] = [LabelledRow("Checkpoint", self._checkpoint), *map(self.add_row, self._form.settings)]
        align_labels(rows)
        self._workbench.theme_changed.connect(lambda: align_labels(rows))
        body = ui.widget_column(*rows, ui.Stretch(), margins=(0, 0, theme.MARGIN, 0))
        body.setMaximumWidth(MAX_FORM_WIDTH)
        return ui.form_area(body, "batch.scroll")

    @property
    def form(self) -> FieldTexts:
        return self._form

    def keep(self, form: FieldTexts) -> None:
        self._form = form
        self.on_form_changed()

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
            self.on_form_changed()

    def refresh(self) -> None:
        super().refresh()
        count = len(self._jobs)
        self._title.setText(f"Evaluate the policies of {count_noun(count, 'run')}")
        self.submit_button.setText(f"Evaluate {count_noun(count, 'run')}{' again' if self.has_results else ''}")
        self._fill()

    # --- submitting

    def submit(self) -> None:
        if self.validate():
            options = self._form.values(*self._form.fields)
            self._episodes = int(options["eval_batch_size"])
            batch = BatchSubmission([job.trained for job in self._jobs], options, self._checkpoint.currentData())
            self.ask(batch, self._on_submitted, "Submitting…", on_question=lambda: self._on_submitted(list(batch.jobs)))

    def _on_submitted(self, jobs: list[PolicyJob]) -> None:
        self._jobs = list(jobs)
        views = [job.evaluation for job in jobs if job.evaluation is not None]
        self._workbench.runs.update(views)
        self._workbench.runs_submitted.emit([view.run_id for view in views])
        self._evaluations.watch_run("")
        refused = len(jobs) - len(views)
        text = f"{count_noun(len(views), 'evaluation')} submitted."
        self.refresh()
        self.line.show_text(
            f"{text} {refused} refused: see the table." if refused else text, "bad" if refused else "good"
        )

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
                self.line.clear()  # the table says what became of each

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
