"""The policy page: a trained policy from a run or a file, and how to evaluate it."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QCheckBox, QComboBox, QHBoxLayout, QLabel, QScrollArea, QVBoxLayout, QWidget

from mosaic.gui import theme
from mosaic.gui.forms.field_rows import EDITOR_WIDTH, FieldRow, guard_wheel
from mosaic.gui.forms.policy_source import PolicySource
from mosaic.gui.forms.special_rows import EnvironmentRow, LabelledRow
from mosaic.gui.forms.submit_controller import Callback, SubmitController
from mosaic.gui.models.draft import find_field_error, is_default
from mosaic.gui.models.environment_choices import EnvironmentChoice
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
    with_checkpoint_info,
)
from mosaic.gui.views.empty_state import EmptyState
from mosaic.gui.views.widgets import with_object_name
from mosaic.gui.workbench import Json, Workbench

MAX_FORM_WIDTH = 760
OBJECT_NAME_PREFIX = "policy"


class PolicyPage(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._view: PolicyView | None = None
        self._pending_draft: PolicyDraft | None = None
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        workbench.form_requested.connect(self._on_form_requested)

    def _on_form_requested(self, payload: Json | None) -> None:
        if payload is not None and is_evaluation(payload):
            self._pending_draft = draft_from_evaluation(payload)
            self._workbench.page_requested.emit("policy")
            self._apply_pending_draft()

    def _apply_pending_draft(self) -> None:
        if self._view is not None and self._pending_draft is not None:
            self._view.fill(self._pending_draft)
            self._pending_draft = None

    def showEvent(self, event: QShowEvent) -> None:
        if self._column.count() == 0:
            known = policy_workers()
            if known:
                self._view = PolicyView(self._workbench, known[0])
                self._column.addWidget(self._view)
            else:
                text = "No installed worker can load policies: pip install 'mosaic-rl[train]'"
                self._column.addWidget(EmptyState("Nothing to load policies with", text))
        self._apply_pending_draft()
        super().showEvent(event)


class PolicyView(QWidget):
    def __init__(self, workbench: Workbench, worker: str) -> None:
        super().__init__()
        self._workbench = workbench
        self._draft = PolicyDraft(worker)
        self._refused: dict[str, str] = {}
        self._rows: dict[str, FieldRow] = {}
        self._source = PolicySource(workbench, worker, self)
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
        self._title = QLabel("Load a trained policy")
        bar = QHBoxLayout()
        bar.setSpacing(theme.GAP)
        bar.addStretch(1)
        bar.addWidget(self._inquiry.dry_run_button)
        bar.addWidget(self._inquiry.submit_button)
        column = QVBoxLayout(self)
        column.setContentsMargins(theme.MARGIN, theme.GAP, theme.MARGIN, theme.GAP)
        column.setSpacing(theme.GAP)
        column.addWidget(self._title)
        column.addWidget(self._build_form(), 1)
        column.addWidget(self._inquiry.line)
        column.addLayout(bar)
        workbench.environments.environments_loaded.connect(lambda _: self._show_environments())
        workbench.theme_changed.connect(self._apply_theme)
        self._apply_theme()
        self._refresh()

    # --- building

    def _build_form(self) -> QScrollArea:
        body = QWidget()
        body.setMaximumWidth(MAX_FORM_WIDTH)
        stack = QVBoxLayout(body)
        stack.setContentsMargins(0, theme.GAP, theme.MARGIN, theme.MARGIN)
        stack.setSpacing(theme.GAP)
        about = self._build_policy_rows()
        how = self._build_evaluation_rows()
        rows: list[LabelledRow | FieldRow] = [*self._source.rows, *about, *how]
        self._add_section(stack, "Policy", [*self._source.rows, self._source.info_label])
        self._add_section(stack, "Trained on", about)
        self._add_section(stack, "Evaluation", how)
        stack.addStretch(1)
        width = max(row.label.sizeHint().width() for row in rows) + theme.GAP
        for row in rows:
            row.label.setFixedWidth(width)
        area = with_object_name(QScrollArea(), "policy.scroll")
        area.setWidgetResizable(True)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setWidget(body)
        return area

    def _add_section(self, stack: QVBoxLayout, title: str, rows: list[QWidget] | list[LabelledRow | FieldRow]) -> None:
        heading = QLabel(title)
        heading.setFont(theme.section_font())
        if stack.count():
            stack.addSpacing(theme.GAP)
        stack.addWidget(heading)
        for row in rows:
            stack.addWidget(row)

    def _build_policy_rows(self) -> list[LabelledRow | FieldRow]:
        self._algorithm = with_object_name(guard_wheel(QComboBox()), "policy.algorithm")
        self._algorithm.setMinimumWidth(EDITOR_WIDTH)
        self._algorithm.activated.connect(lambda _: self._on_algorithm_chosen())
        self._seed = with_object_name(QLabel("–"), "policy.seed")
        self._override = with_object_name(QCheckBox("Override environment"), "policy.override")
        self._override.setToolTip("Use another environment with the same spaces, or one that the file does not state")
        self._override.toggled.connect(self._on_override_toggled)
        self._environment = EnvironmentRow(ENVIRONMENT_FIELD, OBJECT_NAME_PREFIX)
        self._environment.set_object_names(OBJECT_NAME_PREFIX)
        self._environment.edited.connect(self._on_environment_edited)
        self._rows["env_id"] = self._environment
        algorithm, seed = LabelledRow("Algorithm", self._algorithm), LabelledRow("Seed", self._seed)
        return [algorithm, seed, self._environment, LabelledRow("", self._override)]

    def _build_evaluation_rows(self) -> list[LabelledRow | FieldRow]:
        rows: list[LabelledRow | FieldRow] = []
        for field in policy_fields(self._draft.worker):
            row = FieldRow(field, OBJECT_NAME_PREFIX)
            row.edited.connect(self._on_field_edited)
            self._rows[field.name] = row
            rows.append(row)
        return rows

    # --- what is evaluated

    def _on_policy_chosen(self, worker: str, path: str) -> None:
        self._draft = replace(
            self._draft, worker=worker, path=path, checkpoint_info={}, telemetry={}, env_id=None, algo=None
        )
        self._show_texts()

    def _on_policy_inspected(self, metadata: Json, telemetry: Json) -> None:
        self._draft = with_checkpoint_info(self._draft, metadata, telemetry)
        self._show_texts()

    def fill(self, draft: PolicyDraft) -> None:
        """As an evaluation that was opened had it."""
        self._draft = draft
        self._show_texts()
        self._source.show_path(draft.worker, draft.path)

    def _show_texts(self) -> None:
        for name, row in self._rows.items():
            if name != "env_id":
                row.show_text(self._draft.text(row.field))
        self._on_draft_changed()

    # --- editing

    def _on_override_toggled(self, is_on: bool) -> None:
        env_id = str(self._draft.checkpoint_info.get("env_id") or "") if is_on else None
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
        row = self._rows[name]
        texts = {other: kept for other, kept in self._draft.texts.items() if other != name}
        if not is_default(row.field, text) or name in self._draft.telemetry:
            texts[name] = text
        self._draft = replace(self._draft, texts=texts)
        row.show_text(text)
        self._refused.pop(name, None)
        self._on_draft_changed()

    def _on_draft_changed(self) -> None:
        self._inquiry.line.clear()
        self._refused.pop("env_id", None)
        self._refresh()

    def _refresh(self) -> None:
        draft = self._draft
        wrong = {**self._refused, **policy_problems(draft)}
        is_override = draft.env_id is not None
        self._override.blockSignals(True)
        self._override.setChecked(is_override)
        self._override.blockSignals(False)
        self._show_algorithms()
        self._algorithm.setEnabled(is_override)
        self._seed.setText(format_value(draft.checkpoint_info.get("seed")) or "–")
        self._environment.setEnabled(is_override)
        if not self._environment.input.hasFocus():
            self._environment.show_text(draft.environment)
        for name, row in self._rows.items():
            row.show_state(name in draft.texts and not is_default(row.field, draft.texts[name]), wrong.get(name, ""))

    def _show_algorithms(self) -> None:
        """Those that the worker has, and the one that the checkpoint names."""
        algorithm = self._draft.algorithm
        names = list(algorithms_by_worker().get(self._draft.worker, ()))
        names += [algorithm] if algorithm and algorithm not in names else []
        if names != [self._algorithm.itemText(at) for at in range(self._algorithm.count())]:
            self._algorithm.clear()
            self._algorithm.addItems(names)
        self._algorithm.setCurrentIndex(names.index(algorithm) if algorithm else -1)

    def _show_environments(self) -> None:
        found: list[EnvironmentChoice] = self._workbench.environments.for_worker(self._draft.worker)
        self._environment.show_choices(found)

    # --- doing

    def _build_payload(self) -> Json | None:
        """None, and the first problem is shown, where something is missing."""
        wrong = policy_problems(self._draft)
        if wrong:
            name, problem = next(iter(wrong.items()))
            row = self._rows.get(name)
            self._inquiry.line.show_text(f"{field_label(row.field)}: {problem}" if row is not None else problem, "bad")
            row.take_focus() if row is not None else self._source.take_focus()
            return None
        return None if self._inquiry.is_busy else policy_payload(self._draft)

    def dry_run(self) -> None:
        payload = self._build_payload()
        if payload is None:
            return

        def ask(then: Callback, failed: Callback, owner: QObject) -> None:
            self._workbench.bridge.ask(lambda trainer: trainer.check(payload), then, failed, owner)

        self._inquiry.dry_run(
            f"evaluate {self._draft.algorithm or 'a policy'} on {self._draft.environment or '?'}", ask
        )

    def submit(self) -> None:
        payload = self._build_payload()
        if payload is None:
            return

        def ask(then: Callback, failed: Callback, owner: QObject) -> None:
            self._workbench.bridge.ask(lambda trainer: [trainer.submit(payload)], then, failed, owner)

        self._inquiry.submit_runs(ask)

    def _show_rejection(self, error: Exception) -> None:
        found = find_field_error(error, self._rows)
        if found is not None:
            self._refused.update([found])
            self._refresh()

    # --- being looked at

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._show_environments()
        if not self._draft.path and self._workbench.selection:
            self._source.choose_run(self._workbench.selection)

    def _apply_theme(self) -> None:
        self._title.setFont(theme.heading_font())
        for row in self._rows.values():
            row.restyle()
        self._source.list_runs()
        self._inquiry.line.restyle()
