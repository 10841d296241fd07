"""The table of actions: menus, palette, keys and the buttons of a run are made from it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import QApplication, QMenu, QWidget

from mosaic.client.exports import export_csv, export_episodes, export_zip
from mosaic.contracts.options import RunKind
from mosaic.contracts.views import RunView
from mosaic.gui import run_action_handlers as handlers
from mosaic.gui import theme
from mosaic.gui.models.policy_form import policy_workers
from mosaic.gui.ui_specs import SUBMENU_SEPARATOR, Action
from mosaic.gui.workbench import Workbench

# --- conditions


def _count_targets(at_least: int, at_most: int = sys.maxsize) -> Callable[[Workbench], bool]:
    return lambda workbench: at_least <= len(workbench.target_runs()) <= at_most


_HAS_TARGETS = _count_targets(1)
_HAS_ONE_TARGET = _count_targets(1, 1)
_HAS_TWO_TARGETS = _count_targets(2, 2)
_HAS_SEVERAL_TARGETS = _count_targets(2)


def _has_one_local_target(workbench: Workbench) -> bool:
    return _HAS_ONE_TARGET(workbench) and not workbench.is_remote


def _target_stages(workbench: Workbench) -> set[str]:
    return {view.stage for view in workbench.target_runs()}


def _are_all_finished(workbench: Workbench) -> bool:
    return _target_stages(workbench) == {"finished"}


def _can_cancel(workbench: Workbench) -> bool:
    return bool(handlers.stoppable_runs(workbench))


def _can_pause(workbench: Workbench) -> bool:
    return bool(_target_stages(workbench).intersection(("running", "paused")))


def _can_resume(workbench: Workbench) -> bool:
    return _HAS_ONE_TARGET(workbench) and is_resumable(workbench.target_runs()[0])


def is_resumable(view: RunView) -> bool:
    """Whether it has ended and can continue from a checkpoint."""
    is_over = view.stage == "finished" and view.outcome != "rejected"
    return is_over and view.kind == RunKind.TRAIN and view.checkpoint_step is not None


def _can_archive(workbench: Workbench) -> bool:
    return _are_all_finished(workbench) and any(not view.is_archived for view in workbench.target_runs())


def _can_unarchive(workbench: Workbench) -> bool:
    return any(view.is_archived for view in workbench.target_runs())


def _has_trash(workbench: Workbench) -> bool:
    return bool(workbench.settings.get_for_workspace("trashed", []))


# --- what the actions of the window do


def open_page(name: str) -> Callable[[Workbench], None]:
    return lambda workbench: workbench.page_requested.emit(name)


def _open_dialog(name: str) -> Callable[[Workbench], None]:
    return lambda workbench: workbench.dialog_requested.emit(name)


def _switch_theme(workbench: Workbench) -> None:
    workbench.settings.put("theme", "light" if theme.is_dark() else "dark")
    workbench.apply_theme()


# --- the tables

EXPORT_MENU = f"Run{SUBMENU_SEPARATOR}Export"
_EXPORT_ZIP = partial(handlers.export, write=export_zip, ending=".zip", kind="Run folder as a zip (*.zip)")
_EXPORT_CSV = partial(handlers.export, write=export_csv, ending="-metrics.csv", kind="Metrics as a table (*.csv)")
_EXPORT_EPISODES = partial(
    handlers.export, write=export_episodes, ending="-episodes.jsonl", kind="One object per line (*.jsonl)"
)

RUN_ACTION_GROUPS: tuple[tuple[Action, ...], ...] = (
    (
        Action("run.cancel", "Cancel run", "Run", handlers.cancel, "Ctrl+Shift+X", "mdi6.stop", _can_cancel,
               "Stop it; it writes a checkpoint first and can be resumed",
               plural_title="Cancel {} runs…", runs=handlers.stoppable_runs),
        Action("run.pause", "Pause or continue", "Run", handlers.toggle_pause, "Space", "mdi6.pause", _can_pause,
               "Pause a running run, or continue a paused one"),
        Action("run.resume", "Resume with more steps…", "Run", handlers.resume, "", "mdi6.play", _can_resume,
               "Continue from the last checkpoint, in the same run"),
    ),
    (
        Action("run.resubmit", "Resubmit", "Run", handlers.resubmit, "Ctrl+R", "mdi6.replay", _HAS_TARGETS,
               "Start a new run from the same config", plural_title="Resubmit {} runs"),
        Action("run.edit", "Edit and resubmit…", "Run", handlers.edit_and_resubmit, "Ctrl+E", "mdi6.pencil-outline",
               _HAS_ONE_TARGET, "Open the train form, filled from this run"),
        Action("run.diff", "Show differing settings", "Run", handlers.show_settings_diff, "Ctrl+D",
               "mdi6.vector-difference", _HAS_TWO_TARGETS, "Mark two runs to see which settings differ"),
        Action("run.compare", "Compare", "Run", handlers.compare_runs, "Ctrl+Shift+M", "mdi6.compare",
               _HAS_SEVERAL_TARGETS, "Compare the marked runs: curves, intervals, differing settings"),
    ),
    (
        Action("run.tags", "Tags…", "Run", handlers.edit_tags, "Ctrl+T", "mdi6.tag-outline", _HAS_TARGETS),
        Action("run.note", "Write note", "Run", handlers.write_note, "", "mdi6.note-edit-outline", _HAS_ONE_TARGET),
        Action("run.archive", "Archive", "Run", handlers.archive, "", "mdi6.archive-arrow-down-outline", _can_archive,
               "Take it out of the list without deleting it"),
        Action("run.unarchive", "Unarchive", "Run", handlers.unarchive, "", "mdi6.archive-arrow-up-outline",
               _can_unarchive),
        Action("run.delete", "Delete…", "Run", handlers.delete, "Del", "mdi6.trash-can-outline", _are_all_finished,
               "Move to the trash; runs that have not ended cannot be deleted", plural_title="Delete {} runs…"),
        Action("run.undelete", "Undo delete (restore from trash)", "Run", handlers.undelete, "", "mdi6.delete-restore",
               _has_trash, "Restore the runs that were deleted last from the trash"),
    ),
    (
        Action("run.folder", "Open folder", "Run", handlers.open_folder, "", "mdi6.folder-open-outline",
               _has_one_local_target),
        Action("run.config", "Open config file", "Run", handlers.open_config, "", "mdi6.code-json",
               _has_one_local_target),
        Action("run.copy_id", "Copy id", "Run", handlers.copy_id, "Ctrl+Shift+C", "mdi6.content-copy", _HAS_TARGETS),
        Action("run.export_zip", "Export as zip…", EXPORT_MENU, _EXPORT_ZIP, "", "mdi6.folder-zip-outline",
               lambda workbench: _HAS_ONE_TARGET(workbench) and _are_all_finished(workbench),
               "The whole run, for another machine; when it has ended"),
        Action("run.export_csv", "Export metrics as CSV…", EXPORT_MENU, _EXPORT_CSV, "", "mdi6.file-delimited-outline",
               _HAS_ONE_TARGET),
        Action("run.export_episodes", "Export episodes…", EXPORT_MENU, _EXPORT_EPISODES, "", "mdi6.file-code-outline",
               _HAS_ONE_TARGET, "Every episode as one JSON object per line"),
    ),
)  # fmt: skip
ACTIONS: tuple[Action, ...] = (
    Action("agent.configure", "Configure Agent…", "Run", lambda workbench: workbench.form_requested.emit(None),
           "Ctrl+N", "mdi6.tune-variant", tip="Choose what to train"),
    Action("agent.train", "Train Agent", "Run", handlers.train_now, "Ctrl+Shift+Return", "mdi6.play",
           tip="Submit the last configuration at once"),
    Action("agent.script", "Run a script…", "Run", handlers.run_script, "Ctrl+Shift+N", "mdi6.script-text-play-outline",
           lambda workbench: not workbench.is_remote, "Start a script of yours as a run, unedited"),
    Action("agent.policy", "Load Trained Policy…", "Run", open_page("policy"), "Ctrl+L", "mdi6.folder-open-outline",
           lambda _: bool(policy_workers()), "Evaluate what was trained"),
    Action("app.settings", "Settings", "File", open_page("settings"), "Ctrl+,", "mdi6.cog-outline",
           tip="Theme, size of the text, shortcuts"),
    Action("app.quit", "Quit", "File", lambda _: QApplication.closeAllWindows(), "Ctrl+Q", "mdi6.exit-to-app",
           tip="Close the workbench; runs continue"),
    *(replace(action, section=number) for number, group in enumerate(RUN_ACTION_GROUPS, 1) for action in group),
    Action("view.search", "Search", "View", handlers.search, "Ctrl+F", "mdi6.magnify",
           tip="Search runs, or the log in focus"),
    Action("view.theme", "Switch between light and dark", "View", _switch_theme, "Ctrl+Shift+L",
           "mdi6.theme-light-dark"),
    Action("app.palette", "Command palette", "Tools", _open_dialog("palette"), "Ctrl+K", "mdi6.magnify",
           tip="Find any action or run by typing"),
    Action("app.trainer", "Trainer", "Tools", open_page("trainer"), "Ctrl+Shift+T", "mdi6.server",
           tip="The daemon, its queue and its log"),
    Action("help.help", "Help", "Help", _open_dialog("help"), "F1", "mdi6.help-circle-outline",
           tip="Help for what is in focus, or the guide"),
    Action("help.shortcuts", "Keyboard shortcuts", "Help", _open_dialog("shortcuts"), "Ctrl+/",
           "mdi6.keyboard-outline"),
    Action("help.welcome", "Welcome page", "Help", open_page("welcome"), icon="mdi6.hand-wave-outline"),
    Action("help.about", "About MOSAIC", "Help", _open_dialog("about"), icon="mdi6.information-outline"),
)  # fmt: skip


def find_action(action_id: str) -> Action:
    return next(action for action in ACTIONS if action.id == action_id)


def run_menu(workbench: Workbench, name: str, parent: QWidget) -> QMenu:
    """The context menu of the target runs, without the actions that are not possible now."""
    menu = QMenu(parent)
    menu.setObjectName(name)
    menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    menu.setToolTipsVisible(True)
    for group in RUN_ACTION_GROUPS:
        possible = [action for action in group if action.is_enabled(workbench)]
        for action in possible:
            entry = menu.addAction(theme.icon(action.icon), action.title_now(workbench))
            entry.setObjectName(f"menu.{action.id}")
            entry.setToolTip(action.tooltip())
            entry.setShortcut(QKeySequence(action.shortcut))
            entry.triggered.connect(lambda _=False, trigger=action.trigger: trigger(workbench))
        if possible:
            menu.addSeparator()
    return menu
