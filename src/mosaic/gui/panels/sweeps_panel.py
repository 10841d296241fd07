"""The page of sweeps: all sweeps of the workspace with their progress, and the page of one sweep."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QHideEvent, QKeyEvent, QShowEvent
from PySide6.QtWidgets import QWidget

from mosaic.api.sweeps.sweep_result import format_params
from mosaic.formatting import PLACEHOLDER, format_si_number
from mosaic.gui import theme
from mosaic.gui.models.sweep_commands import SweepCommands
from mosaic.gui.models.sweep_state import SweepState
from mosaic.gui.models.sweeps_model import SweepsModel
from mosaic.gui.panels.sweep_page import SweepPage
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.tables import STATE_ICON_SIZE, Cell, RowsTable
from mosaic.gui.workbench import Workbench

COLUMN_TITLES = ("Sweep", "State", "Trials", "Best score", "Best settings")
EMPTY_TEXT = (
    "A sweep searches for the settings of an algorithm with Optuna. Write its file and run it in a terminal:\n"
    "mosaic sweep init ppo CartPole-v1 > study.yaml\n"
    "mosaic sweep study.yaml"
)
REMOTE_TEXT = "Sweeps are stored where their process runs. This page shows those of this machine's workspace, {}."


class SweepsPage(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._wanted = ""
        """The sweep to show as soon as it was read."""
        self._names: list[str] = []
        """Of the rows of the table."""
        self.sweeps = SweepsModel(workbench.workspace, workbench.bridge, self)
        self.sweeps.changed.connect(self._refresh)
        workbench.closing.connect(self.sweeps.close)
        self.table = RowsTable("sweeps.list", text_columns=(0, 1, 2, 4), elided_column=4)
        self.table.setIconSize(QSize(STATE_ICON_SIZE, STATE_ICON_SIZE))
        self.table.opened.connect(lambda row: self.show_sweep(self._names[row]))
        self.table.itemSelectionChanged.connect(self._update_buttons)
        self._open = ui.button(
            "Open", "sweeps.open", self._open_selected, "Show the selected sweep (Return, or a double click)"
        )
        self._empty = ui.EmptyState("Reading the sweeps…")
        self._note = ui.muted_label("", "sweeps.note")
        self._lists = ui.stack(self._empty, ui.widget_column(self._note, (self.table, 1)))
        head = ui.row(ui.heading_label("Sweeps"), ui.Stretch(), self._open)
        # The name of a remote trainer is known only after the pages were created.
        self.commands = SweepCommands(workbench.workspace, lambda: workbench.trainer_name)
        self.page = SweepPage(workbench, self.commands)
        self.page.left.connect(self.show_list)
        self._stack = ui.stack(ui.widget_column(head, (self._lists, 1)), self.page)
        ui.column(self._stack, parent=self, margins=ui.PAGE_MARGINS)
        workbench.sweep_requested.connect(self._on_sweep_requested)
        self._wanted = workbench.settings.get_for_workspace("sweep", "")
        self._refresh()

    # --- which sweep

    def _on_sweep_requested(self, name: str) -> None:
        self.show_sweep(name)
        self._workbench.page_requested.emit("sweeps")

    def show_sweep(self, name: str) -> None:
        self._wanted = name
        self._workbench.settings.put_for_workspace("sweep", name)
        self._refresh()

    def show_list(self) -> None:
        self._wanted = ""
        self._workbench.settings.put_for_workspace("sweep", "")
        self._refresh()
        self.table.setFocus()

    def _open_selected(self) -> None:
        row = self.table.selected_row()
        if row is not None:
            self.show_sweep(self._names[row])

    # --- what is shown

    def _refresh(self) -> None:
        state = self.sweeps.states.get(self._wanted)
        if state is not None:
            self.page.show_state(state)
        self._stack.setCurrentIndex(1 if state is not None else 0)
        states = self.sweeps.listed()
        self._lists.setCurrentIndex(1 if states else 0)
        self._open.setVisible(bool(states))
        self._show_empty()
        selected = self.table.selected_row()
        name = self._names[selected] if selected is not None and selected < len(self._names) else ""
        self._names = [state.name for state in states]
        self.table.show_rows(COLUMN_TITLES, [_cells(state) for state in states])
        if name in self._names:
            self.table.selectRow(self._names.index(name))
        self._update_buttons()

    def _show_empty(self) -> None:
        remote = REMOTE_TEXT.format(self._workbench.workspace.root) if self._workbench.is_remote else ""
        self._note.setText(remote)
        self._note.setVisible(bool(remote))
        if self.sweeps.problem:
            self._empty.set_text("Sweeps cannot be read", self.sweeps.problem)
        elif self.sweeps.is_loaded:
            self._empty.set_text("No sweeps yet", "\n\n".join(filter(None, (remote, EMPTY_TEXT))))
        else:
            self._empty.set_text("Reading the sweeps…", remote)

    def _update_buttons(self) -> None:
        self._open.setEnabled(self.table.selected_row() is not None)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.sweeps.watch()
        self._refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.sweeps.suspend()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self._stack.currentWidget() is self.page:
            self.show_list()
        else:
            super().keyPressEvent(event)


def _cells(state: SweepState) -> list[str | Cell]:
    best = state.best
    status = str(state.status)
    return [
        state.name,
        Cell(status, state.describe_status(), theme.state_icon(status)),
        Cell(state.short_line, state.line),
        PLACEHOLDER if best is None else format_si_number(best.score),
        "" if best is None else format_params(best),
    ]
