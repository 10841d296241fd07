"""What can be done with the runs that are chosen, as rows: for the menus and for the run's header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import QMenu, QWidget

from mosaic.client.exports import export_csv, export_episodes, export_zip
from mosaic.contracts.run_kind import RunKind
from mosaic.gui import run_action_handlers as verbs
from mosaic.gui import theme
from mosaic.gui.ui_specs import SUBMENU_SEPARATOR, Action
from mosaic.gui.workbench import Workbench

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView

# --- when


def _target_stages(workbench: Workbench) -> set[str]:
    return {view.stage for view in workbench.target_runs()}


def can_cancel(workbench: Workbench) -> bool:
    return bool(_target_stages(workbench).intersection(verbs.STOPPABLE_STAGES))


def can_pause(workbench: Workbench) -> bool:
    return bool(_target_stages(workbench).intersection(("running", "paused")))


def can_resume(workbench: Workbench) -> bool:
    chosen = workbench.target_runs()
    return len(chosen) == 1 and is_resumable(chosen[0])


def is_resumable(view: RunView) -> bool:
    """It has ended and can go on from a checkpoint."""
    is_over = view.stage == "finished" and view.outcome != "rejected"
    return is_over and view.kind == RunKind.TRAIN and view.checkpoint_step is not None


def _has_targets(workbench: Workbench) -> bool:
    return bool(workbench.target_runs())


def _has_one_target(workbench: Workbench) -> bool:
    return len(workbench.target_runs()) == 1


def _has_two_targets(workbench: Workbench) -> bool:
    return len(workbench.target_runs()) == 2


def _has_several_targets(workbench: Workbench) -> bool:
    return len(workbench.target_runs()) > 1


def _has_one_local_target(workbench: Workbench) -> bool:
    return _has_one_target(workbench) and not workbench.is_remote


def _are_all_finished(workbench: Workbench) -> bool:
    return _target_stages(workbench) == {"finished"}


def can_archive(workbench: Workbench) -> bool:
    chosen = workbench.target_runs()
    return _are_all_finished(workbench) and any(not view.is_archived for view in chosen)


def can_unarchive(workbench: Workbench) -> bool:
    return any(view.is_archived for view in workbench.target_runs())


def _has_trash(workbench: Workbench) -> bool:
    return bool(workbench.settings.get_for_workspace("trashed", []))


# --- the rows

_EXPORT_MENU = f"Run{SUBMENU_SEPARATOR}Export"
_EXPORT_ZIP = partial(verbs.export, write=export_zip, ending=".zip", kind="Run folder as a zip (*.zip)")
_EXPORT_CSV = partial(verbs.export, write=export_csv, ending="-metrics.csv", kind="Metrics as a table (*.csv)")
_EXPORT_EPISODES = partial(
    verbs.export, write=export_episodes, ending="-episodes.jsonl", kind="One object per line (*.jsonl)"
)

RUN_ACTION_GROUPS: tuple[tuple[Action, ...], ...] = (
    (
        Action("run.cancel", "Cancel run", "Run", verbs.cancel, "Ctrl+Shift+X", "mdi6.stop", can_cancel,
               "Stop it; it writes a checkpoint first and can be resumed"),
        Action("run.pause", "Pause or continue", "Run", verbs.toggle_pause, "Space", "mdi6.pause", can_pause,
               "Pause a running run, or continue a paused one"),
        Action("run.resume", "Resume with more steps…", "Run", verbs.resume, "", "mdi6.play", can_resume,
               "Continue from the last checkpoint, in the same run"),
    ),
    (
        Action("run.resubmit", "Resubmit", "Run", verbs.resubmit, "Ctrl+R", "mdi6.replay", _has_targets,
               "Start a new run from the same config"),
        Action("run.edit", "Edit and resubmit…", "Run", verbs.edit_and_resubmit, "Ctrl+E", "mdi6.pencil-outline",
               _has_one_target, "Open the train form, filled from this run"),
        Action("run.diff", "Show differing settings", "Run", verbs.show_settings_diff, "Ctrl+D",
               "mdi6.vector-difference", _has_two_targets, "Mark two runs to see which settings differ"),
        Action("run.compare", "Compare", "Run", verbs.compare_runs, "Ctrl+Shift+M", "mdi6.compare",
               _has_several_targets, "Compare the marked runs: curves, intervals, differing settings"),
    ),
    (
        Action("run.tags", "Tags…", "Run", verbs.edit_tags, "Ctrl+T", "mdi6.tag-outline", _has_targets),
        Action("run.note", "Write note", "Run", verbs.write_note, "", "mdi6.note-edit-outline", _has_one_target),
        Action("run.archive", "Archive", "Run", verbs.archive, "", "mdi6.archive-arrow-down-outline", can_archive,
               "Take it out of the list without deleting it"),
        Action("run.unarchive", "Unarchive", "Run", verbs.unarchive, "", "mdi6.archive-arrow-up-outline",
               can_unarchive),
        Action("run.delete", "Delete…", "Run", verbs.delete, "Del", "mdi6.trash-can-outline", _are_all_finished,
               "Move to the trash; runs that have not ended cannot be deleted"),
        Action("run.undelete", "Undo delete", "Run", verbs.undelete, "", "mdi6.delete-restore",
               _has_trash, "Restore the runs that were deleted last from the trash"),
    ),
    (
        Action("run.folder", "Open folder", "Run", verbs.open_folder, "", "mdi6.folder-open-outline",
               _has_one_local_target),
        Action("run.config", "Open config file", "Run", verbs.open_config, "", "mdi6.code-json", _has_one_local_target),
        Action("run.copy_id", "Copy id", "Run", verbs.copy_id, "Ctrl+Shift+C", "mdi6.content-copy", _has_targets),
        Action("run.export_zip", "Export as zip…", _EXPORT_MENU, _EXPORT_ZIP, "", "mdi6.folder-zip-outline",
               lambda workbench: _has_one_local_target(workbench) and _are_all_finished(workbench),
               "The whole run, for another machine; when it has ended"),
        Action("run.export_csv", "Export metrics as CSV…", _EXPORT_MENU, _EXPORT_CSV, "", "mdi6.file-delimited-outline",
               _has_one_target),
        Action("run.export_episodes", "Export episodes…", _EXPORT_MENU, _EXPORT_EPISODES, "", "mdi6.file-code-outline",
               _has_one_target, "Every episode as one JSON object per line"),
    ),
)  # fmt: skip
RUN_ACTIONS: tuple[Action, ...] = (
    *(replace(row, section=number) for number, group in enumerate(RUN_ACTION_GROUPS, 1) for row in group),
    Action(
        "view.search", "Search", "View", verbs.search, "Ctrl+F", "mdi6.magnify", tip="Search runs, or the log in focus"
    ),
)


def find_action(action_id: str) -> Action:
    return next(row for row in RUN_ACTIONS if row.id == action_id)


def context_menu(workbench: Workbench, groups: Sequence[Sequence[Action]], parent: QWidget) -> QMenu:
    """What can be done now; what cannot is left out, so that the menu stays short."""
    menu = QMenu(parent)
    menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    menu.setToolTipsVisible(True)
    for group in groups:
        rows = [row for row in group if row.is_enabled(workbench)]
        for one in rows:
            action = menu.addAction(theme.icon(one.icon), one.title)
            action.setObjectName(f"menu.{one.id}")
            action.setToolTip(one.tip or one.title)
            action.setShortcut(QKeySequence(one.shortcut))
            action.triggered.connect(lambda _=False, run=one.run: run(workbench))
        if rows:
            menu.addSeparator()
    return menu
