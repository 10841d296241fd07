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
from mosaic.gui.forms.form_rows import EDITOR_WIDTH, EnvironmentRow, FieldRow, LabelledRow, align_labels, form_combo
from mosaic.gui.forms.policy_source import PolicySourceFields
from mosaic.gui.forms.submit_controller import SubmitController
from mosaic.gui.models.draft import find_field_errors, is_default
from mosaic.gui.models.form_layout import algorithms_by_worker, field_label, format_value
from mosaic.gui.models.policy_form import (
    ENVIRONMENT_FIELD,
    PolicyDraft,
    draft_from_evaluation,
    is_evaluation,
    policy_fields,
    policy_payload,
    policy_problems,
    policy_workers,
    runs_with_policy,
    with_checkpoint_info,
)
from mosaic.gui.panels.batch_evaluation import BatchEvaluation
from mosaic.gui.views import widgets as ui
from mosaic.gui.workbench import Workbench

MAX_FORM_WIDTH = 760
OBJECT_NAME_PREFIX = "policy"


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


class PolicyView(QWidget):
    def __init__(self, workbench: Workbench, worker: str) -> None:
        super().__init__()
        self._workbench = workbench
        self._draft = PolicyDraft(worker)
        self._refused: dict[str, str] = {}
        self._rows: dict[str, FieldRow] = {}
        self._source = PolicySourceFields(workbench, worker, self)
        self._source.path_chosen.connect(self._on_policy_chosen)
        self._source.checkpoint_inspected.connect(self._on_policy_inspected)
        self._inquiry = SubmitController(
            workbench,
            self,
            OBJECT_NAME_PREFIX,
            "Evaluate",
            "Start the evaluation",
            "Load the policy and show what would run; nothing is started",
        )
        self._inquiry.dry_run_button.clicked.connect(self.dry_run)
        self._inquiry.submit_button.clicked.connect(self.submit)
        self._inquiry.rejected.connect(self._show_rejection)
        ui.column(
            ui.heading_label("Load a trained policy"),
            (self._build_form(), 1),
            self._inquiry.line,
            ui.row(ui.Stretch(), self._inquiry.dry_run_button, self._inquiry.submit_button),
            parent=self,
            margins=ui.PAGE_MARGINS,
        )
        workbench.environments.environments_loaded.connect(lambda _: self._show_environments())
        self._refresh()

    # --- building

    def _build_form(self) -> QScrollArea:
        about, how = self._build_policy_rows(), self._build_evaluation_rows()
        rows: list[LabelledRow | FieldRow] = [*self._source.rows, *about, *how]
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

    def _build_policy_rows(self) -> list[LabelledRow | FieldRow]:
        self._algorithm = form_combo("policy.algorithm")
        self._algorithm.setMinimumWidth(EDITOR_WIDTH)
        self._algorithm.activated.connect(lambda _: self._on_algorithm_chosen())
        self._seed = ui.PlainLabel("–", "policy.seed")
        self._override = ui.check_box(
            "Override environment",
            "policy.override",
            self._on_override_toggled,
            "Use another environment with the same spaces, or one that the file does not state",
        )
        self._environment = EnvironmentRow(ENVIRONMENT_FIELD, OBJECT_NAME_PREFIX)
        self._environment.edited.connect(self._on_environment_edited)
        self._rows["env_id"] = self._environment
        algorithm, seed = LabelledRow("Algorithm", self._algorithm), LabelledRow("Seed", self._seed)
        return [algorithm, seed, self._environment, LabelledRow("", self._override)]

    def _build_evaluation_rows(self) -> list[LabelledRow | FieldRow]:
        rows: list[LabelledRow | FieldRow] = []
        for field in policy_fields(self._draft.worker):
            field_row = self._rows[field.name] = FieldRow(field, OBJECT_NAME_PREFIX)
            field_row.edited.connect(self._on_field_edited)
            rows.append(field_row)
        return rows

    # --- what is evaluated

    def _on_policy_chosen(self, worker: str, path: str) -> None:
        self._draft = replace(
            self._draft, worker=worker, path=path, checkpoint_info=None, telemetry={}, env_id=None, algo=None
        )
        self._show_texts()

    def _on_policy_inspected(self, info: CheckpointInfo, telemetry: Mapping[str, Any]) -> None:
        self._draft = with_checkpoint_info(self._draft, info, telemetry)
        self._show_texts()

    def fill(self, draft: PolicyDraft) -> None:
        """Fills the form from an earlier evaluation."""
        self._draft = draft
        self._show_texts()
        self._source.show_path(draft.worker, draft.path)

    def _show_texts(self) -> None:
        for name, field_row in self._rows.items():
            if name != "env_id":
                field_row.show_text(self._draft.text(field_row.field))
        self._on_draft_changed()

    # --- editing

    def _on_override_toggled(self, is_on: bool) -> None:
        env_id = self._draft.trained_env_id if is_on else None
        self._draft = replace(self._draft, env_id=env_id, algo=None)
        self._on_draft_changed()

    def _on_environment_edited(self, _: str, text: str) -> None:
        if self._draft.env_id is not None:
            self._draft = replace(self._draft, env_id=text)
            self._on_draft_changed()

    def _on_algorithm_chosen(self) -> None:
        self._draft = replace(self._draft, algo=self._algorithm.currentText())
        self._on_draft_changed()

    def _on_field_edited(self, name: str, text: str) -> None:
        field_row = self._rows[name]
        texts = {other: value for other, value in self._draft.texts.items() if other != name}
        if not is_default(field_row.field, text) or name in self._draft.telemetry:
            texts[name] = text
        self._draft = replace(self._draft, texts=texts)
        field_row.show_text(text)
        self._refused.pop(name, None)
        self._on_draft_changed()

    def _on_draft_changed(self) -> None:
        self._inquiry.line.clear()
        self._refused.pop("env_id", None)
        self._refresh()

    def _refresh(self) -> None:
        draft = self._draft
        problems = {**self._refused, **policy_problems(draft)}
        is_override = draft.env_id is not None
        with QSignalBlocker(self._override):
            self._override.setChecked(is_override)
        self._show_algorithms()
        self._algorithm.setEnabled(is_override)
        self._seed.setText(format_value(draft.seed) or "–")
        self._environment.setEnabled(is_override)
        if not self._environment.input.hasFocus():
            self._environment.show_text(draft.environment)
        if not is_override:
            self._environment.show_family_of(draft.environment)
        for name, field_row in self._rows.items():
            is_changed = name in draft.texts and not is_default(field_row.field, draft.texts[name])
            field_row.show_state(is_changed, problems.get(name, ""))

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

    def choose_run(self, run_id: str) -> None:
        """Take the policy of this run."""
        self._source.choose_run(run_id)

    # --- doing

    def _build_payload(self) -> dict[str, Any] | None:
        """None, and the first problem is shown, where something is missing."""
        problems = policy_problems(self._draft)
        if problems:
            name, problem = next(iter(problems.items()))
            field_row = self._rows.get(name)
            text = f"{field_label(field_row.field)}: {problem}" if field_row is not None else problem
            self._inquiry.line.show_text(text, "bad")
            (field_row or self._source).take_focus()
            return None
        return None if self._inquiry.is_busy else policy_payload(self._draft)

    def dry_run(self) -> None:
        payload = self._build_payload()
        if payload is not None:
            title = f"evaluate {self._draft.algorithm or 'a policy'} on {self._draft.environment or '?'}"
            self._inquiry.dry_run(title, payload)

    def submit(self) -> None:
        payload = self._build_payload()
        if payload is not None:
            self._inquiry.submit_runs([payload])

    def _show_rejection(self, error: Exception) -> None:
        if field_errors := find_field_errors(error, self._rows):
            self._refused |= field_errors
            self._refresh()

    # --- events

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._show_environments()
        run_id = self._workbench.target_run_id()
        if not self._draft.path and run_id is not None:
            self._source.choose_run(run_id)
