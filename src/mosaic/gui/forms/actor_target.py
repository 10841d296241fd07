"""Editors of an actor's target: a run or a file for a policy, a file or an example, the name of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QSignalBlocker, Signal
from PySide6.QtWidgets import QLineEdit, QWidget

from mosaic.contracts.views import RunView
from mosaic.formatting import capitalize_first, run_title
from mosaic.gui import theme
from mosaic.gui.forms.form_rows import form_combo, shrink_combo
from mosaic.gui.models.policy_form import runs_with_policy
from mosaic.gui.views import widgets as ui
from mosaic.gui.workbench import Workbench
from mosaic.workers.actor_registry import ActorDescription

BEST_CHECKPOINT = "checkpoints/best"


class TargetEditor(QWidget):
    """A line of text, with examples to choose from and a button for files where there are any."""

    edited = Signal(str)

    def __init__(self, workbench: Workbench, prefix: str) -> None:
        super().__init__()
        self._workbench = workbench
        self._prefix = prefix
        self._description: ActorDescription | None = None
        self._examples = form_combo(f"{prefix}.example")
        self._examples.activated.connect(lambda _: self._choose(self._examples.currentData()))
        self.line = ui.with_object_name(QLineEdit(), f"{prefix}.target")
        self.line.textEdited.connect(self._on_edited)
        self._file = ui.button("File…", f"{prefix}.file", self._open_dialog, "Choose a file")
        self._column = ui.column(self._examples, ui.row((self.line, 1), self._file), parent=self, spacing=4)

    def show_target(self, description: ActorDescription, target: str) -> None:
        self._description = description
        self._file.setVisible(bool(description.file_filter))
        self._file.setEnabled(not self._workbench.is_remote)
        self._fill_examples(description, target)
        hint = capitalize_first(description.target)
        self.line.setPlaceholderText(hint)
        self.line.setAccessibleName(hint)
        self._show_line(target)

    def _show_line(self, text: str) -> None:
        if self.line.text() != text:
            self.line.setText(text)
            self.line.setCursorPosition(0)

    def _fill_examples(self, description: ActorDescription, target: str) -> None:
        self._examples.setVisible(bool(description.examples))
        rows = [("An example, or a file below", ""), *((name, name) for name in description.examples)]
        ui.set_choices(self._examples, rows, target if target in description.examples else "")

    def _on_edited(self, text: str) -> None:
        self.edited.emit(text)

    def _choose(self, target: str) -> None:
        self.line.setText(target)
        self.edited.emit(target)

    def _open_dialog(self) -> None:
        filters = [self._description.file_filter] if self._description is not None else ["Any file (*)"]
        name, start = f"{self._prefix}.files", Path(self.line.text())
        ui.open_path_dialog(self, name, "Choose a file", start, lambda path: self._choose(str(path)), filters)


class PolicyTarget(TargetEditor):
    """A policy: of a run, those of the environment first, or of a file."""

    def __init__(self, workbench: Workbench, prefix: str) -> None:
        super().__init__(workbench, prefix)
        self._env_id = ""
        self._runs: list[RunView] = []
        self._target = ""
        self._which = form_combo(f"{prefix}.which")
        self._which.addItem("The last checkpoint", "")
        self._which.addItem("The best checkpoint", BEST_CHECKPOINT)
        self._which.activated.connect(lambda _: self._on_run_chosen())
        shrink_combo(self._examples)
        self._examples.activated.disconnect()
        self._examples.activated.connect(lambda _: self._on_run_chosen())
        self._examples.setAccessibleName("Run")
        self._column.insertWidget(1, self._which)
        for signal in (workbench.runs.reset, workbench.runs.changed, workbench.runs.removed):
            signal.connect(self._on_runs_changed)

    def show_policy(self, description: ActorDescription, target: str, env_id: str) -> None:
        self._env_id = env_id
        self._target = target
        self.show_target(description, target)
        self.line.setPlaceholderText("or the path of a policy")

    def newest(self) -> str:
        """The run of this environment whose policy is offered first; empty where there is none."""
        return next((view.run_id for view in self._runs if view.env_id == self._env_id), "")

    def _fill_examples(self, description: ActorDescription, target: str) -> None:
        self._list_runs()

    def _show_line(self, text: str) -> None:
        super()._show_line("" if self._examples.currentData() else text)

    def _on_runs_changed(self) -> None:
        if self.isVisible():  # otherwise they are listed when it is shown
            self._list_runs()

    def _list_runs(self) -> None:
        views = runs_with_policy(self._workbench.runs.all())
        self._runs = [*(one for one in views if one.env_id == self._env_id),
                      *(one for one in views if one.env_id != self._env_id)]  # fmt: skip
        chosen, which = self._split_target(self._runs)
        first = f"A run on {self._env_id}" if self.newest() else f"No run on {self._env_id} has a policy yet"
        rows = [(first, ""), *((run_title(view), view.run_id) for view in self._runs)]
        ui.set_choices(self._examples, rows, chosen)
        for number, view in enumerate(self._runs, 1):
            self._examples.setItemIcon(number, theme.state_icon(view.status))
        view_widget = self._examples.view()
        view_widget.setMinimumWidth(min(view_widget.sizeHintForColumn(0) + 2 * theme.MARGIN, 520))
        self._which.setVisible(bool(chosen))
        with QSignalBlocker(self._which):
            self._which.setCurrentIndex(self._which.findData(which))

    def _split_target(self, views: Sequence[RunView]) -> tuple[str, str]:
        """Which run the target is, and which of its checkpoints."""
        for view in views:
            if self._target == view.run_id:
                return view.run_id, ""
            if self._target == f"{view.run_dir}/{BEST_CHECKPOINT}":
                return view.run_id, BEST_CHECKPOINT
        return "", ""

    def _on_run_chosen(self) -> None:
        view = self._workbench.runs.get(str(self._examples.currentData() or ""))
        which = self._which.currentData() if self._which.isVisible() else ""
        if view is not None:
            self.edited.emit(f"{view.run_dir}/{which}" if which else view.run_id)
        else:
            self.edited.emit("")
