"""Dialogs about runs: the steps to resume for, tags, differing settings, and the progress of a task."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QCompleter,
    QDialog,
    QDialogButtonBox,
    QLineEdit,
    QProgressDialog,
    QSpinBox,
    QWidget,
)

from mosaic.base.comparison import format_value
from mosaic.base.formatting import run_title, short_ids
from mosaic.base.run_payloads import diff_settings
from mosaic.contracts.views import RunView
from mosaic.trainer.client.exports import ExportCancelled, ExportTask
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import theme
from mosaic.window.tables import ReadOnlyTable
from mosaic.window.widgets import (
    Item,
    PlainLabel,
    accent_button,
    button,
    column,
    create_timer,
    muted_label,
    with_object_name,
)
from mosaic.window.workbench import Workbench

MAX_STEPS = 2_000_000_000
SHOW_DELAY_MS, POLL_MS = 300, 100
PROGRESS_STEPS = 1000

Export = Callable[[TrainerClient, RunView, Path, ExportTask], object]
"""Writes a run to a file and counts its progress."""


class _RunDialog(QDialog):
    def __init__(self, name: str, title: str, parent: QWidget | None) -> None:
        super().__init__(parent)
        self.setObjectName(name)
        self.setWindowTitle(title)

    def _build(self, *items: Item) -> None:
        column(*items, parent=self, margins=(theme.MARGIN,) * 4)

    def _create_buttons(self, accept_text: str) -> QDialogButtonBox:
        accept = accent_button(accept_text, f"{self.objectName()}.done")
        accept.setDefault(True)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Cancel)
        buttons.addButton(accept, QDialogButtonBox.ButtonRole.AcceptRole)
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        return buttons


class ResumeDialog(_RunDialog):
    steps_chosen = Signal(int)
    """The total number of steps; 0: as originally requested."""

    def __init__(self, view: RunView, parent: QWidget | None) -> None:
        super().__init__("resume", "Resume run", parent)
        done, total = view.global_step or 0, view.total_timesteps or 0
        checkpoint = view.checkpoint_step or 0
        self._total = total if view.outcome != "succeeded" else None
        self._steps = with_object_name(QSpinBox(), "resume.steps")
        self._steps.setRange(checkpoint + 1, MAX_STEPS)
        self._steps.setSingleStep(max(1, total // 10))
        self._steps.setGroupSeparatorShown(True)
        self._steps.setValue(self._total or max(2 * done, done + 1))
        label = PlainLabel("&Steps in total")
        label.setBuddy(self._steps)
        progress = (
            f"It has completed {done:,} of {total:,} steps and resumes from its checkpoint at step {checkpoint:,}."
        )
        self._build(
            PlainLabel(run_title(view)),
            muted_label(progress),
            theme.GAP,
            label,
            self._steps,
            theme.GAP,
            self._create_buttons("Resume"),
        )
        self.accepted.connect(self._emit_steps)
        self._steps.setFocus()
        self._steps.selectAll()

    def _emit_steps(self) -> None:
        steps = self._steps.value()
        self.steps_chosen.emit(0 if steps == self._total else steps)


class TagsDialog(_RunDialog):
    tags_changed = Signal(list, list)
    """Tags to add to every run, and tags to remove from every run."""

    def __init__(self, views: Sequence[RunView], known: Sequence[str], parent: QWidget | None) -> None:
        super().__init__("tags", "Tags", parent)
        tags = [set(view.tags or ()) for view in views]
        self._common_tags = set.intersection(*tags)
        other_tags = sorted(set.union(*tags) - self._common_tags)
        self._tags_edit = with_object_name(QLineEdit(" ".join(sorted(self._common_tags))), "tags.line")
        self._tags_edit.setPlaceholderText("baseline good-seed …")
        if not self._common_tags:
            completer = QCompleter(list(known), self)
            completer.setCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
            self._tags_edit.setCompleter(completer)
        label = PlainLabel("&Tags, separated by spaces or commas")
        label.setBuddy(self._tags_edit)
        notes = []
        if other_tags:
            notes.append(f"Only some of the runs have: {', '.join(other_tags)}. These stay as they are.")
        if known:
            notes.append(f"In use: {', '.join(known[:12])}{', …' if len(known) > 12 else ''}")
        self._build(
            PlainLabel(run_title(views[0]) if len(views) == 1 else f"{len(views)} runs"),
            theme.GAP,
            label,
            self._tags_edit,
            *(muted_label(note) for note in notes),
            theme.GAP,
            self._create_buttons("Save tags"),
        )
        self.accepted.connect(self._emit_tags)
        self.setMinimumWidth(360)
        self._tags_edit.setFocus()

    def _emit_tags(self) -> None:
        after = set(re.split(r"[\s,]+", self._tags_edit.text().strip())) - {""}
        if after != self._common_tags:
            self.tags_changed.emit(sorted(after - self._common_tags), sorted(self._common_tags - after))


class SettingsDiffDialog(_RunDialog):
    """The settings in which two runs differ; one that was not given counts with its default."""

    def __init__(self, views: Sequence[RunView], settings: Sequence[dict[str, Any]], parent: QWidget | None) -> None:
        super().__init__("diff", "Differing settings", parent)
        differing = diff_settings(*settings)
        text = json.dumps({name: list(values) for name, values in differing.items()}, indent=2)
        contents: Item = muted_label("The two runs have the same settings.")
        if differing:
            table = ReadOnlyTable("diff.table", text_columns=(0, 1, 2))
            titles = ("Setting", *short_ids([view.run_id for view in views]).values())
            rows = [(name, *map(format_value, values)) for name, values in differing.items()]
            table.show_rows(titles, rows)
            contents = (table, 1)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.button(QDialogButtonBox.StandardButton.Close).setDefault(True)
        copy = button("Copy as JSON", "diff.copy", lambda: QGuiApplication.clipboard().setText(text))
        buttons.addButton(copy, QDialogButtonBox.ButtonRole.ActionRole)
        buttons.rejected.connect(self.reject)
        self._build(*(PlainLabel(run_title(view)) for view in views), contents, buttons)
        self.resize(640, 420 if differing else 120)


class TaskDialog(QProgressDialog):
    """The progress of a task; it is shown only when the task takes long."""

    def __init__(self, task: ExportTask, parent: QWidget | None) -> None:
        super().__init__(task.title, "Cancel", 0, 0, parent)
        self.setObjectName("task")
        self._task = task
        self.setWindowTitle("MOSAIC")
        self.setWindowModality(Qt.WindowModality.NonModal)
        self.setAutoClose(False)
        self.setAutoReset(False)
        self.setMinimumWidth(360)
        # Qt would show it by its own estimate of how long the task takes.
        self.setMinimumDuration(3_600_000)
        self.canceled.connect(self._cancel_task)
        create_timer(self, POLL_MS, self._update_progress).start()
        create_timer(self, SHOW_DELAY_MS, self.show, is_single_shot=True).start()

    def _update_progress(self) -> None:
        if self._task.total:
            self.setMaximum(PROGRESS_STEPS)
            self.setValue(min(PROGRESS_STEPS, PROGRESS_STEPS * self._task.done // self._task.total))

    def _cancel_task(self) -> None:
        self._task.is_cancelled = True

    def finish(self) -> None:
        for timer in self.findChildren(QTimer):
            timer.stop()
        self.hide()
        self.deleteLater()


def run_task(
    workbench: Workbench, task: ExportTask, call: Callable[[TrainerClient], Any], then: Callable[[Any], None]
) -> None:
    """Make a call in the background, with a dialog that shows the progress of its task and can cancel it."""
    progress = TaskDialog(task, workbench.window)

    def end(result: Any) -> None:
        progress.finish()
        then(result)

    def failed(error: Exception) -> None:
        progress.finish()
        workbench.show_message(str(error), "info" if isinstance(error, ExportCancelled) else "bad")

    workbench.bridge.ask(call, end, failed, progress)


def write_export(workbench: Workbench, write: Export, view: RunView, path: Path) -> None:
    """Export a run in the background."""
    workbench.settings.put("export.folder", str(path.parent))
    task = ExportTask(f"Writing {path.name}")
    open_folder = partial(workbench.open_path, path.parent)
    run_task(
        workbench,
        task,
        lambda trainer: write(trainer, view, path, task),
        lambda _: workbench.offer_action(f"Wrote {path}", "Open folder", open_folder),
    )
