"""The source of a trained policy: a run of the workspace, or a file; with the worker's description of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QSignalBlocker, QTimer, Signal
from PySide6.QtWidgets import QLineEdit, QWidget

from mosaic.client import TrainerClient
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.views import CheckpointInfo
from mosaic.formatting import run_title
from mosaic.gui import theme
from mosaic.gui.forms.form_rows import LabelledRow, form_combo, make_searchable, widget_row
from mosaic.gui.models.policy_form import describe_checkpoint, runs_with_policy, telemetry_of
from mosaic.gui.views.widgets import button, muted_label, open_path_dialog, set_properties, with_object_name
from mosaic.gui.workbench import Workbench

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
