"""The policy page: a trained policy from a run or a file, and how to evaluate it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from PySide6.QtCore import QStringListModel, Qt, QTimer
from PySide6.QtGui import QKeySequence, QShortcut, QShowEvent
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QCompleter,
    QFileDialog,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from mosaic.gui import theme
from mosaic.gui.forms.draft import at_field, blamed, is_default
from mosaic.gui.forms.environments import EnvironmentChoice
from mosaic.gui.forms.layout import label, shown
from mosaic.gui.forms.policy import (
    ENVIRONMENT,
    PolicyDraft,
    fields_of,
    from_evaluation,
    is_evaluation,
    loadable,
    policy_payload,
    policy_problems,
    policy_workers,
    told,
)
from mosaic.gui.forms.rows import FieldRow, calmed
from mosaic.gui.forms.special_rows import EnvironmentRow, PlainRow
from mosaic.gui.forms.verdict import VerdictLine, accepted, noted, noted_refusal
from mosaic.gui.panels.train import tell_submitted
from mosaic.gui.views.empty import Empty
from mosaic.gui.views.made import accent_button, muted, named
from mosaic.gui.views.words import run_title, state_of
from mosaic.gui.workbench import Json, Workbench

ASK_MS = 300
"""After the last key, so that not every letter of a path is asked about."""
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
        self._question = 0
        self._is_busy = False
        self._rows: dict[str, FieldRow] = {}
        self._verdict = VerdictLine("policy.verdict")
        self._ask_later = QTimer(self, singleShot=True, interval=ASK_MS)
        self._ask_later.timeout.connect(self._inspect)
        self._title = QLabel("Load a trained policy")
        column = QVBoxLayout(self)
        column.setContentsMargins(theme.MARGIN, theme.GAP, theme.MARGIN, theme.GAP)
        column.setSpacing(theme.GAP)
        column.addWidget(self._title)
        column.addWidget(self._form(), 1)
        column.addWidget(self._verdict)
        column.addLayout(self._bar())
        submit = QShortcut(QKeySequence("Ctrl+Return"), self, context=Qt.ShortcutContext.WidgetWithChildrenShortcut)
        submit.activated.connect(self.submit)
        workbench.runs.reset.connect(self._list_runs)
        workbench.runs.changed.connect(self._runs_changed)
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
        self._heading(stack, "Policy")
        rows: list[PlainRow | FieldRow] = [self._run_row(), self._which_row(), self._path_row()]
        for row in rows:
            stack.addWidget(row)
        self._said = muted("", "policy.said")
        self._said.setContentsMargins(16, 0, 0, 0)
        stack.addWidget(self._said)
        self._heading(stack, "Trained on")
        self._algorithm, self._seed = (
            named(QLabel("–"), "policy.algorithm"),
            named(QLabel("–"), "policy.seed"),
        )
        trained = [PlainRow("Algorithm", self._algorithm), PlainRow("Seed", self._seed)]
        self._override = named(QCheckBox("Override environment"), "policy.override")
        self._override.setToolTip("Evaluate on another environment, with the same spaces")
        self._override.toggled.connect(self._override_toggled)
        self._environment = EnvironmentRow(ENVIRONMENT, PREFIX)
        self._environment.name_parts(PREFIX)
        self._environment.edited.connect(self._environment_edited)
        self._rows["env_id"] = self._environment
        about: list[PlainRow | FieldRow] = [*trained, self._environment, PlainRow("", self._override)]
        for row in about:
            stack.addWidget(row)
        rows += about
        self._heading(stack, "Evaluation")
        for field in fields_of(self._draft.worker):
            made = FieldRow(field, PREFIX)
            made.edited.connect(self._edited)
            self._rows[field.name] = made
            rows.append(made)
            stack.addWidget(made)
        stack.addStretch(1)
        width = max(row.label.sizeHint().width() for row in rows) + theme.GAP
        for row in rows:
            row.label.setFixedWidth(width)
        area = named(QScrollArea(), "policy.scroll")
        area.setWidgetResizable(True)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setWidget(body)
        return area

    def _heading(self, stack: QVBoxLayout, title: str) -> None:
        heading = QLabel(title)
        heading.setFont(theme.section())
        if stack.count():
            stack.addSpacing(theme.GAP)
        stack.addWidget(heading)

    def _run_row(self) -> PlainRow:
        self._runs = named(calmed(QComboBox()), "policy.run")
        self._runs.setEditable(True)
        self._runs.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self._runs.setMinimumContentsLength(32)
        self._runs.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self._run_names = QStringListModel(self)
        completer = QCompleter(self._run_names, self)
        completer.setFilterMode(Qt.MatchFlag.MatchContains)
        completer.setCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        self._runs.setCompleter(completer)
        self._runs.activated.connect(self._run_chosen)
        completer.activated.connect(lambda text: self._run_chosen(self._runs.findText(text)))
        return PlainRow("Run", self._runs, is_wide=True)

    def _which_row(self) -> PlainRow:
        self._which = named(calmed(QComboBox()), "policy.which")
        self._which.addItem("The last checkpoint", "")
        self._which.addItem("The best checkpoint", "checkpoints/best")
        self._which.activated.connect(lambda _: self._run_chosen(self._runs.currentIndex()))
        return PlainRow("Checkpoint", self._which)

    def _path_row(self) -> PlainRow:
        self._path = named(QLineEdit(), "policy.path")
        self._path.setPlaceholderText("A checkpoint folder, a run folder or a .cleanrl_model file")
        self._path.textEdited.connect(self._path_edited)
        file_button = named(QPushButton("File…"), "policy.file")
        file_button.setToolTip("Choose a .cleanrl_model file")
        file_button.clicked.connect(lambda: self._choose(QFileDialog.FileMode.ExistingFile))
        folder_button = named(QPushButton("Folder…"), "policy.folder")
        folder_button.setToolTip("Choose the folder of a checkpoint or of a run")
        folder_button.clicked.connect(lambda: self._choose(QFileDialog.FileMode.Directory))
        self._pickers = (file_button, folder_button)
        box = QWidget()
        row = QHBoxLayout(box)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(theme.GAP)
        row.addWidget(self._path, 1)
        row.addWidget(file_button)
        row.addWidget(folder_button)
        return PlainRow("or its path", box, is_wide=True)

    def _bar(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(theme.GAP)
        row.addStretch(1)
        self._dry = named(QPushButton("Dry run"), "policy.dry_run")
        self._dry.setToolTip("Load the policy and say what would be done; nothing is started")
        self._dry.clicked.connect(self.dry_run)
        self._submit = accent_button("Evaluate", "policy.submit")
        self._submit.setToolTip("Start the evaluation (Ctrl+Return)")
        self._submit.clicked.connect(self.submit)
        row.addWidget(self._dry)
        row.addWidget(self._submit)
        return row

    # --- runs and paths

    def _list_runs(self) -> None:
        views = loadable(self._workbench.runs.all())
        chosen, text = self._runs.currentData(), self._runs.currentText()
        self._runs.blockSignals(True)
        self._runs.clear()
        for view in views:
            self._runs.addItem(theme.state_icon(state_of(view)), run_title(view), view["run_id"])
        self._run_names.setStringList([run_title(view) for view in views])
        self._runs.setCurrentIndex(self._runs.findData(chosen) if chosen else -1)
        if not chosen:
            self._runs.setEditText(text)
        self._runs.blockSignals(False)
        edit = self._runs.lineEdit()
        if edit is not None:
            edit.setPlaceholderText("Choose a run, or type to search" if views else "No run has saved a checkpoint yet")
        self._which.setEnabled(bool(views))

    def _runs_changed(self, run_ids: set[str]) -> None:
        known = {self._runs.itemData(index) for index in range(self._runs.count())}
        views = map(self._workbench.runs.get, run_ids)
        if any(view["run_id"] not in known for view in loadable(view for view in views if view is not None)):
            self._list_runs()

    def _run_chosen(self, index: int) -> None:
        view = self._workbench.runs.get(str(self._runs.itemData(index) or "")) if index >= 0 else None
        if view is None:
            return
        self._runs.setCurrentIndex(index)
        which = self._which.currentData()
        self._draft = replace(self._draft, worker=str(view["worker"]))
        self._show_path(f"{view['run_dir']}/{which}" if which else str(view["run_dir"]))
        self._inspect()

    def _show_path(self, path: str) -> None:
        self._path.setText(path)
        self._path.setCursorPosition(len(path))
        self._put_path(path)

    def _path_edited(self, path: str) -> None:
        self._runs.setCurrentIndex(-1)
        self._put_path(path)
        self._ask_later.start()

    def _put_path(self, path: str) -> None:
        self._draft = replace(self._draft, path=path, found={}, env_id=None)
        self._override.setChecked(False)
        self._changed()

    def _choose(self, mode: QFileDialog.FileMode) -> None:
        dialog = named(
            QFileDialog(self, "Choose a trained policy", str(self._workbench.workspace.root)), "policy.files"
        )
        dialog.setFileMode(mode)
        if mode is QFileDialog.FileMode.ExistingFile:
            dialog.setNameFilters(["Trained models (*.cleanrl_model)", "All files (*)"])
        else:
            dialog.setOption(QFileDialog.Option.ShowDirsOnly)
        dialog.fileSelected.connect(self._file_chosen)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def _file_chosen(self, path: str) -> None:
        self._runs.setCurrentIndex(-1)
        self._show_path(path)
        self._inspect()

    def _inspect(self) -> None:
        """Asks the worker what the checkpoint says of itself; an answer that comes too late is dropped."""
        self._ask_later.stop()
        path = self._draft.path.strip()
        self._question += 1
        number, worker = self._question, self._draft.worker
        if not path:
            self._tell("")
            return
        self._tell("Reading the checkpoint…")

        def take(answer: Json) -> None:
            if number == self._question:
                self._found(answer["checkpoint"])

        def refuse(error: Exception) -> None:
            if number == self._question:
                self._tell(str(error), is_bad=True)

        self._workbench.bridge.ask(
            lambda trainer: trainer.ask_worker(worker, {"ask": "checkpoint", "path": path}), take, refuse, self
        )

    def _found(self, found: Json) -> None:
        self._draft = replace(self._draft, found=found)
        self._tell(told(found))
        self._changed()

    def _tell(self, text: str, is_bad: bool = False) -> None:
        self._said.setText(text)
        self._said.setVisible(bool(text))
        self._said.setProperty("error", is_bad)
        self._said.setProperty("muted", not is_bad)
        self._said.style().unpolish(self._said)
        self._said.style().polish(self._said)

    def fill(self, draft: PolicyDraft) -> None:
        """As an evaluation that was opened had it."""
        self._draft = draft
        self._path.setText(draft.path)
        self._override.blockSignals(True)
        self._override.setChecked(draft.env_id is not None)
        self._override.blockSignals(False)
        for name, row in self._rows.items():
            if name != "env_id":
                row.show_text(draft.texts.get(name, shown(row.field.default)))
        self._changed()
        self._inspect()

    # --- editing

    def _override_toggled(self, is_on: bool) -> None:
        self._draft = replace(self._draft, env_id=str(self._draft.found.get("env_id") or "") if is_on else None)
        self._changed()

    def _environment_edited(self, _: str, text: str) -> None:
        if self._override.isChecked():
            self._draft = replace(self._draft, env_id=text)
            self._changed()

    def _edited(self, name: str, text: str) -> None:
        row = self._rows[name]
        texts = {other: kept for other, kept in self._draft.texts.items() if other != name}
        if not is_default(row.field, text):
            texts[name] = text
        self._draft = replace(self._draft, texts=texts)
        row.show_text(text)
        self._refused.pop(name, None)
        self._changed()

    def _changed(self) -> None:
        self._verdict.clear()
        self._refused.pop("env_id", None)
        self._refresh()

    def _refresh(self) -> None:
        draft = self._draft
        wrong = {**self._refused, **policy_problems(draft)}
        self._algorithm.setText(str(draft.found.get("algo") or "–"))
        self._seed.setText(shown(draft.found.get("seed")) or "–")
        self._environment.setEnabled(self._override.isChecked())
        if not self._environment.input.hasFocus():
            self._environment.show_text(draft.environment)
        for name, row in self._rows.items():
            is_changed = (
                draft.env_id not in (None, draft.found.get("env_id")) if name == "env_id" else name in draft.texts
            )
            row.show_state(is_changed and name != "env_id", wrong.get(name, ""))
        for picker in self._pickers:
            picker.setEnabled(not self._workbench.is_remote)

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
            self._verdict.say(f"{label(row.field)}: {said}" if row is not None else said, "bad")
            row.take_focus() if row is not None else self._path.setFocus()
            return None
        return None if self._is_busy else policy_payload(self._draft)

    def _set_busy(self, is_busy: bool, text: str = "") -> None:
        self._is_busy = is_busy
        self._dry.setEnabled(not is_busy)
        self._submit.setEnabled(not is_busy)
        if is_busy:
            self._verdict.say(text, "muted")

    def dry_run(self) -> None:
        payload = self._payload()
        if payload is not None:
            self._set_busy(True, "Asking the worker…")
            self._workbench.bridge.ask(
                lambda trainer: trainer.check(payload), self._accepted, self._check_refused, self
            )

    def _accepted(self, verdict: Json) -> None:
        self._set_busy(False)
        summary = verdict.get("summary") or {}
        self._verdict.say(accepted(summary), "good")
        self._workbench.notes.append_scratch(noted(self._what(), summary))

    def _check_refused(self, error: Exception) -> None:
        self._workbench.notes.append_scratch(noted_refusal(self._what(), error))
        self._reject(error)

    def submit(self) -> None:
        payload = self._payload()
        if payload is not None:
            self._set_busy(True, "Submitting…")

            def call(trainer: Any) -> list[Json]:
                return [trainer.submit(payload)]

            self._workbench.bridge.ask(call, self._submitted, self._reject, self)

    def _submitted(self, views: list[Json]) -> None:
        self._set_busy(False)
        self._verdict.clear()
        tell_submitted(self._workbench, views)

    def _reject(self, error: Exception) -> None:
        self._set_busy(False)
        self._verdict.say(str(error), "bad")
        name = blamed(str(error), self._rows, self._draft.environment)
        if name is not None:
            self._refused[name] = at_field(str(error), name)
            self._refresh()

    def _what(self) -> str:
        return f"evaluate {self._draft.found.get('algo') or 'a policy'} on {self._draft.environment or '?'}"

    # --- being looked at

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._show_environments()
        if not self._draft.path and self._workbench.selection:
            index = self._runs.findData(self._workbench.selection)
            if index >= 0:
                self._run_chosen(index)

    def _restyle(self) -> None:
        self._title.setFont(theme.heading())
        for row in self._rows.values():
            row.restyle()
        self._list_runs()
        self._verdict.restyle()
