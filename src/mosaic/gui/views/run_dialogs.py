"""Questions about runs: how many steps more, which tags, and what differs between two."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

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

from mosaic.gui import theme
from mosaic.gui.views.made import accent_button, muted, named
from mosaic.gui.views.words import run_title, short_id
from mosaic.plugins.payloads import differences

Json = dict[str, Any]
MOST_STEPS = 2_000_000_000


def _column(dialog: QDialog, title: str) -> QVBoxLayout:
    dialog.setWindowTitle(title)
    column = QVBoxLayout(dialog)
    column.setContentsMargins(theme.MARGIN, theme.MARGIN, theme.MARGIN, theme.MARGIN)
    column.setSpacing(theme.GAP)
    return column


def _buttons(dialog: QDialog, column: QVBoxLayout, done: QPushButton) -> None:
    row = QDialogButtonBox()
    row.addButton(done, QDialogButtonBox.ButtonRole.AcceptRole)
    row.addButton("Cancel", QDialogButtonBox.ButtonRole.RejectRole)
    row.accepted.connect(dialog.accept)
    row.rejected.connect(dialog.reject)
    done.setDefault(True)
    column.addSpacing(theme.GAP)
    column.addWidget(row)


class ResumeDialog(QDialog):
    wanted = Signal(int)
    """The total of steps; 0: as many as it was asked for at first."""

    def __init__(self, view: Json, parent: QWidget | None) -> None:
        super().__init__(parent)
        named(self, "resume")
        column = _column(self, "Resume run")
        done, total = view.get("global_step") or 0, view.get("total_timesteps") or 0
        checkpoint = view["checkpoint_step"]
        column.addWidget(QLabel(run_title(view)))
        column.addWidget(
            muted(f"It has done {done:,} of {total:,} steps and goes on from its checkpoint at step {checkpoint:,}.")
        )
        self._total = total if view.get("outcome") != "succeeded" else None
        self._steps = named(QSpinBox(), "resume.steps")
        self._steps.setRange(checkpoint + 1, MOST_STEPS)
        self._steps.setSingleStep(max(1, total // 10))
        self._steps.setGroupSeparatorShown(True)
        self._steps.setValue(self._total or max(2 * done, done + 1))
        label = QLabel("&Steps in total")
        label.setBuddy(self._steps)
        column.addSpacing(theme.GAP)
        column.addWidget(label)
        column.addWidget(self._steps)
        _buttons(self, column, accent_button("Resume", "resume.done"))
        self.accepted.connect(self._tell)
        self._steps.setFocus()
        self._steps.selectAll()

    def _tell(self) -> None:
        steps = self._steps.value()
        self.wanted.emit(0 if steps == self._total else steps)


class TagsDialog(QDialog):
    wanted = Signal(list, list)
    """Tags to add to every run, and tags to take from every run."""

    def __init__(self, views: Sequence[Json], known: Sequence[str], parent: QWidget | None) -> None:
        super().__init__(parent)
        named(self, "tags")
        column = _column(self, "Tags")
        one = len(views) == 1
        column.addWidget(QLabel(run_title(views[0]) if one else f"{len(views)} runs"))
        tags = [set(view.get("tags") or ()) for view in views]
        self._before = set.intersection(*tags)
        some = set.union(*tags) - self._before
        self._line = named(QLineEdit(" ".join(sorted(self._before))), "tags.line")
        self._line.setPlaceholderText("baseline good-seed …")
        completer = QCompleter(list(known), self)
        completer.setCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        if not self._before:
            self._line.setCompleter(completer)
        label = QLabel("&Tags, with spaces between them")
        label.setBuddy(self._line)
        column.addSpacing(theme.GAP)
        column.addWidget(label)
        column.addWidget(self._line)
        if some:
            column.addWidget(muted(f"Only some of the runs have: {', '.join(sorted(some))}. These stay as they are."))
        if known:
            shown = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
            column.addWidget(muted(f"In use: {shown}"))
        _buttons(self, column, accent_button("Save tags", "tags.done"))
        self.accepted.connect(self._tell)
        self.setMinimumWidth(360)
        self._line.setFocus()

    def _tell(self) -> None:
        after = set(re.split(r"[\s,]+", self._line.text().strip())) - {""}
        if after != self._before:
            self.wanted.emit(sorted(after - self._before), sorted(self._before - after))


class SettingsDiff(QDialog):
    """The settings in which two runs differ; one that was not given counts with its default."""

    def __init__(self, views: Sequence[Json], settings: Sequence[Json], parent: QWidget | None) -> None:
        super().__init__(parent)
        named(self, "diff")
        column = _column(self, "Differing settings")
        found = differences(*settings)
        self._text = json.dumps({name: list(values) for name, values in found.items()}, indent=2)
        for view in views:
            column.addWidget(QLabel(run_title(view)))
        if not found:
            column.addWidget(muted("The two runs have the same settings."))
        else:
            column.addWidget(self._table(views, found), 1)
        row = QDialogButtonBox()
        copy = named(QPushButton("Copy as JSON"), "diff.copy")
        copy.clicked.connect(lambda: QGuiApplication.clipboard().setText(self._text))
        row.addButton(copy, QDialogButtonBox.ButtonRole.ActionRole)
        close = row.addButton("Close", QDialogButtonBox.ButtonRole.RejectRole)
        close.setDefault(True)
        row.rejected.connect(self.reject)
        column.addWidget(row)
        self.resize(640, 420 if found else 120)

    def _table(self, views: Sequence[Json], found: dict[str, tuple[Any, Any]]) -> QTableWidget:
        table = named(QTableWidget(len(found), 3), "diff.table")
        table.setHorizontalHeaderLabels(["Setting", *(short_id(view["run_id"]) for view in views)])
        table.verticalHeader().hide()
        table.setShowGrid(False)
        table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        for row, (name, values) in enumerate(found.items()):
            table.setItem(row, 0, QTableWidgetItem(name))
            for number, value in enumerate(values, 1):
                shown = "not set" if value is None else value if isinstance(value, str) else json.dumps(value)
                item = QTableWidgetItem(shown)
                item.setFont(theme.monospace())
                item.setToolTip(shown)
                table.setItem(row, number, item)
        header = table.horizontalHeader()
        header.setHighlightSections(False)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.ResizeToContents)
        return table
