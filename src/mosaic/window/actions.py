"""The table of actions: menus, palette, keys and the buttons of a run are made from it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import QApplication, QMenu, QWidget

from mosaic.base.worker_registry import policy_workers
from mosaic.contracts.views import RunView
from mosaic.features.disk import window as trash
from mosaic.trainer.client.exports import export_csv, export_episodes
from mosaic.window import file_actions as files
from mosaic.window import run_actions as handlers
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.run_changes import MAX_NAMED_RUNS
from mosaic.window.specs import SUBMENU_SEPARATOR, Action
from mosaic.window.workbench import Workbench

# --- conditions


def _count_targets(at_least: int, at_most: int = sys.maxsize) -> Callable[[Workbench], bool]:
    return lambda workbench: at_least <= len(workbench.target_runs()) <= at_most


_HAS_TARGETS = _count_targets(1)
_HAS_ONE_TARGET = _count_targets(1, 1)
_HAS_TWO_TARGETS = _count_targets(2, 2)


def _has_one_local_target(workbench: Workbench) -> bool:
    return _HAS_ONE_TARGET(workbench) and not workbench.is_remote


def _target_stages(workbench: Workbench) -> set[str]:
    return {view.stage for view in workbench.target_runs()}


def _are_all_finished(workbench: Workbench) -> bool:
    return _target_stages(workbench) == {"finished"}


def _can_compare(workbench: Workbench) -> bool:
    return len(workbench.runs_to_compare()) > 1


def _can_cancel(workbench: Workbench) -> bool:
    return bool(handlers.stoppable_runs(workbench))


def _can_pause(workbench: Workbench) -> bool:
    return bool(_target_stages(workbench).intersection(("running", "paused")))


def _can_resume(workbench: Workbench) -> bool:
    return _HAS_ONE_TARGET(workbench) and is_resumable(workbench.target_runs()[0])


def is_resumable(view: RunView) -> bool:
    """Whether it has ended and can continue from a checkpoint; the dialog asks for the steps."""
    return view.stage == "finished" and view.can_resume(is_extended=True)


def _can_delete(workbench: Workbench) -> bool:
    return bool(trash.deletable_runs(workbench))


def _can_archive(workbench: Workbench) -> bool:
    return any(view.stage == "finished" and not view.is_archived for view in workbench.target_runs())


def _can_unarchive(workbench: Workbench) -> bool:
    return any(view.is_archived for view in workbench.target_runs())


def _has_group(workbench: Workbench) -> bool:
    return len({view.group for view in workbench.target_runs()}) == 1 and bool(workbench.target_runs()[0].group)


def _has_trash(workbench: Workbench) -> bool:
    return bool(workbench.trash.runs)


def _has_policies(workbench: Workbench) -> bool:
    return bool(handlers.runs_to_evaluate(workbench))


def _has_recent_workspaces(workbench: Workbench) -> bool:
    return bool(files.recent_workspaces(workbench))


# --- what the actions of the window do


def open_page(name: str) -> Callable[[Workbench], None]:
    return lambda workbench: workbench.page_requested.emit(name)


def _open_dialog(name: str) -> Callable[[Workbench], None]:
    return lambda workbench: workbench.dialog_requested.emit(name)


def _switch_theme(workbench: Workbench) -> None:
    workbench.settings.put("theme", "light" if theme.is_dark() else "dark")
    workbench.apply_theme()


def _rename(workbench: Workbench) -> None:
    """Edit the name in the list, which is shown for it."""
    run_id = workbench.target_runs()[0].run_id
    dock = workbench.window.findChild(QWidget, "dock.runs") if workbench.window else None
    if dock is not None:
        dock.show()
        dock.raise_()
    workbench.rename_requested.emit(run_id)


def _toggle_ticks(workbench: Workbench) -> None:
    workbench.toggle_ticks([view.run_id for view in workbench.target_runs()])


def _ask_for_groups(verb: str, run: Callable[[Workbench], None]) -> Callable[[Workbench], None]:
    """Ask first where whole groups are selected: not all of their runs may be visible."""

    def ask(workbench: Workbench) -> None:
        count, groups = len(workbench.target_runs()), workbench.marked_groups
        if not groups or count < 2:
            run(workbench)
            return
        question = f"{verb} these {count:,} runs?"
        details = f"Selected as a whole: {', '.join(groups[:MAX_NAMED_RUNS])}"
        ui.confirm(
            workbench.window,
            "group.question",
            verb,
            question,
            details,
            f"{verb} {count:,} runs",
            lambda: run(workbench),
        )

    return ask


def _zoom(change_pt: float) -> Callable[[Workbench], None]:
    def zoom(workbench: Workbench) -> None:
        _set_text_size(workbench, float(workbench.settings.get("font_pt", theme.DEFAULT_PT)) + change_pt)

    return zoom


def _set_text_size(workbench: Workbench, size_pt: float) -> None:
    size_pt = min(max(size_pt, theme.SMALLEST_PT), theme.LARGEST_PT)
    workbench.settings.put("font_pt", size_pt)
    workbench.apply_theme_soon()
    workbench.show_message(f"Size of the text: {size_pt:g} pt")


# --- the tables

EXPORT_MENU = f"Run{SUBMENU_SEPARATOR}Export"
_EXPORT_CSV = partial(files.export, write=export_csv, ending="-metrics.csv", kind="Metrics as a table (*.csv)")
_EXPORT_EPISODES = partial(
    files.export, write=export_episodes, ending="-episodes.jsonl", kind="One object per line (*.jsonl)"
)

_EXPORT_RUNS = Action(
    "run.export_zip", "Export run…", "File", files.export_runs, "", "mdi6.folder-zip-outline",
    lambda workbench: _HAS_TARGETS(workbench) and _are_all_finished(workbench),
    "The whole run as a zip, for another machine; of several runs, one zip each", 1, "Export {} runs…",
    reason=lambda workbench: "Choose runs that have ended" if not _are_all_finished(workbench) else "",
)  # fmt: skip

RUN_ACTION_GROUPS: tuple[tuple[Action, ...], ...] = (
    (
        Action("run.cancel", "Cancel run", "Run", handlers.cancel, "Ctrl+Shift+X", "mdi6.stop", _can_cancel,
               "Stop it; it writes a checkpoint first and can be resumed",
               plural_title="Cancel {} runs…", runs=handlers.stoppable_runs),
        Action("run.pause", "Pause or continue", "Run", _ask_for_groups("Pause or continue", handlers.toggle_pause),
               "Space", "mdi6.pause", _can_pause,
               "Pause a running run, or continue a paused one"),
        Action("run.resume", "Resume with more steps…", "Run", handlers.resume, "", "mdi6.play", _can_resume,
               "Continue from the last checkpoint, in the same run"),
    ),
    (
        Action("run.resubmit", "Resubmit", "Run", _ask_for_groups("Resubmit", handlers.resubmit), "Ctrl+R",
               "mdi6.replay", _HAS_TARGETS, "Start a new run from the same config", plural_title="Resubmit {} runs"),
        Action("run.edit", "Edit and resubmit…", "Run", handlers.edit_and_resubmit, "Ctrl+E", "mdi6.pencil-outline",
               _HAS_ONE_TARGET, "Open the train form, filled from this run"),
        Action("run.diff", "Show differing settings", "Run", handlers.show_settings_diff, "Ctrl+D",
               "mdi6.vector-difference", _HAS_TWO_TARGETS, "Mark two runs to see which settings differ"),
        Action("run.compare", "Compare", "Run", handlers.compare_runs, "Ctrl+Shift+M", "mdi6.compare",
               _can_compare, "Compare the marked or the ticked runs: curves, intervals, differing settings"),
        Action("run.evaluate", "Evaluate…", "Run", handlers.evaluate_runs, "", "mdi6.clipboard-check-outline",
               _has_policies, "Play episodes with its policy on unseen seeds", plural_title="Evaluate {} runs…",
               runs=handlers.runs_to_evaluate),
        Action("run.tick", "Tick for charts", "Run", _toggle_ticks, "T", "mdi6.checkbox-marked-outline", _HAS_TARGETS,
               "Show the curves of ticked runs in Analytics, next to those of the selected run"),
        Action("run.group", "Show group", "Run", handlers.open_group, "Ctrl+G", "mdi6.folder-multiple-outline",
               _has_group, "All runs of this run's group: progress, curves and results by setting"),
    ),
    (
        Action("run.rename", "Rename", "Run", _rename, "F2", "mdi6.rename-outline", _HAS_ONE_TARGET,
               "Edit its name in the list"),
        Action("run.tags", "Tags…", "Run", handlers.edit_tags, "Ctrl+T", "mdi6.tag-outline", _HAS_TARGETS),
        Action("run.note", "Write note", "Run", handlers.write_note, "", "mdi6.note-edit-outline", _HAS_ONE_TARGET),
        Action("run.archive", "Archive", "Run", _ask_for_groups("Archive", handlers.archive), "",
               "mdi6.archive-arrow-down-outline", _can_archive, "Take it out of the list without deleting it"),
        Action("run.unarchive", "Unarchive", "Run", _ask_for_groups("Unarchive", handlers.unarchive), "",
               "mdi6.archive-arrow-up-outline", _can_unarchive),
        Action("run.delete", "Delete…", "Run", trash.delete, "Del", "mdi6.trash-can-outline", _can_delete,
               "Move to the trash; runs that have not ended cannot be deleted", plural_title="Delete {} runs…",
               runs=trash.deletable_runs),
        Action("run.undelete", "Restore deleted runs…", "Run", open_page("trash"), "", "mdi6.delete-restore",
               _has_trash, "The trash: deleted runs are kept for 30 days"),
    ),
    (
        Action("run.folder", "Open folder", "Run", handlers.open_folder, "", "mdi6.folder-open-outline",
               _has_one_local_target),
        Action("run.config", "Open config file", "Run", handlers.open_config, "", "mdi6.code-json",
               _has_one_local_target),
        Action("run.copy_id", "Copy id", "Run", handlers.copy_id, "Ctrl+Shift+C", "mdi6.content-copy", _HAS_TARGETS),
        _EXPORT_RUNS,
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
    Action("file.import", "Import runs…", "File", files.ask_import, "Ctrl+I", "mdi6.tray-arrow-down",
           lambda workbench: not files.import_problem(workbench),
           "Zips made by 'mosaic export' or this menu; or drop them onto the window", 1, reason=files.import_problem),
    Action("file.import_folder", "Import run folder…", "File", files.ask_import_folder, "",
           "mdi6.folder-arrow-down-outline", lambda workbench: not files.import_problem(workbench),
           "The folder of a run, such as one of another workspace", 1, reason=files.import_problem),
    _EXPORT_RUNS,
    Action("file.workspace", "Open workspace…", "File", files.ask_workspace, "Ctrl+O", "mdi6.folder-open-outline",
           tip="Show the runs of another folder in this window", section=2),
    Action("file.recent", "Recent workspaces", "File", files.ask_workspace, "", "mdi6.history", _has_recent_workspaces,
           "Workspaces that were opened before", 2, reason=lambda _: "No other workspace was opened yet",
           choices=files.recent_workspaces),
    Action("app.settings", "Settings", "File", open_page("settings"), "Ctrl+,", "mdi6.cog-outline",
           tip="Theme, size of the text, notifications, shortcuts", section=3),
    Action("app.quit", "Quit", "File", lambda _: QApplication.closeAllWindows(), "Ctrl+Q", "mdi6.exit-to-app",
           tip="Close the workbench; runs continue", section=3),
    Action("edit.undo", "Undo", "Edit", lambda workbench: workbench.undo.undo(), "Ctrl+Z", "mdi6.undo",
           lambda workbench: bool(workbench.undo.title), "Take the last change back",
           reason=lambda _: "Nothing was changed yet", subject=lambda workbench: workbench.undo.title),
    *(replace(action, section=number) for number, group in enumerate(RUN_ACTION_GROUPS, 1) for action in group
      if action is not _EXPORT_RUNS),
    Action("view.search", "Search", "Edit", handlers.search, "Ctrl+F", "mdi6.magnify",
           tip="Search runs, or the log in focus"),
    Action("view.theme", "Switch between light and dark", "View", _switch_theme, "Ctrl+Shift+L",
           "mdi6.theme-light-dark"),
    Action("view.zoom_in", "Larger text", "View", _zoom(1.0), "Ctrl++", "mdi6.magnify-plus-outline",
           second_shortcut="Ctrl+="),
    Action("view.zoom_out", "Smaller text", "View", _zoom(-1.0), "Ctrl+-", "mdi6.magnify-minus-outline"),
    Action("view.zoom_reset", "Default size of the text", "View",
           lambda workbench: _set_text_size(workbench, theme.DEFAULT_PT), "Ctrl+0", "mdi6.format-size"),
    Action("view.full_page", "Full page", "View", lambda workbench: workbench.full_page_requested.emit(), "F11",
           "mdi6.fullscreen", tip="Give the page the room of all panels, and back; or double-click a tab"),
    Action("app.palette", "Command palette", "Tools", _open_dialog("palette"), "Ctrl+K", "mdi6.magnify",
           tip="Find any action or run by typing"),
    Action("app.trainer", "Trainer", "Tools", open_page("trainer"), "Ctrl+Shift+T", "mdi6.server",
           tip="The daemon, its queue and its log"),
    Action("app.trash", "Trash", "Tools", open_page("trash"), "", "mdi6.trash-can-outline",
           tip="Deleted runs: restore them, or delete them for good"),
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
