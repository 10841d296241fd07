"""The policy page: a trained policy from a run or a file, and how to evaluate it."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QCheckBox, QComboBox, QHBoxLayout, QLabel, QScrollArea, QVBoxLayout, QWidget

from mosaic.gui import theme
from mosaic.gui.forms.draft import at_field, blamed, is_default
from mosaic.gui.forms.environments import EnvironmentChoice
from mosaic.gui.forms.inquiry import Inquiry, Then
from mosaic.gui.forms.layout import label, offered, shown
from mosaic.gui.forms.policy import (
    ENVIRONMENT,
    PolicyDraft,
    fields_of,
    from_evaluation,
    is_evaluation,
    policy_payload,
    policy_problems,
    policy_workers,
    with_found,
)
from mosaic.gui.forms.policy_source import PolicySource
from mosaic.gui.forms.rows import EDITOR_WIDTH, FieldRow, calmed
from mosaic.gui.forms.special_rows import EnvironmentRow, PlainRow
from mosaic.gui.views.empty import Empty
from mosaic.gui.views.made import named
from mosaic.gui.workbench import Json, Workbench

WIDEST = 760
PREFIX = "policy"


class PolicyPage(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._view: PolicyView | None = None
        self._filled: PolicyDraft | None = None
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        workbench.form_wanted.connect(self._wanted)

    def _wanted(self, payload: Json | None) -> None:
        if payload is not None and is_evaluation(payload):
            self._filled = from_evaluation(payload)
            self._workbench.page_wanted.emit("policy")
            self._take()

    def _take(self) -> None:
        if self._view is not None and self._filled is not None:
            self._view.fill(self._filled)
            self._filled = None

    def showEvent(self, event: QShowEvent) -> None:
        if self._column.count() == 0:
            known = policy_workers()
            if known:
                self._view = PolicyView(self._workbench, known[0])
                self._column.addWidget(self._view)
            else:
                said = "No worker that is installed can load policies: pip install 'mosaic-rl[train]'"
                self._column.addWidget(Empty("Nothing to load policies with", said))
        self._take()
        super().showEvent(event)


class PolicyView(QWidget):
    def __init__(self, workbench: Workbench, worker: str) -> None:
        super().__init__()
        self._workbench = workbench
        self._draft = PolicyDraft(worker)
        self._refused: dict[str, str] = {}
        self._rows: dict[str, FieldRow] = {}
        self._source = PolicySource(workbench, worker, self)
        self._source.chosen.connect(self._chosen)
        self._source.found.connect(self._found)
        self._inquiry = Inquiry(
            workbench,
            self,
            PREFIX,
            "Evaluate",
            "Start the evaluation",
            "Load the policy and say what would be done; nothing is started",
        )
        self._inquiry.dry.clicked.connect(self.dry_run)
        self._inquiry.submit.clicked.connect(self.submit)
        self._inquiry.refused.connect(self._show_refusal)
        self._title = QLabel("Load a trained policy")
        bar = QHBoxLayout()
        bar.setSpacing(theme.GAP)
        bar.addStretch(1)
        bar.addWidget(self._inquiry.dry)
        bar.addWidget(self._inquiry.submit)
        column = QVBoxLayout(self)
        column.setContentsMargins(theme.MARGIN, theme.GAP, theme.MARGIN, theme.GAP)
        column.setSpacing(theme.GAP)
        column.addWidget(self._title)
        column.addWidget(self._form(), 1)
        column.addWidget(self._inquiry.line)
        column.addLayout(bar)
        workbench.environments.listed.connect(lambda _: self._show_environments())
        workbench.theme_changed.connect(self._restyle)
        self._restyle()
        self._refresh()

    # --- building

    def _form(self) -> QScrollArea:
        body = QWidget()
        body.setMaximumWidth(WIDEST)
        stack = QVBoxLayout(body)
        stack.setContentsMargins(0, theme.GAP, theme.MARGIN, theme.MARGIN)
        stack.setSpacing(theme.GAP)
        about = self._about_rows()
        how = self._evaluation_rows()
        rows: list[PlainRow | FieldRow] = [*self._source.rows, *about, *how]
        self._section(stack, "Policy", [*self._source.rows, self._source.said])
        self._section(stack, "Trained on", about)
        self._section(stack, "Evaluation", how)
        stack.addStretch(1)
        width = max(row.label.sizeHint().width() for row in rows) + theme.GAP
        for row in rows:
            row.label.setFixedWidth(width)
        area = named(QScrollArea(), "policy.scroll")
        area.setWidgetResizable(True)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setWidget(body)
        return area

    def _section(self, stack: QVBoxLayout, title: str, rows: list[QWidget] | list[PlainRow | FieldRow]) -> None:
        heading = QLabel(title)
        heading.setFont(theme.section())
        if stack.count():
            stack.addSpacing(theme.GAP)
        stack.addWidget(heading)
        for row in rows:
            stack.addWidget(row)

    def _about_rows(self) -> list[PlainRow | FieldRow]:
        self._algorithm = named(calmed(QComboBox()), "policy.algorithm")
        self._algorithm.setMinimumWidth(EDITOR_WIDTH)
        self._algorithm.activated.connect(lambda _: self._algorithm_chosen())
        self._seed = named(QLabel("–"), "policy.seed")
        self._override = named(QCheckBox("Override environment"), "policy.override")
        self._override.setToolTip("On another environment with the same spaces; or to tell what the file does not")
        self._override.toggled.connect(self._override_toggled)
        self._environment = EnvironmentRow(ENVIRONMENT, PREFIX)
        self._environment.name_parts(PREFIX)
        self._environment.edited.connect(self._environment_edited)
        self._rows["env_id"] = self._environment
        algorithm, seed = PlainRow("Algorithm", self._algorithm), PlainRow("Seed", self._seed)
        return [algorithm, seed, self._environment, PlainRow("", self._override)]

    def _evaluation_rows(self) -> list[PlainRow | FieldRow]:
        rows: list[PlainRow | FieldRow] = []
        for field in fields_of(self._draft.worker):
            made = FieldRow(field, PREFIX)
            made.edited.connect(self._edited)
            self._rows[field.name] = made
            rows.append(made)
        return rows

    # --- what is evaluated

    def _chosen(self, worker: str, path: str) -> None:
        self._draft = replace(self._draft, worker=worker, path=path, found={}, telemetry={}, env_id=None, algo=None)
        self._show_texts()

    def _found(self, found: Json, telemetry: Json) -> None:
        self._draft = with_found(self._draft, found, telemetry)
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
        self._changed()

    # --- editing

    def _override_toggled(self, is_on: bool) -> None:
        env_id = str(self._draft.found.get("env_id") or "") if is_on else None
        self._draft = replace(self._draft, env_id=env_id, algo=None)
        self._changed()

    def _environment_edited(self, _: str, text: str) -> None:
        if self._draft.env_id is not None:
            self._draft = replace(self._draft, env_id=text)
            self._changed()

    def _algorithm_chosen(self) -> None:
        self._draft = replace(self._draft, algo=self._algorithm.currentText())
        self._changed()

    def _edited(self, name: str, text: str) -> None:
        row = self._rows[name]
        texts = {other: kept for other, kept in self._draft.texts.items() if other != name}
        if not is_default(row.field, text) or name in self._draft.telemetry:
            texts[name] = text
        self._draft = replace(self._draft, texts=texts)
        row.show_text(text)
        self._refused.pop(name, None)
        self._changed()

    def _changed(self) -> None:
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
        self._seed.setText(shown(draft.found.get("seed")) or "–")
        self._environment.setEnabled(is_override)
        if not self._environment.input.hasFocus():
            self._environment.show_text(draft.environment)
        for name, row in self._rows.items():
            row.show_state(name in draft.texts and not is_default(row.field, draft.texts[name]), wrong.get(name, ""))

    def _show_algorithms(self) -> None:
        """Those that the worker has, and the one that the checkpoint names."""
        told = self._draft.algorithm
        names = list(offered().get(self._draft.worker, ()))
        names += [told] if told and told not in names else []
        if names != [self._algorithm.itemText(at) for at in range(self._algorithm.count())]:
            self._algorithm.clear()
            self._algorithm.addItems(names)
        self._algorithm.setCurrentIndex(names.index(told) if told else -1)

    def _show_environments(self) -> None:
        found: list[EnvironmentChoice] = self._workbench.environments.of(self._draft.worker)
        self._environment.show_choices(found)

    # --- doing

    def _payload(self) -> Json | None:
        """None, and the first problem is shown, where something is missing."""
        wrong = policy_problems(self._draft)
        if wrong:
            name, said = next(iter(wrong.items()))
            row = self._rows.get(name)
            self._inquiry.line.say(f"{label(row.field)}: {said}" if row is not None else said, "bad")
            row.take_focus() if row is not None else self._source.take_focus()
            return None
        return None if self._inquiry.is_busy else policy_payload(self._draft)

    def dry_run(self) -> None:
        payload = self._payload()
        if payload is None:
            return

        def ask(then: Then, failed: Then, owner: QObject) -> None:
            self._workbench.bridge.ask(lambda trainer: trainer.check(payload), then, failed, owner)

        self._inquiry.check(f"evaluate {self._draft.algorithm or 'a policy'} on {self._draft.environment or '?'}", ask)

    def submit(self) -> None:
        payload = self._payload()
        if payload is None:
            return

        def ask(then: Then, failed: Then, owner: QObject) -> None:
            self._workbench.bridge.ask(lambda trainer: [trainer.submit(payload)], then, failed, owner)

        self._inquiry.send(ask)

    def _show_refusal(self, error: Exception) -> None:
        name = blamed(str(error), self._rows, self._draft.environment)
        if name is not None:
            self._refused[name] = at_field(str(error), name)
            self._refresh()

    # --- being looked at

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._show_environments()
        if not self._draft.path and self._workbench.selection:
            self._source.choose_run(self._workbench.selection)

    def _restyle(self) -> None:
        self._title.setFont(theme.heading())
        for row in self._rows.values():
            row.restyle()
        self._source.list_runs()
        self._inquiry.line.restyle()
