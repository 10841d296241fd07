"""The trash: deleted runs, which can be restored, or deleted for good."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from PySide6.QtCore import QEvent, QItemSelectionModel, QObject, Qt
from PySide6.QtGui import QHideEvent, QKeyEvent, QShowEvent
from PySide6.QtWidgets import QWidget

from mosaic.base.formatting import count_noun, format_ago, format_size, format_timestamp, run_title, short_id
from mosaic.contracts.disk_views import PruneItem, TrashedRun
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.views import RunView
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import widgets as ui
from mosaic.window.run_changes import describe_runs, list_titles
from mosaic.window.specs import Page
from mosaic.window.tables import Cell, ReadOnlyTable
from mosaic.window.widgets import ButtonRow
from mosaic.window.workbench import Workbench

# --- Handlers of the actions that delete and restore runs.


class Attempts(NamedTuple):
    """The results of calls, one per run."""

    views: dict[str, RunView]
    """By argument, of the calls that succeeded."""
    problem: str
    """The last error message; empty if all calls succeeded."""


def try_each(call: Callable[[str], RunView], arguments: Sequence[str]) -> Attempts:
    """Calls for each argument, so that one failure does not hide what has been done."""
    views: dict[str, RunView] = {}
    problem = ""
    for argument in arguments:
        try:
            views[argument] = call(argument)
        except MosaicError as error:
            problem = str(error)
    return Attempts(views, problem)


def deletable_runs(workbench: Workbench) -> list[RunView]:
    return [view for view in workbench.target_runs() if view.stage == "finished"]


def delete(workbench: Workbench) -> None:
    """Ask, naming what will be deleted; it can be restored from the trash for 30 days."""
    views = deletable_runs(workbench)
    kept = len(workbench.target_runs()) - len(views)
    note = f"\n\n{count_noun(kept, 'run has', 'runs have')} not ended and stay{'s' * (kept == 1)}." if kept else ""
    what = "this run" if len(views) == 1 else f"these {len(views):,} runs"
    titles = list_titles([run_title(view) for view in views])
    ui.confirm(
        workbench.window,
        "delete.question",
        "Delete runs",
        f"Move {what} to the trash?",
        f"{titles}\n\n{'It' if len(views) == 1 else 'They'} can be restored from the trash for 30 days.{note}",
        "Move to trash",
        lambda: _move_to_trash(workbench, [view.run_id for view in views]),
        "Keep",
    )


def _move_to_trash(workbench: Workbench, run_ids: list[str]) -> None:
    def then(result: Attempts) -> None:
        gone = list(result.views.values())
        if not gone:
            workbench.show_message(result.problem, "bad")
            return
        workbench.runs.remove(set(result.views))
        text = f"{describe_runs(gone)}: in the trash. {result.problem}".rstrip()
        paths = [view.run_dir for view in gone]
        workbench.offer_undo(
            text, f"delete {count_noun(len(gone), 'run')}", partial(restore, workbench, paths, is_shown=True)
        )

    workbench.ask(lambda trainer: try_each(trainer.delete_run, run_ids), then, workbench)


def restore(workbench: Workbench, paths: Sequence[str], is_shown: bool = False) -> None:
    """Restore runs by their folders in the trash; `is_shown`: show a single one."""

    def then(result: Attempts) -> None:
        restored = list(result.views.values())
        workbench.runs.update(restored)
        workbench.trash.refresh()
        if result.problem:
            failed = count_noun(len(paths) - len(restored), "run")
            text = f"{describe_runs(restored)}: back in the list. " if restored else ""
            workbench.show_message(f"{text}{failed} could not be restored: {result.problem}", "bad")
        elif is_shown and len(restored) == 1:
            workbench.select(restored[0].run_id)
            workbench.show_message(f"{describe_runs(restored)}: back in the list.", "good")
        else:
            show = partial(workbench.select, restored[0].run_id)
            workbench.offer_action(f"{describe_runs(restored)}: back in the list.", "Show", show)

    workbench.ask(lambda trainer: try_each(trainer.import_run, list(paths)), then, workbench)


def trashed_title(run: TrashedRun) -> str:
    """As other lists call a run: `ppo · CartPole-v1 · seed 1 · ABC123`."""
    seed = None if run.seed is None else f"seed {run.seed}"
    parts = (run.run_name, run.algo, run.env_id, seed, short_id(run.run_id))
    return " · ".join(part for part in parts if part)


def delete_for_good(workbench: Workbench, runs: Sequence[TrashedRun]) -> None:
    """Ask, naming what will be lost, then delete runs of the trash; those that were not named stay."""
    if not runs:
        return
    what = "this run" if len(runs) == 1 else f"these {len(runs):,} runs"
    sizes = [run.size_bytes for run in runs if run.size_bytes is not None]
    size = f" ({format_size(sum(sizes))})" if len(sizes) == len(runs) else ""
    ui.confirm(
        workbench.window,
        "trash.question",
        "Delete for good",
        f"Delete {what} for good{size}?",
        f"{list_titles([trashed_title(run) for run in runs])}\n\nTheir checkpoints, curves, logs and videos are lost. "
        "This cannot be undone.".replace("Their", "Its" if len(runs) == 1 else "Their"),
        f"Delete {count_noun(len(runs), 'run')}",
        lambda: _prune(workbench, [run.run_id for run in runs]),
        "Keep",
    )


def _prune(workbench: Workbench, run_ids: list[str]) -> None:
    def call(trainer: TrainerClient) -> list[PruneItem]:
        return [item for part in trainer.prune_runs(trashed=run_ids) for item in part.items]

    def then(items: list[PruneItem]) -> None:
        workbench.trash.refresh()
        size = format_size(sum(item.size_bytes for item in items))
        workbench.show_message(f"Deleted {count_noun(len(items), 'run')} for good: {size} are free again.", "good")

    def failed(error: Exception) -> None:
        workbench.trash.refresh()
        workbench.show_error(error)

    workbench.bridge.ask(call, then, failed, workbench)


# --- The trash: deleted runs, which can be restored, or deleted for good.


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
            lambda: delete_for_good(workbench, self._runs), "Empty trash…", is_flat=False,
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
            restore(self._workbench, [run.path for run in runs])

    def _delete_chosen(self) -> None:
        delete_for_good(self._workbench, self._chosen_runs())

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


PAGES = (Page("trash", "Trash", "mdi6.trash-can-outline", TrashPage, has_nav_button=False, position=11),)
