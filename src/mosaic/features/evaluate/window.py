"""The policy page: a trained policy from a run or a file, and how to evaluate it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QSignalBlocker, QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QLineEdit, QScrollArea, QWidget

from mosaic.base.formatting import run_title
from mosaic.base.worker_registry import policy_workers
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.views import CheckpointInfo
from mosaic.features.evaluate.window_batch import BatchEvaluation
from mosaic.features.evaluate.window_model import (
    ENVIRONMENT_FIELD,
    PolicyDraft,
    describe_checkpoint,
    draft_from_evaluation,
    is_evaluation,
    telemetry_of,
)
from mosaic.features.evaluate.window_results import LeaderboardPage
from mosaic.features.train.window_model import algorithms_by_worker
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.form import MAX_FORM_WIDTH, SubmitView
from mosaic.window.form_model import Refusals, format_value
from mosaic.window.form_rows import (
    EDITOR_WIDTH,
    EnvironmentRow,
    FormRow,
    LabelledRow,
    align_labels,
    form_combo,
    make_searchable,
    widget_row,
)
from mosaic.window.runs import runs_with_policy
from mosaic.window.specs import Page
from mosaic.window.widgets import button, muted_label, open_path_dialog, set_properties, with_object_name
from mosaic.window.workbench import Workbench

# --- The source of a trained policy: a run of the workspace, or a file; with the worker's description of it.


INSPECT_DELAY_MS = 300
"""After the last key, so that not every prefix of a path is inspected."""


class PolicySourceFields(QObject):
    """Its parts (`rows`, `info_label`) are placed by the form."""

    path_chosen = Signal(str, str)
    """The worker and a path that is not inspected yet."""
    checkpoint_inspected = Signal(object, object)
    """The CheckpointInfo, and the video settings of the run that trained it."""

    def __init__(self, workbench: Workbench, worker: str, form: QWidget) -> None:
        super().__init__(form)
        self._form = form
        self._workbench = workbench
        self._worker = worker
        self._request_number = 0
        self.path_row = self._path_row()
        self.rows = [self._run_row(), self._which_row(), self.path_row]
        self.info_label = muted_label("", "policy.info")
        self.info_label.setContentsMargins(16, 0, 0, 0)
        self._inspect_timer = QTimer(self, singleShot=True, interval=INSPECT_DELAY_MS)
        self._inspect_timer.timeout.connect(self._inspect)
        workbench.runs.reset.connect(self.list_runs)
        workbench.runs.changed.connect(self._on_runs_changed)
        self._show_info("")
        self.list_runs()

    @property
    def path(self) -> str:
        return self._path.text().strip()

    def _run_row(self) -> LabelledRow:
        self._runs = form_combo("policy.run")
        self._run_names = make_searchable(self._runs, 32)
        self._runs.currentTextChanged.connect(self._runs.setToolTip)  # it may be longer than the box
        self._runs.activated.connect(self._on_run_chosen)
        return LabelledRow("Run", self._runs, is_wide=True)

    def _which_row(self) -> LabelledRow:
        self._which = form_combo("policy.which")
        self._which.addItem("The last checkpoint", "")
        self._which.addItem("The best checkpoint", "checkpoints/best")
        self._which.activated.connect(lambda _: self._on_run_chosen(self._runs.currentIndex()))
        return LabelledRow("Checkpoint", self._which)

    def _path_row(self) -> LabelledRow:
        self._path = with_object_name(QLineEdit(), "policy.path")
        self._path.setPlaceholderText("A checkpoint folder, a run folder or a .cleanrl_model file")
        self._path.textEdited.connect(self._on_path_edited)
        choose_file = partial(self._open_dialog, "Trained models (*.cleanrl_model)")
        self._pickers = (
            button("File…", "policy.file", choose_file, "Choose a .cleanrl_model file"),
            button("Folder…", "policy.folder", self._open_dialog, "Choose the folder of a checkpoint or of a run"),
        )
        row = LabelledRow("or its path", widget_row((self._path, 1), *self._pickers), is_wide=True)
        row.input = self._path
        return row

    # --- from a run

    def list_runs(self) -> None:
        views = runs_with_policy(self._workbench.runs.all())
        chosen, text = self._runs.currentData(), self._runs.currentText()
        with QSignalBlocker(self._runs):
            self._runs.clear()
            for view in views:
                self._runs.addItem(theme.state_icon(view.status), run_title(view), view.run_id)
            self._run_names.setStringList([run_title(view) for view in views])
            self._runs.setCurrentIndex(self._runs.findData(chosen) if chosen else -1)
            if not chosen:
                self._runs.setEditText(text)
        edit = self._runs.lineEdit()
        if edit is not None:
            edit.setPlaceholderText("Choose a run, or type to search" if views else "No run has saved a checkpoint yet")
        self._which.setEnabled(bool(views))
        for picker in self._pickers:
            picker.setEnabled(not self._workbench.is_remote)

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        known = {self._runs.itemData(index) for index in range(self._runs.count())}
        views = map(self._workbench.runs.get, run_ids)
        if any(view.run_id not in known for view in runs_with_policy(view for view in views if view is not None)):
            self.list_runs()

    def choose_run(self, run_id: str) -> None:
        """Select this run if it has a policy."""
        index = self._runs.findData(run_id)
        if index >= 0:
            self._on_run_chosen(index)

    def _on_run_chosen(self, index: int) -> None:
        view = self._workbench.runs.get(str(self._runs.itemData(index) or "")) if index >= 0 else None
        if view is None:
            return
        self._runs.setCurrentIndex(index)
        which = self._which.currentData()
        self._worker = str(view.worker)
        self._choose_path(f"{view.run_dir}/{which}" if which else str(view.run_dir))

    # --- from a file

    def _on_path_edited(self, path: str) -> None:
        self._runs.setCurrentIndex(-1)
        self.path_chosen.emit(self._worker, path)
        self._inspect_timer.start()

    def _open_dialog(self, *filters: str) -> None:
        start = self._workbench.workspace.root
        open_path_dialog(self._form, "policy.files", "Choose a trained policy", start, self._on_file_chosen, filters)

    def _on_file_chosen(self, path: Path) -> None:
        self._runs.setCurrentIndex(-1)
        self._choose_path(str(path))

    def _choose_path(self, path: str) -> None:
        self.path_chosen.emit(self._worker, path)
        self.show_path(self._worker, path)

    def show_path(self, worker: str, path: str) -> None:
        """Show a path and inspect it, without a signal."""
        self._worker = worker
        self._path.setText(path)
        self._path.setCursorPosition(len(path))
        self._inspect()

    # --- inspection

    def _inspect(self) -> None:
        """Ask the worker to describe the checkpoint; an answer that comes too late is dropped."""
        self._inspect_timer.stop()
        path, worker = self.path, self._worker
        self._request_number += 1
        number = self._request_number
        if not path:
            self._show_info("")
            return
        self._show_info("Reading the checkpoint…")

        def take(answer: tuple[CheckpointInfo, dict[str, Any]]) -> None:
            if number == self._request_number:
                self._show_info(describe_checkpoint(answer[0]))
                self.checkpoint_inspected.emit(*answer)

        def refuse(error: Exception) -> None:
            if number == self._request_number:
                self._show_info(str(error), is_bad=True)

        self._workbench.bridge.ask(lambda trainer: _inspect_checkpoint(trainer, worker, path), take, refuse, self)

    def _show_info(self, text: str, is_bad: bool = False) -> None:
        self.info_label.setText(text)
        self.info_label.setVisible(bool(text))
        set_properties(self.info_label, error=is_bad, muted=not is_bad)


def _inspect_checkpoint(trainer: TrainerClient, worker: str, path: str) -> tuple[CheckpointInfo, dict[str, Any]]:
    info = trainer.inspect_checkpoint(worker, path)
    try:
        payload = trainer.config(info.run_id) if info.run_id else {}
    except MosaicError:  # its run is of another workspace, or has been deleted
        payload = {}
    return info, telemetry_of(payload)


# --- The policy page: a trained policy from a run or a file, and how to evaluate it.


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


PAGES = (
    Page("policy", "Evaluate", "mdi6.folder-open-outline", PolicyPage, position=7),
    Page("leaderboard", "Leaderboard", "mdi6.trophy-outline", LeaderboardPage, position=9),
)
