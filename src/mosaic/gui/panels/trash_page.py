"""The trash: deleted runs, which can be restored, or deleted for good."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QItemSelectionModel, QObject, Qt
from PySide6.QtGui import QHideEvent, QKeyEvent, QShowEvent
from PySide6.QtWidgets import QWidget

from mosaic.contracts.disk_views import TrashedRun
from mosaic.formatting import count_noun, format_ago, format_size, format_timestamp, short_id
from mosaic.gui import trash_action_handlers as handlers
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.button_row import ButtonRow
from mosaic.gui.views.tables import Cell, ReadOnlyTable
from mosaic.gui.workbench import Workbench

COLUMN_TITLES = ("Run", "Algorithm", "Environment", "Seed", "Deleted", "Days left", "Size")
DAY_S = 86_400.0
AGE_REFRESH_MS = 20_000
RETENTION_TEXT = (
    "A deleted run is kept for 30 days on which the trainer is used, then it is deleted for good. Until then it can be "
    "restored as it was."
)


def _cells(run: TrashedRun) -> list[str | Cell]:
    days = int(run.seconds_left // DAY_S)
    return [
        Cell(run.run_name or short_id(run.run_id), f"{run.run_id}\n{run.path}"),
        run.algo or "–",
        run.env_id or "–",
        "–" if run.seed is None else str(run.seed),
        Cell(format_ago(run.deleted_at), format_timestamp(run.deleted_at)),
        Cell(str(days) if days else "less than 1", "Days until it is deleted for good"),
        "…" if run.size_bytes is None else format_size(run.size_bytes),
    ]


class TrashPage(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._runs: tuple[TrashedRun, ...] = ()
        self.restore_button = ui.tool_button(
            "trash.restore", "mdi6.delete-restore", "Put the chosen runs back into the list",
            lambda: self._restore(self._chosen_runs()), "Restore", is_flat=False,
        )  # fmt: skip
        self.restore_all_button = ui.tool_button(
            "trash.restore_all", "mdi6.restore", "Put all runs back into the list",
            lambda: self._restore(self._runs), "Restore all", is_flat=False,
        )  # fmt: skip
        self.delete_button = ui.tool_button(
            "trash.delete", "mdi6.delete-forever-outline", "Delete the chosen runs for good (Del)",
            self._delete_chosen, "Delete for good…", is_flat=False,
        )  # fmt: skip
        self.empty_button = ui.tool_button(
            "trash.empty", "mdi6.trash-can-outline", "Delete all runs of the trash for good",
            lambda: handlers.delete_for_good(workbench, self._runs), "Empty trash…", is_flat=False,
        )  # fmt: skip
        buttons = ButtonRow((self.restore_button, self.restore_all_button, self.delete_button, self.empty_button))
        self.table = ReadOnlyTable("trash.runs", text_columns=(0, 1, 2, 4))
        self.table.setSelectionBehavior(ReadOnlyTable.SelectionBehavior.SelectRows)
        self.table.setSelectionMode(ReadOnlyTable.SelectionMode.ExtendedSelection)
        self.table.itemSelectionChanged.connect(self._update_buttons)
        self.table.doubleClicked.connect(lambda _: self._restore(self._chosen_runs()))
        self.table.installEventFilter(self)
        self._total = ui.muted_label("", "trash.total")
        self._empty = ui.EmptyState("Reading the trash…")
        self._stack = ui.stack(self._empty, ui.widget_column(buttons, (self.table, 1), self._total))
        ui.column(
            ui.heading_label("Trash"),
            ui.muted_label(RETENTION_TEXT),
            (self._stack, 1),
            parent=self,
            margins=ui.PAGE_MARGINS,
        )
        workbench.trash.changed.connect(self._show)
        ui.VisibleTimer(self, AGE_REFRESH_MS, self._show, calls_on_show=True)
        self._show()

    def _show(self) -> None:
        trash = self._workbench.trash
        chosen = {run.run_id for run in self._chosen_runs()}
        self._runs = trash.runs
        if trash.is_loaded:
            self._empty.set_text("The trash is empty", "Runs that you delete are kept here for 30 days.")
        self._stack.setCurrentIndex(1 if self._runs else 0)
        self.table.show_rows(COLUMN_TITLES, [_cells(run) for run in self._runs])
        self.table.clearSelection()
        selection = self.table.selectionModel()
        for number, run in enumerate(self._runs):
            if run.run_id in chosen:
                flags = QItemSelectionModel.SelectionFlag.Select | QItemSelectionModel.SelectionFlag.Rows
                selection.select(self.table.model().index(number, 0), flags)
        sizes = [run.size_bytes for run in self._runs if run.size_bytes is not None]
        total = format_size(sum(sizes)) if len(sizes) == len(self._runs) else "measuring…"
        self._total.setText(f"{count_noun(len(self._runs), 'run')}, {total}")
        self._update_buttons()

    def _chosen_runs(self) -> list[TrashedRun]:
        rows = sorted({index.row() for index in self.table.selectionModel().selectedRows()})
        return [self._runs[row] for row in rows if row < len(self._runs)]

    def _update_buttons(self) -> None:
        count = len(self._chosen_runs())
        self.restore_button.setEnabled(count > 0)
        self.delete_button.setEnabled(count > 0)
        self.restore_button.setText(f"Restore {count:,} runs" if count > 1 else "Restore")
        self.delete_button.setText(f"Delete {count:,} runs for good…" if count > 1 else "Delete for good…")

    def _restore(self, runs: Sequence[TrashedRun]) -> None:
        if runs:
            handlers.restore(self._workbench, [run.path for run in runs])

    def _delete_chosen(self) -> None:
        handlers.delete_for_good(self._workbench, self._chosen_runs())

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """In this table, the key that deletes runs of the list means those of the trash."""
        if isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_Delete:
            if event.type() is QEvent.Type.ShortcutOverride:
                event.accept()
                return True
            if event.type() is QEvent.Type.KeyPress:
                self._delete_chosen()
                return True
        return False

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._workbench.trash.set_measuring(True)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._workbench.trash.set_measuring(False)
