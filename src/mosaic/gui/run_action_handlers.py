"""Handlers of the actions on the selected runs. Answers update the list; errors are shown unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QDialog, QTabWidget, QWidget

from mosaic.client import TrainerClient
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.options import RunKind
from mosaic.contracts.views import RunView
from mosaic.formatting import run_title, short_id
from mosaic.gui.forms.script_dialog import ScriptDialog
from mosaic.gui.forms.submit_controller import show_submitted_runs
from mosaic.gui.forms.trust_question import ask_with_trust
from mosaic.gui.models.training import submit_all
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.run_dialogs import Export, ResumeDialog, SettingsDiffDialog, TagsDialog, write_export
from mosaic.gui.workbench import Workbench
from mosaic.submission.caller_environment import program_environment
from mosaic.submission.run_payloads import effective_settings

MAX_NAMED_RUNS = 8
"""Runs that a question names one by one."""
STOPPABLE_STAGES = ("queued", "starting", "running", "paused")


Operation = Callable[[str, TrainerClient], "RunView"]
"""A call of the trainer about one run."""


# --- starting and stopping


def train_now(workbench: Workbench) -> None:
    """Submits the last state of the train form."""

    def failed(error: Exception) -> None:
        workbench.show_error(error)
        workbench.form_requested.emit(None)

    try:
        payloads = workbench.training.payloads()
    except BadInput as error:
        failed(error)
        return
    workbench.training.save()
    ask_with_trust(workbench, partial(submit_all, payloads), partial(show_submitted_runs, workbench), workbench, failed)


def run_script(workbench: Workbench) -> None:
    _open_dialog(ScriptDialog(workbench))


def _call_for_each(
    workbench: Workbench, views: Sequence[RunView], operation: Operation, message: str, kind: str = "info"
) -> None:
    """Calls the trainer for each run; shows the answers at once, and one message when all have arrived."""
    done: list[RunView] = []

    def then(view: RunView) -> None:
        workbench.runs.update([view])
        done.append(view)
        if len(done) == len(views):
            workbench.show_message(message.format(runs=_describe_runs(done)), kind)

    for view in views:
        workbench.ask(partial(operation, view.run_id), then, workbench)


def _describe_runs(views: Sequence[RunView]) -> str:
    return f"Run {short_id(views[0].run_id)}" if len(views) == 1 else f"{len(views)} runs"


def _list_titles(views: Sequence[RunView]) -> str:
    """The titles of the runs, one per line, for a question."""
    titles = [run_title(view) for view in views[:MAX_NAMED_RUNS]]
    if len(views) > MAX_NAMED_RUNS:
        titles.append(f"and {len(views) - MAX_NAMED_RUNS:,} more")
    return "\n".join(titles)


def stoppable_runs(workbench: Workbench) -> list[RunView]:
    return [view for view in workbench.target_runs() if view.stage in STOPPABLE_STAGES]


def cancel(workbench: Workbench) -> None:
    """Cancel one run at once; ask before several, as that cannot be undone."""
    views = stoppable_runs(workbench)
    if len(views) == 1:
        _cancel(workbench, views)
        return
    asked = {view.run_id for view in views}
    ui.confirm(
        workbench.window,
        "cancel.question",
        "Cancel runs",
        f"Cancel these {len(views):,} runs?",
        f"{_list_titles(views)}\n\nThis cannot be undone. Runs with a checkpoint can be resumed from it.",
        f"Cancel {len(views):,} runs",
        lambda: _cancel(workbench, [view for view in stoppable_runs(workbench) if view.run_id in asked]),
        "Keep running",
    )


def _cancel(workbench: Workbench, views: Sequence[RunView]) -> None:
    has_training = any(view.kind == RunKind.TRAIN for view in views)
    message = "{runs}: stopping, with a checkpoint where it can." if has_training else "{runs}: stopping."
    _call_for_each(workbench, views, lambda run_id, trainer: trainer.cancel(run_id), message)


def toggle_pause(workbench: Workbench) -> None:
    """Pauses the running target runs; if there are none, continues the paused ones."""
    targets = workbench.target_runs()
    running = [view for view in targets if view.stage == "running"]
    if running:
        message = "{runs}: pausing. Space in the list of runs continues."
        _call_for_each(workbench, running, lambda run_id, trainer: trainer.pause(run_id), message)
    else:
        paused = [view for view in targets if view.stage == "paused"]
        _call_for_each(workbench, paused, lambda run_id, trainer: trainer.resume(run_id), "{runs}: continuing.")


def resume(workbench: Workbench) -> None:
    view = workbench.target_runs()[0]
    dialog = ResumeDialog(view, workbench.window)

    def resume_at(steps: float) -> None:
        def then(resumed: RunView) -> None:
            workbench.runs.update([resumed])
            workbench.show_message(f"{_describe_runs([resumed])}: resumed.", "good")

        def call(trainer: TrainerClient, is_trusted: bool) -> RunView:
            return trainer.resume(view.run_id, int(steps) or None, is_trusted)

        ask_with_trust(workbench, call, then, workbench)

    dialog.steps_chosen.connect(resume_at)
    _open_dialog(dialog)


def resubmit(workbench: Workbench) -> None:
    views = workbench.target_runs()

    def submit_again(run_id: str, trainer: TrainerClient, is_trusted: bool) -> RunView:
        config = trainer.config(run_id)
        return trainer.submit(config, program_environment(config), is_trusted)

    def then(view: RunView) -> None:
        workbench.runs.update([view])
        workbench.show_message(f"Submitted again as {short_id(view.run_id)}.", "good")
        if len(views) == 1:
            workbench.select(view.run_id)

    for view in views:
        ask_with_trust(workbench, partial(submit_again, view.run_id), then, workbench)


def edit_and_resubmit(workbench: Workbench) -> None:
    run_id = workbench.target_runs()[0].run_id
    workbench.ask(lambda trainer: trainer.config(run_id), workbench.form_requested.emit, workbench)


def show_settings_diff(workbench: Workbench) -> None:
    views = workbench.target_runs()
    window = workbench.window

    def read(trainer: TrainerClient) -> list[dict[str, Any]]:
        return [effective_settings(trainer.config(view.run_id)) for view in views]

    workbench.ask(read, lambda settings: _open_dialog(SettingsDiffDialog(views, settings, window)), window)


def compare_runs(workbench: Workbench) -> None:
    workbench.comparison_requested.emit([view.run_id for view in workbench.target_runs()])


# --- labels


def edit_tags(workbench: Workbench) -> None:
    views = workbench.target_runs()
    known = {tag for view in workbench.runs.all() for tag in view.tags or ()}
    dialog = TagsDialog(views, sorted(known), workbench.window)

    def change(added: list[str], removed: list[str]) -> None:
        _call_for_each(
            workbench,
            views,
            lambda run_id, trainer: trainer.annotate(run_id, add_tags=added, remove_tags=removed),
            "{runs}: tags changed.",
            "good",
        )

    dialog.tags_changed.connect(change)
    _open_dialog(dialog)


def write_note(workbench: Workbench) -> None:
    """Open the note of the selected run."""
    view = workbench.target_runs()[0]
    workbench.select(view.run_id)
    window = workbench.window
    dock = window.findChild(QWidget, "dock.notes") if window else None
    field = window.findChild(QWidget, "notes.run") if window else None
    tabs = window.findChild(QTabWidget, "notes.tabs") if window else None
    if dock is not None and field is not None and tabs is not None:
        dock.show()
        dock.raise_()
        tabs.setCurrentWidget(field)
        field.setFocus(Qt.FocusReason.ShortcutFocusReason)


def archive(workbench: Workbench, is_archived: bool = True) -> None:
    views = [view for view in workbench.target_runs() if bool(view.is_archived) is not is_archived]
    _call_for_each(
        workbench,
        views,
        lambda run_id, trainer: trainer.annotate(run_id, is_archived=is_archived),
        "{runs}: archived; the box symbol above the list shows such runs."
        if is_archived
        else "{runs}: in the list again.",
        "good",
    )


def unarchive(workbench: Workbench) -> None:
    archive(workbench, is_archived=False)


def delete(workbench: Workbench) -> None:
    """Ask, naming what will be deleted; it can be restored from the trash for 30 days."""
    views = [view for view in workbench.target_runs() if view.stage == "finished"]
    what = "this run" if len(views) == 1 else f"these {len(views):,} runs"
    ui.confirm(
        workbench.window,
        "delete.question",
        "Delete runs",
        f"Move {what} to the trash?",
        f"{_list_titles(views)}\n\n{'It' if len(views) == 1 else 'They'} can be restored from the trash for 30 days.",
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
        workbench.settings.put_for_workspace("trashed", [view.run_dir for view in gone])
        text = f"{_describe_runs(gone)}: in the trash. {result.problem}".rstrip()
        workbench.offer_action(text, "Undo", lambda: undelete(workbench))

    workbench.ask(lambda trainer: try_each(trainer.delete, run_ids), then, workbench)


def undelete(workbench: Workbench) -> None:
    """Restores the runs that were deleted last from the trash."""
    paths = workbench.settings.get_for_workspace("trashed", [])

    def then(result: Attempts) -> None:
        restored = list(result.views.values())
        workbench.settings.put_for_workspace("trashed", [path for path in paths if path not in result.views])
        workbench.runs.update(restored)
        if len(restored) == 1:
            workbench.select(restored[0].run_id)
        if result.problem:
            workbench.show_message(result.problem, "bad")
        else:
            workbench.show_message(f"{_describe_runs(restored)}: back in the list.", "good")

    workbench.ask(lambda trainer: try_each(trainer.import_run, paths), then, workbench)


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


# --- files


def open_folder(workbench: Workbench) -> None:
    workbench.open_path(Path(workbench.target_runs()[0].run_dir))


def open_config(workbench: Workbench) -> None:
    workbench.open_path(workbench.workspace.run(workbench.target_runs()[0].run_id).config)


def copy_id(workbench: Workbench) -> None:
    ids = [view.run_id for view in workbench.target_runs()]
    QGuiApplication.clipboard().setText("\n".join(ids))
    workbench.show_message(f"Copied {ids[0]}" if len(ids) == 1 else f"Copied {len(ids)} ids")


def export(workbench: Workbench, write: Export, ending: str, kind: str, view: RunView | None = None) -> None:
    """Asks for a path and exports a run, by default the target run."""
    run = view or workbench.target_runs()[0]
    folder = Path(workbench.settings.get("export.folder", str(Path.home())))
    ui.open_save_dialog(
        workbench.window,
        "export.file",
        f"Export {run_title(run)}",
        folder / f"{run.algo or run.worker}-{short_id(run.run_id)}{ending}",
        kind,
        partial(write_export, workbench, write, run),
    )


# --- the window


def search(workbench: Workbench) -> None:
    """Starts the search of the focused panel, else that of the list of runs."""
    panel = _searchable_parent(QApplication.focusWidget())
    if panel is None and workbench.window is not None:
        dock = workbench.window.findChild(QWidget, "dock.runs")
        if dock is not None:
            dock.show()
        panel = _searchable_parent(workbench.window.findChild(QWidget, "runs.search"))
    if panel is not None:
        panel.start_search()


def _searchable_parent(widget: Any) -> Any:
    while widget is not None and not hasattr(widget, "start_search"):
        widget = widget.parentWidget()
    return widget


def _open_dialog(dialog: QDialog) -> None:
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.open()
