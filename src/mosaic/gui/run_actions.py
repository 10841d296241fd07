"""What can be done with the runs that are chosen, as rows: for the menus and for the run's header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import QMenu, QWidget

from mosaic.gui import run_verbs as verbs
from mosaic.gui import theme
from mosaic.gui.exports import export_csv, export_episodes, export_zip
from mosaic.gui.tables import INSIDE, Action
from mosaic.gui.workbench import Json, Workbench

# --- when


def _stages(workbench: Workbench) -> set[str]:
    return {view["stage"] for view in workbench.chosen()}


def can_cancel(workbench: Workbench) -> bool:
    return bool(_stages(workbench).intersection(verbs.CAN_STOP))


def can_pause(workbench: Workbench) -> bool:
    return bool(_stages(workbench).intersection(("running", "paused")))


def can_resume(workbench: Workbench) -> bool:
    chosen = workbench.chosen()
    return len(chosen) == 1 and has_more(chosen[0])


def has_more(view: Json) -> bool:
    """It has ended and can go on from a checkpoint."""
    is_over = view["stage"] == "finished" and view.get("outcome") != "rejected"
    return is_over and view.get("kind") == "train" and view.get("checkpoint_step") is not None


def _some(workbench: Workbench) -> bool:
    return bool(workbench.chosen())


def _one(workbench: Workbench) -> bool:
    return len(workbench.chosen()) == 1


def _two(workbench: Workbench) -> bool:
    return len(workbench.chosen()) == 2


def _several(workbench: Workbench) -> bool:
    return len(workbench.chosen()) > 1


def _one_here(workbench: Workbench) -> bool:
    return _one(workbench) and not workbench.is_remote


def _all_ended(workbench: Workbench) -> bool:
    return _stages(workbench) == {"finished"}


def can_archive(workbench: Workbench) -> bool:
    chosen = workbench.chosen()
    return _all_ended(workbench) and any(not view.get("is_archived") for view in chosen)


def can_unarchive(workbench: Workbench) -> bool:
    return any(view.get("is_archived") for view in workbench.chosen())


def _has_trash(workbench: Workbench) -> bool:
    return bool(workbench.settings.get_here("trashed", []))


# --- the rows

_EXPORT = f"Run{INSIDE}Export"
_ZIP = partial(verbs.export, write=export_zip, ending=".zip", kind="Run folder as a zip (*.zip)")
_CSV = partial(verbs.export, write=export_csv, ending="-metrics.csv", kind="Metrics as a table (*.csv)")
_EPISODES = partial(verbs.export, write=export_episodes, ending="-episodes.jsonl", kind="One object a line (*.jsonl)")

GROUPS: tuple[tuple[Action, ...], ...] = (
    (
        Action("run.cancel", "Cancel run", "Run", verbs.cancel, "Ctrl+Shift+X", "mdi6.stop", can_cancel,
               "Stop it; it writes a checkpoint first and can be resumed"),
        Action("run.pause", "Pause or continue", "Run", verbs.toggle_pause, "Space", "mdi6.pause", can_pause,
               "Pause a running run, let a paused one go on"),
        Action("run.resume", "Resume with more steps…", "Run", verbs.resume, "", "mdi6.play", can_resume,
               "Go on from the last checkpoint, in the same run"),
    ),
    (
        Action("run.resubmit", "Resubmit", "Run", verbs.resubmit, "Ctrl+R", "mdi6.replay", _some,
               "Start a new run from the same config"),
        Action("run.edit", "Edit and resubmit…", "Run", verbs.edit, "Ctrl+E", "mdi6.pencil-outline", _one,
               "Open the train form, filled from this run"),
        Action("run.diff", "Show differing settings", "Run", verbs.diff, "Ctrl+D", "mdi6.vector-difference", _two,
               "Mark two runs to see which settings differ"),
        Action("run.compare", "Compare", "Run", verbs.compare, "Ctrl+Shift+M", "mdi6.compare", _several,
               "Put the marked runs together: curves, intervals, differing settings"),
    ),
    (
        Action("run.tags", "Tags…", "Run", verbs.edit_tags, "Ctrl+T", "mdi6.tag-outline", _some),
        Action("run.note", "Write note", "Run", verbs.write_note, "", "mdi6.note-edit-outline", _one),
        Action("run.archive", "Archive", "Run", verbs.archive, "", "mdi6.archive-arrow-down-outline", can_archive,
               "Take it out of the list without deleting it"),
        Action("run.unarchive", "Bring back from archive", "Run", verbs.unarchive, "", "mdi6.archive-arrow-up-outline",
               can_unarchive),
        Action("run.delete", "Delete…", "Run", verbs.delete, "Del", "mdi6.trash-can-outline", _all_ended,
               "Move to the trash; runs that have not ended cannot be deleted"),
        Action("run.undelete", "Bring back what was deleted", "Run", verbs.bring_back, "", "mdi6.delete-restore",
               _has_trash, "The runs that were deleted last come back from the trash"),
    ),
    (
        Action("run.folder", "Open folder", "Run", verbs.open_folder, "", "mdi6.folder-open-outline", _one_here),
        Action("run.config", "Open config file", "Run", verbs.open_config, "", "mdi6.code-json", _one_here),
        Action("run.copy_id", "Copy id", "Run", verbs.copy_id, "Ctrl+Shift+C", "mdi6.content-copy", _some),
        Action("run.export_zip", "Export as zip…", _EXPORT, _ZIP, "", "mdi6.folder-zip-outline",
               lambda workbench: _one_here(workbench) and _all_ended(workbench),
               "The whole run, for another machine; when it has ended"),
        Action("run.export_csv", "Export metrics as CSV…", _EXPORT, _CSV, "", "mdi6.file-delimited-outline", _one),
        Action("run.export_episodes", "Export episodes…", _EXPORT, _EPISODES, "", "mdi6.file-code-outline", _one,
               "Every episode as one JSON object a line"),
    ),
)  # fmt: skip
RUN_ACTIONS: tuple[Action, ...] = (
    *(replace(row, section=number) for number, group in enumerate(GROUPS, 1) for row in group),
    Action(
        "view.search", "Search", "View", verbs.search, "Ctrl+F", "mdi6.magnify", tip="Search runs, or the log in focus"
    ),
)


def row(action_id: str) -> Action:
    return next(row for row in RUN_ACTIONS if row.id == action_id)


def context_menu(workbench: Workbench, groups: Sequence[Sequence[Action]], parent: QWidget) -> QMenu:
    """What can be done now; what cannot is left out, so that the menu stays short."""
    menu = QMenu(parent)
    menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    menu.setToolTipsVisible(True)
    for group in groups:
        rows = [row for row in group if row.when(workbench)]
        for one in rows:
            action = menu.addAction(theme.icon(one.icon), one.title)
            action.setObjectName(f"menu.{one.id}")
            action.setToolTip(one.tip or one.title)
            action.setShortcut(QKeySequence(one.keys))
            action.triggered.connect(lambda _=False, run=one.run: run(workbench))
        if rows:
            menu.addSeparator()
    return menu
