"""The source of a trained policy: a run of the workspace, or a file; with the worker's description of it."""

from __future__ import annotations

from PySide6.QtCore import QObject, QStringListModel, Qt, QTimer, Signal
from PySide6.QtWidgets import QComboBox, QCompleter, QFileDialog, QHBoxLayout, QLineEdit, QPushButton, QWidget

from mosaic.client import TrainerClient
from mosaic.contracts.errors import MosaicError
from mosaic.formatting import run_title
from mosaic.gui import theme
from mosaic.gui.forms.field_rows import guard_wheel
from mosaic.gui.forms.special_rows import LabelledRow
from mosaic.gui.models.policy_form import describe_checkpoint, runs_with_policy, telemetry_of
from mosaic.gui.views.widgets import muted_label, with_object_name
from mosaic.gui.workbench import Json, Workbench

INSPECT_DELAY_MS = 300
"""After the last key, so that not every letter of a path is asked about."""


class PolicySource(QObject):
    """Its parts (`rows`, `info_label`) are placed by the form."""

    path_chosen = Signal(str, str)
    """The worker and a path: nothing is known of it yet."""
    checkpoint_inspected = Signal(object, object)
    """The worker's description of it, and the video settings of the run that trained it."""

    def __init__(self, workbench: Workbench, worker: str, form: QWidget) -> None:
        super().__init__(form)
        self._form = form
        self._workbench = workbench
        self._worker = worker
        self._request_number = 0
        self.rows = [self._run_row(), self._which_row(), self._path_row()]
        self.info_label = muted_label("", "policy.said")
        self.info_label.setContentsMargins(16, 0, 0, 0)
        self._inspect_timer = QTimer(self, singleShot=True, interval=INSPECT_DELAY_MS)
        self._inspect_timer.timeout.connect(self._inspect)
        workbench.runs.reset.connect(self.list_runs)
        workbench.runs.changed.connect(self._on_runs_changed)
        self._show_info("")

    @property
    def path(self) -> str:
        return self._path.text().strip()

    def _run_row(self) -> LabelledRow:
        self._runs = with_object_name(guard_wheel(QComboBox()), "policy.run")
        self._runs.setEditable(True)
        self._runs.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self._runs.setMinimumContentsLength(32)
        self._runs.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self._run_names = QStringListModel(self)
        completer = QCompleter(self._run_names, self)
        completer.setFilterMode(Qt.MatchFlag.MatchContains)
        completer.setCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        self._runs.setCompleter(completer)
        self._runs.activated.connect(self._on_run_chosen)
        completer.activated.connect(lambda text: self._on_run_chosen(self._runs.findText(text)))
        return LabelledRow("Run", self._runs, is_wide=True)

    def _which_row(self) -> LabelledRow:
        self._which = with_object_name(guard_wheel(QComboBox()), "policy.which")
        self._which.addItem("The last checkpoint", "")
        self._which.addItem("The best checkpoint", "checkpoints/best")
        self._which.activated.connect(lambda _: self._on_run_chosen(self._runs.currentIndex()))
        return LabelledRow("Checkpoint", self._which)

    def _path_row(self) -> LabelledRow:
        self._path = with_object_name(QLineEdit(), "policy.path")
        self._path.setPlaceholderText("A checkpoint folder, a run folder or a .cleanrl_model file")
        self._path.textEdited.connect(self._on_path_edited)
        file_button = with_object_name(QPushButton("File…"), "policy.file")
        file_button.setToolTip("Choose a .cleanrl_model file")
        file_button.clicked.connect(lambda: self._open_file_dialog(QFileDialog.FileMode.ExistingFile))
        folder_button = with_object_name(QPushButton("Folder…"), "policy.folder")
        folder_button.setToolTip("Choose the folder of a checkpoint or of a run")
        folder_button.clicked.connect(lambda: self._open_file_dialog(QFileDialog.FileMode.Directory))
        self._pickers = (file_button, folder_button)
        box = QWidget()
        row = QHBoxLayout(box)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(theme.GAP)
        row.addWidget(self._path, 1)
        row.addWidget(file_button)
        row.addWidget(folder_button)
        return LabelledRow("or its path", box, is_wide=True)

    # --- from a run

    def list_runs(self) -> None:
        """Also after a change of theme: the icons are others then."""
        views = runs_with_policy(self._workbench.runs.all())
        chosen, text = self._runs.currentData(), self._runs.currentText()
        self._runs.blockSignals(True)
        self._runs.clear()
        for view in views:
            self._runs.addItem(theme.state_icon(view.status), run_title(view), view.run_id)
        self._run_names.setStringList([run_title(view) for view in views])
        self._runs.setCurrentIndex(self._runs.findData(chosen) if chosen else -1)
        if not chosen:
            self._runs.setEditText(text)
        self._runs.blockSignals(False)
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
        """Where it has a policy."""
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

    def _open_file_dialog(self, mode: QFileDialog.FileMode) -> None:
        start = str(self._workbench.workspace.root)
        dialog = with_object_name(QFileDialog(self._form, "Choose a trained policy", start), "policy.files")
        dialog.setFileMode(mode)
        if mode is QFileDialog.FileMode.ExistingFile:
            dialog.setNameFilters(["Trained models (*.cleanrl_model)", "All files (*)"])
        else:
            dialog.setOption(QFileDialog.Option.ShowDirsOnly)
        dialog.fileSelected.connect(self._on_file_chosen)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def _on_file_chosen(self, path: str) -> None:
        self._runs.setCurrentIndex(-1)
        self._choose_path(path)

    def _choose_path(self, path: str) -> None:
        self.path_chosen.emit(self._worker, path)
        self.show_path(self._worker, path)

    def show_path(self, worker: str, path: str) -> None:
        """Without telling of it, but what it is is asked."""
        self._worker = worker
        self._path.setText(path)
        self._path.setCursorPosition(len(path))
        self._inspect()

    def take_focus(self) -> None:
        self._path.setFocus()

    # --- what it is

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

        def take(answer: tuple[Json, Json]) -> None:
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
        self.info_label.setProperty("error", is_bad)
        self.info_label.setProperty("muted", not is_bad)
        self.info_label.style().unpolish(self.info_label)
        self.info_label.style().polish(self.info_label)


def _inspect_checkpoint(trainer: TrainerClient, worker: str, path: str) -> tuple[Json, Json]:
    facts: Json = trainer.ask_worker(worker, {"ask": "checkpoint", "path": path})["checkpoint"]
    try:
        payload = trainer.config(str(facts["run_id"])) if facts.get("run_id") else {}
    except MosaicError:  # its run is of another workspace, or has been deleted
        payload = {}
    return facts, telemetry_of(payload)
