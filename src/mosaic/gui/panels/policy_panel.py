"""The policy page: a trained policy from a run or a file, and how to evaluate it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QSignalBlocker
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QScrollArea, QWidget

from mosaic.contracts.views import CheckpointInfo
from mosaic.gui import theme
from mosaic.gui.forms.form_rows import EDITOR_WIDTH, EnvironmentRow, FormRow, LabelledRow, align_labels, form_combo
from mosaic.gui.forms.form_view import MAX_FORM_WIDTH, SubmitView
from mosaic.gui.forms.policy_source import PolicySourceFields
from mosaic.gui.models.form import Refusals, format_value
from mosaic.gui.models.form_layout import algorithms_by_worker
from mosaic.gui.models.policy_form import (
    ENVIRONMENT_FIELD,
    PolicyDraft,
    draft_from_evaluation,
    is_evaluation,
    policy_workers,
    runs_with_policy,
)
from mosaic.gui.panels.batch_evaluation import BatchEvaluation
from mosaic.gui.views import widgets as ui
from mosaic.gui.workbench import Workbench


class PolicyPage(QWidget):
    """The form for one policy, or for those of several runs that are chosen."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._view: PolicyView | None = None
        self._batch: BatchEvaluation | None = None
        self._column = ui.column(parent=self)
        workbench.form_requested.connect(self._on_form_requested)
        workbench.evaluation_requested.connect(self._on_evaluation_requested)
        workbench.marks_changed.connect(lambda _: self._follow_marks())
        workbench.edit_requested.connect(lambda _, payload: self._on_form_requested(payload))

    def _on_form_requested(self, payload: dict[str, Any] | None) -> None:
        if payload is not None and is_evaluation(payload):
            self._workbench.page_requested.emit("policy")
            self._create_view()
            if self._view is not None:
                self._show(self._view)
                self._view.fill(draft_from_evaluation(payload))

    def _on_evaluation_requested(self, run_ids: list[str]) -> None:
        self._create_view()
        views = [view for view in map(self._workbench.runs.get, run_ids) if view is not None]
        if self._view is not None and self._batch is not None:
            if len(views) > 1:
                self._batch.show_runs(views)
                self._show(self._batch)
            elif views:
                self._show(self._view)
                self._view.choose_run(views[0].run_id)
        self._workbench.page_requested.emit("policy")

    def _follow_marks(self) -> None:
        """Offer all runs that are chosen now, unless results of others are shown."""
        views = runs_with_policy(self._workbench.target_runs())
        if self.isVisible() and self._batch is not None and len(views) > 1 and not self._batch.has_results:
            self._batch.show_runs(views)
            self._show(self._batch)

    def showEvent(self, event: QShowEvent) -> None:
        self._create_view()
        super().showEvent(event)
        self._follow_marks()

    def _create_view(self) -> None:
        """Creates the forms when they are first needed, so that the window opens without waiting for them."""
        if self._column.count() > 0:
            return
        workers = policy_workers()
        if not workers:
            text = "No installed worker can load policies: pip install 'mosaic-rl[train]'"
            self._column.addWidget(ui.EmptyState("Nothing to load policies with", text))
            return
        self._view = PolicyView(self._workbench, workers[0])
        self._batch = BatchEvaluation(self._workbench, workers[0])
        self._batch.left.connect(self._leave_batch)
        self._batch.hide()
        self._column.addWidget(self._view)
        self._column.addWidget(self._batch)

    def _leave_batch(self) -> None:
        if self._view is not None and self._batch is not None:
            self._batch.show_runs([])
            self._show(self._view)

    def _show(self, form: QWidget) -> None:
        for widget in filter(None, (self._view, self._batch)):
            widget.setVisible(widget is form)


class PolicyView(SubmitView):
    def __init__(self, workbench: Workbench, worker: str) -> None:
        super().__init__(
            workbench,
            "policy",
            "Evaluate",
            "Start the evaluation",
            "Load the policy and show what would run; nothing is started",
        )
        self._draft = PolicyDraft(worker)
        self._source = PolicySourceFields(workbench, worker, self)
        self._source.path_chosen.connect(self._on_policy_chosen)
        self._source.checkpoint_inspected.connect(self._on_policy_inspected)
        ui.column(
            ui.heading_label("Load a trained policy"),
            (self._build_form(), 1),
            self.line,
            ui.row(ui.Stretch(), self.dry_run_button, self.submit_button),
            parent=self,
            margins=ui.PAGE_MARGINS,
        )
        workbench.environments.environments_loaded.connect(lambda _: self._show_environments())
        self.refresh()

    # --- building

    def _build_form(self) -> QScrollArea:
        about = self._build_policy_rows()
        how = [self.add_row(field) for field in self._draft.options]
        rows: list[FormRow] = [*self._source.rows, *about, *how]
        align_labels(rows)
        self._workbench.theme_changed.connect(lambda: align_labels(rows))
        body = ui.widget_column(
            ui.section_label("Policy"),
            *self._source.rows,
            self._source.info_label,
            theme.GAP,
            ui.section_label("Trained on"),
            *about,
            theme.GAP,
            ui.section_label("Evaluation"),
            *how,
            ui.Stretch(),
            margins=(0, theme.GAP, theme.MARGIN, theme.MARGIN),
        )
        body.setMaximumWidth(MAX_FORM_WIDTH)
        return ui.form_area(body, "policy.scroll")

    def _build_policy_rows(self) -> list[FormRow]:
        self._algorithm = form_combo("policy.algorithm")
        self._algorithm.setMinimumWidth(EDITOR_WIDTH)
        self._algorithm.activated.connect(lambda _: self.edit("algo", self._algorithm.currentText()))
        self._seed = ui.PlainLabel("–", "policy.seed")
        self._override = ui.check_box(
            "Override environment",
            "policy.override",
            self._on_override_toggled,
            "Use another environment with the same spaces, or one that the file does not state",
        )
        self.rows["policy_path"] = self._source.path_row
        algorithm = self.rows["algo"] = LabelledRow("Algorithm", self._algorithm)
        environment = self.add_row(ENVIRONMENT_FIELD)
        assert isinstance(environment, EnvironmentRow)
        self._environment = environment
        return [algorithm, LabelledRow("Seed", self._seed), environment, LabelledRow("", self._override)]

    # --- what is evaluated

    @property
    def form(self) -> PolicyDraft:
        return self._draft

    def keep(self, form: PolicyDraft) -> None:
        self._draft = form
        self.on_form_changed()

    def _on_policy_chosen(self, worker: str, path: str) -> None:
        self._refusals = Refusals()
        self.keep(
            replace(self._draft, worker=worker, path=path, checkpoint_info=None, telemetry={}, env_id=None, algo=None)
        )

    def _on_policy_inspected(self, info: CheckpointInfo, telemetry: Mapping[str, Any]) -> None:
        self.keep(self._draft.with_checkpoint_info(info, telemetry))

    def fill(self, draft: PolicyDraft) -> None:
        """Fills the form from an earlier evaluation."""
        self.keep(draft)
        self._source.show_path(draft.worker, draft.path)

    def choose_run(self, run_id: str) -> None:
        """Take the policy of this run."""
        self._source.choose_run(run_id)

    def _on_override_toggled(self, is_on: bool) -> None:
        self._refusals.drop("env_id")
        self.keep(replace(self._draft, env_id=self._draft.trained_env_id if is_on else None, algo=None))

    def edit(self, name: str, text: str) -> None:
        if name != "env_id" or self._draft.env_id is not None:
            super().edit(name, text)

    def refresh(self) -> None:
        draft = self._draft
        is_override = draft.env_id is not None
        with QSignalBlocker(self._override):
            self._override.setChecked(is_override)
        self._show_algorithms()
        self._algorithm.setEnabled(is_override)
        self._seed.setText(format_value(draft.seed) or "–")
        self._environment.setEnabled(is_override)
        super().refresh()
        if not is_override:
            self._environment.show_family_of(draft.environment)

    def _show_algorithms(self) -> None:
        """Lists the worker's algorithms and the one that the checkpoint names."""
        algorithm = self._draft.algorithm
        names = list(algorithms_by_worker().get(self._draft.worker, ()))
        names += [algorithm] if algorithm and algorithm not in names else []
        ui.set_choices(self._algorithm, ((name, name) for name in names), algorithm)

    def _show_environments(self) -> None:
        self._environment.show_choices(self._workbench.environments.for_worker(self._draft.worker))
        if self._draft.env_id is None:
            self._environment.show_family_of(self._draft.environment)

    # --- doing

    @property
    def title(self) -> str:
        return f"evaluate {self._draft.algorithm or 'a policy'} on {self._draft.environment or '?'}"

    def build_payloads(self) -> list[dict[str, Any]]:
        return [self._draft.payload()]

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._show_environments()
        run_id = self._workbench.target_run_id()
        if not self._draft.path and run_id is not None:
            self._source.choose_run(run_id)
