"""Questions about runs: how many steps more, which tags, and what differs between two."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QAbstractItemView,
    QCompleter,
    QDialog,
    QDialogButtonBox,
    QHeaderView,
    QLabel,
    QLineEdit,
    QPushButton,
    QSpinBox,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from mosaic.formatting import run_title, short_ids
from mosaic.gui import theme
from mosaic.gui.views.widgets import accent_button, muted_label, with_object_name
from mosaic.submission.run_payloads import diff_settings

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView

Json = dict[str, Any]
MAX_STEPS = 2_000_000_000


def _create_layout(dialog: QDialog, title: str) -> QVBoxLayout:
    dialog.setWindowTitle(title)
    column = QVBoxLayout(dialog)
    column.setContentsMargins(theme.MARGIN, theme.MARGIN, theme.MARGIN, theme.MARGIN)
    column.setSpacing(theme.GAP)
    return column


def _add_buttons(dialog: QDialog, column: QVBoxLayout, accept_button: QPushButton) -> None:
    row = QDialogButtonBox()
    row.addButton(accept_button, QDialogButtonBox.ButtonRole.AcceptRole)
    row.addButton("Cancel", QDialogButtonBox.ButtonRole.RejectRole)
    row.accepted.connect(dialog.accept)
    row.rejected.connect(dialog.reject)
    accept_button.setDefault(True)
    column.addSpacing(theme.GAP)
    column.addWidget(row)


class ResumeDialog(QDialog):
    steps_chosen = Signal(int)
    """The total of steps; 0: as many as it was asked for at first."""

    def __init__(self, view: RunView, parent: QWidget | None) -> None:
        super().__init__(parent)
        with_object_name(self, "resume")
        column = _create_layout(self, "Resume run")
        done, total = view.global_step or 0, view.total_timesteps or 0
        checkpoint = view.checkpoint_step or 0
        column.addWidget(QLabel(run_title(view)))
        column.addWidget(
            muted_label(
                f"It has completed {done:,} of {total:,} steps and resumes from its checkpoint at step {checkpoint:,}."
            )
        )
        self._total = total if view.outcome != "succeeded" else None
        self._steps = with_object_name(QSpinBox(), "resume.steps")
        self._steps.setRange(checkpoint + 1, MAX_STEPS)
        self._steps.setSingleStep(max(1, total // 10))
        self._steps.setGroupSeparatorShown(True)
        self._steps.setValue(self._total or max(2 * done, done + 1))
        label = QLabel("&Steps in total")
        label.setBuddy(self._steps)
        column.addSpacing(theme.GAP)
        column.addWidget(label)
        column.addWidget(self._steps)
        _add_buttons(self, column, accent_button("Resume", "resume.done"))
        self.accepted.connect(self._emit_steps)
        self._steps.setFocus()
        self._steps.selectAll()

    def _emit_steps(self) -> None:
        steps = self._steps.value()
        self.steps_chosen.emit(0 if steps == self._total else steps)


class TagsDialog(QDialog):
    tags_changed = Signal(list, list)
    """Tags to add to every run, and tags to take from every run."""

    def __init__(self, views: Sequence[RunView], known: Sequence[str], parent: QWidget | None) -> None:
        super().__init__(parent)
        with_object_name(self, "tags")
        column = _create_layout(self, "Tags")
        one = len(views) == 1
        column.addWidget(QLabel(run_title(views[0]) if one else f"{len(views)} runs"))
        tags = [set(view.tags or ()) for view in views]
        self._common_tags = set.intersection(*tags)
        some = set.union(*tags) - self._common_tags
        self._tags_edit = with_object_name(QLineEdit(" ".join(sorted(self._common_tags))), "tags.line")
        self._tags_edit.setPlaceholderText("baseline good-seed …")
        completer = QCompleter(list(known), self)
        completer.setCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        if not self._common_tags:
            self._tags_edit.setCompleter(completer)
        label = QLabel("&Tags, with spaces between them")
        label.setBuddy(self._tags_edit)
        column.addSpacing(theme.GAP)
        column.addWidget(label)
        column.addWidget(self._tags_edit)
        if some:
            column.addWidget(
                muted_label(f"Only some of the runs have: {', '.join(sorted(some))}. These stay as they are.")
            )
        if known:
            shown = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
            column.addWidget(muted_label(f"In use: {shown}"))
        _add_buttons(self, column, accent_button("Save tags", "tags.done"))
        self.accepted.connect(self._emit_tags)
        self.setMinimumWidth(360)
        self._tags_edit.setFocus()

    def _emit_tags(self) -> None:
        after = set(re.split(r"[\s,]+", self._tags_edit.text().strip())) - {""}
        if after != self._common_tags:
            self.tags_changed.emit(sorted(after - self._common_tags), sorted(self._common_tags - after))


class SettingsDiffDialog(QDialog):
    """The settings in which two runs differ; one that was not given counts with its default."""

    def __init__(self, views: Sequence[RunView], settings: Sequence[Json], parent: QWidget | None) -> None:
        super().__init__(parent)
        with_object_name(self, "diff")
        column = _create_layout(self, "Differing settings")
        found = diff_settings(*settings)
        self._text = json.dumps({name: list(values) for name, values in found.items()}, indent=2)
        for view in views:
            column.addWidget(QLabel(run_title(view)))
        if not found:
            column.addWidget(muted_label("The two runs have the same settings."))
        else:
            column.addWidget(self._build_table(views, found), 1)
        row = QDialogButtonBox()
        copy = with_object_name(QPushButton("Copy as JSON"), "diff.copy")
        copy.clicked.connect(lambda: QGuiApplication.clipboard().setText(self._text))
        row.addButton(copy, QDialogButtonBox.ButtonRole.ActionRole)
        close = row.addButton("Close", QDialogButtonBox.ButtonRole.RejectRole)
        close.setDefault(True)
        row.rejected.connect(self.reject)
        column.addWidget(row)
        self.resize(640, 420 if found else 120)

    def _build_table(self, views: Sequence[RunView], differing: dict[str, tuple[Any, Any]]) -> QTableWidget:
        table = with_object_name(QTableWidget(len(differing), 3), "diff.table")
        table.setHorizontalHeaderLabels(["Setting", *short_ids([view.run_id for view in views]).values()])
        table.verticalHeader().hide()
        table.setShowGrid(False)
        table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        for row, (name, values) in enumerate(differing.items()):
            table.setItem(row, 0, QTableWidgetItem(name))
            for number, value in enumerate(values, 1):
                shown = "not set" if value is None else value if isinstance(value, str) else json.dumps(value)
                item = QTableWidgetItem(shown)
                item.setFont(theme.monospace_font())
                item.setToolTip(shown)
                table.setItem(row, number, item)
        header = table.horizontalHeader()
        header.setHighlightSections(False)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.ResizeToContents)
        return table
