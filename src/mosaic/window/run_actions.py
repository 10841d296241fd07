"""Handlers of the actions on the selected runs. Answers update the list; errors are shown unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QDialog, QTabBar, QTabWidget, QWidget

from mosaic.base.caller_environment import program_environment
from mosaic.base.formatting import count_noun, run_title, short_id
from mosaic.base.run_payloads import effective_settings
from mosaic.contracts.errors import BadInput
from mosaic.contracts.options import RunKind
from mosaic.contracts.states import STOPPABLE_STAGES
from mosaic.contracts.views import RunView
from mosaic.features.experiments.api import retry_run
from mosaic.features.runs.window_model import SCRIPT_WORKER
from mosaic.features.train.window_parts import ScriptDialog
from mosaic.trainer.client.trainer_client import TrainerClient, new_submission_key
from mosaic.window import widgets as ui
from mosaic.window.form import RunsSubmission, ask_with_trust, show_submitted_runs
from mosaic.window.run_changes import Operation, Reversal, call_for_each, describe_runs, list_titles
from mosaic.window.run_dialogs import ResumeDialog, SettingsDiffDialog, TagsDialog
from mosaic.window.runs import runs_with_policy
from mosaic.window.workbench import Workbench

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
    submitted = partial(show_submitted_runs, workbench)
    ask_with_trust(workbench, RunsSubmission(payloads), submitted, workbench, failed, is_repeatable=True)


def run_script(workbench: Workbench) -> None:
    open_dialog(ScriptDialog(workbench))


def stoppable_runs(workbench: Workbench) -> list[RunView]:
    return [view for view in workbench.target_runs() if view.stage in STOPPABLE_STAGES]


def cancel(workbench: Workbench) -> None:
    cancel_runs(workbench, stoppable_runs(workbench))


def cancel_runs(workbench: Workbench, views: Sequence[RunView]) -> None:
    """Cancel one run at once, if it can continue later; ask before several, or where something would be lost."""
    if len(views) == 1 and not _loses_work(views[0]):
        _cancel(workbench, views)
        return
    asked = {view.run_id for view in views}
    what = "this run" if len(views) == 1 else f"these {len(views):,} runs"
    yes = "Cancel run" if len(views) == 1 else f"Cancel {len(views):,} runs"
    ui.confirm(
        workbench.window,
        "cancel.question",
        "Cancel runs",
        f"Cancel {what}?",
        f"{list_titles([run_title(view) for view in views])}\n\n{_describe_loss(views)}",
        yes,
        lambda: _cancel(workbench, [view for view in workbench.runs.all() if _is_to_stop(view, asked)]),
        "Keep running",
    )


def _loses_work(view: RunView) -> bool:
    """Whether a run is under way that writes no checkpoint: it would have to begin again."""
    return view.worker == SCRIPT_WORKER and view.stage != "queued" and view.checkpoint_step is None


def _describe_loss(views: Sequence[RunView]) -> str:
    lost = count_noun(sum(map(_loses_work, views)), "script")
    has_training = any(view.kind == RunKind.TRAIN and view.stage != "queued" for view in views)
    sentences = {
        "Trainings write a checkpoint and can be resumed from it.": has_training and not all(map(_loses_work, views)),
        f"What {lost} trained is lost, as scripts are not resumed; logs and curves are kept.": lost[0] != "0",
        "Runs that wait can be queued again by Undo.": any(view.stage == "queued" for view in views),
    }
    return " ".join(text for text, is_true in sentences.items() if is_true) or "Results so far are kept."


def _is_to_stop(view: RunView, asked: set[str]) -> bool:
    """Whether it was in the question, and has not ended meanwhile."""
    return view.run_id in asked and view.stage in STOPPABLE_STAGES


def _cancel(workbench: Workbench, views: Sequence[RunView]) -> None:
    queued = [view for view in views if view.stage == "queued"]
    started = [view for view in views if view.stage != "queued"]
    if queued:  # first: they would start in the slots that become free
        others = f" {count_noun(len(started), 'other run')}: {_stop_text(started)}" if started else ""
        back = Reversal("cancel {runs} of the queue", _queue_again, "{runs}: queued again.")
        call_for_each(workbench, queued, _stop, "{runs}: taken out of the queue." + others, reversal=back)
    if started:  # a message of its own would hide the one with the button Undo
        call_for_each(workbench, started, _stop, "" if queued else _describe_stop)


def _stop(view: RunView, trainer: TrainerClient) -> RunView:
    return trainer.cancel_run(view.run_id)


def _queue_again(view: RunView, trainer: TrainerClient) -> RunView:
    """Submit a run that was cancelled in the queue once more, with what was changed of it while it waited."""
    if view.experiment is not None:
        again = retry_run(trainer, view)
    else:
        config = trainer.config(view.run_id)
        again = trainer.submit(config, program_environment(config), key=new_submission_key())
    labels = (again.tags, again.notes, again.run_name, again.priority)
    if labels == (view.tags, view.notes, view.run_name, view.priority):
        return again
    return trainer.annotate_run(
        again.run_id,
        add_tags=[tag for tag in view.tags if tag not in again.tags],
        remove_tags=[tag for tag in again.tags if tag not in view.tags],
        notes=view.notes or "",
        run_name=view.run_name or "",
        priority=view.priority if again.stage == "queued" else None,
    )


def toggle_pause(workbench: Workbench) -> None:
    """Pauses the running target runs; if there are none, continues the paused ones."""
    targets = workbench.target_runs()
    running = [view for view in targets if view.stage == "running"]
    if running:
        call_for_each(workbench, running, lambda view, trainer: trainer.pause_run(view.run_id), _describe_pause)
    else:
        paused = [view for view in targets if view.stage == "paused"]
        call_for_each(workbench, paused, lambda view, trainer: trainer.resume(view.run_id), "{runs}: continuing.")


def _describe_pause(views: Sequence[RunView]) -> str:
    if any(view.stage == "running" for view in views):
        return f"{describe_runs(views)}: pause requested."
    is_paused = all(view.stage == "paused" for view in views)
    return f"{describe_runs(views)}: paused. Space in the list of runs continues." if is_paused else ""


def _describe_stop(views: Sequence[RunView]) -> str:
    if all(view.stage == "finished" for view in views):
        return ""
    return f"{describe_runs(views)}: {_stop_text(views)}"


def _stop_text(views: Sequence[RunView]) -> str:
    has_training = any(view.kind == RunKind.TRAIN for view in views)
    return "stop requested, with a checkpoint where it can." if has_training else "stop requested."


def resume(workbench: Workbench) -> None:
    view = workbench.target_runs()[0]
    dialog = ResumeDialog(view, workbench.window)

    def resume_at(steps: float) -> None:
        def then(resumed: RunView) -> None:
            workbench.runs.update([resumed])
            workbench.show_message(f"{describe_runs([resumed])}: resumed.", "good")

        def call(trainer: TrainerClient, is_trusted: bool) -> RunView:
            return trainer.resume(view.run_id, int(steps) or None, is_trusted)

        ask_with_trust(workbench, call, then, workbench)

    dialog.steps_chosen.connect(resume_at)
    open_dialog(dialog)


def resubmit(workbench: Workbench) -> None:
    views = workbench.target_runs()

    def submit_again(run_id: str, key: str, trainer: TrainerClient, is_trusted: bool) -> RunView:
        config = trainer.config(run_id)
        return trainer.submit(config, program_environment(config), is_trusted, key)

    def then(view: RunView) -> None:
        workbench.runs.update([view])
        workbench.runs_submitted.emit([view.run_id])
        workbench.show_message(f"Submitted again as {short_id(view.run_id)}.", "good")
        if len(views) == 1:
            workbench.select(view.run_id)

    for view in views:
        call = partial(submit_again, view.run_id, new_submission_key())
        ask_with_trust(workbench, call, then, workbench, is_repeatable=True)


def retry_runs(workbench: Workbench, views: Sequence[RunView]) -> None:
    """Submit runs of an experiment again, each as its next attempt."""
    done: list[RunView] = []

    def then(view: RunView) -> None:
        workbench.runs.update([view])
        workbench.runs_submitted.emit([view.run_id])
        done.append(view)
        if len(done) == len(views):
            workbench.show_message(f"{describe_runs(done)}: submitted again.", "good")

    for view in views:
        ask_with_trust(workbench, partial(_retry, view), then, workbench, is_repeatable=True)


def _retry(view: RunView, trainer: TrainerClient, is_trusted: bool) -> RunView:
    return retry_run(trainer, view, is_trusted)


def edit_and_resubmit(workbench: Workbench) -> None:
    run_id = workbench.target_runs()[0].run_id
    open_form = partial(workbench.edit_requested.emit, run_id)
    workbench.ask(lambda trainer: trainer.config(run_id), open_form, workbench)


def show_settings_diff(workbench: Workbench) -> None:
    views = workbench.target_runs()
    window = workbench.window

    def read(trainer: TrainerClient) -> list[dict[str, Any]]:
        return [effective_settings(trainer.config(view.run_id)) for view in views]

    workbench.ask(read, lambda settings: open_dialog(SettingsDiffDialog(views, settings, window)), window)


def compare_runs(workbench: Workbench) -> None:
    workbench.comparison_requested.emit([view.run_id for view in workbench.runs_to_compare()])


def runs_to_evaluate(workbench: Workbench) -> list[RunView]:
    """The target runs that have trained a policy."""
    return runs_with_policy(workbench.target_runs())


def evaluate_runs(workbench: Workbench) -> None:
    workbench.evaluation_requested.emit([view.run_id for view in runs_to_evaluate(workbench)])


def show_runs(workbench: Workbench, views: Sequence[RunView]) -> None:
    """Mark runs in the list and show the first."""
    known = [view.run_id for view in views if workbench.runs.get(view.run_id) is not None]
    if known:
        workbench.select(known[0])
        workbench.mark(workbench.runs.newest_first(known))


def open_group(workbench: Workbench) -> None:
    """Show the group of the target run."""
    if group := workbench.target_runs()[0].group:
        workbench.group_requested.emit(group)


# --- labels


def edit_tags(workbench: Workbench) -> None:
    views = workbench.target_runs()
    known = {tag for view in workbench.runs.all() for tag in view.tags or ()}
    dialog = TagsDialog(views, sorted(known), workbench.window)

    def change(added: list[str], removed: list[str]) -> None:
        def add_and_remove(view: RunView, trainer: TrainerClient) -> RunView:
            return trainer.annotate_run(view.run_id, add_tags=added, remove_tags=removed)

        def put_back(view: RunView, trainer: TrainerClient) -> RunView:
            new = [tag for tag in added if tag not in view.tags]
            lost = [tag for tag in removed if tag in view.tags]
            return trainer.annotate_run(view.run_id, add_tags=lost, remove_tags=new)

        back = Reversal("change the tags of {runs}", put_back, "{runs}: tags as before.")
        call_for_each(workbench, views, add_and_remove, "{runs}: tags changed.", "good", back)

    dialog.tags_changed.connect(change)
    open_dialog(dialog)


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
    """Runs that have not ended stay in the list."""
    views = [view for view in workbench.target_runs() if view.stage == "finished" or not is_archived]
    archive_runs(workbench, views, is_archived)


def archive_runs(workbench: Workbench, targets: Sequence[RunView], is_archived: bool = True) -> None:
    def set_archived(is_archived: bool) -> Operation:
        return lambda view, trainer: trainer.annotate_run(view.run_id, is_archived=is_archived)

    views = [view for view in targets if bool(view.is_archived) is not is_archived]
    texts = "{runs}: archived; the box symbol above the list shows such runs.", "{runs}: in the list again."
    verbs = "archive {runs}", "unarchive {runs}"
    back = Reversal(verbs[not is_archived], set_archived(not is_archived), texts[is_archived])
    call_for_each(workbench, views, set_archived(is_archived), texts[not is_archived], "good", back)


def unarchive(workbench: Workbench) -> None:
    archive(workbench, is_archived=False)


# --- files


def open_folder(workbench: Workbench) -> None:
    workbench.open_path(Path(workbench.target_runs()[0].run_dir))


def open_config(workbench: Workbench) -> None:
    workbench.open_path(workbench.workspace.run(workbench.target_runs()[0].run_id).config)


def copy_id(workbench: Workbench) -> None:
    ids = [view.run_id for view in workbench.target_runs()]
    QGuiApplication.clipboard().setText("\n".join(ids))
    workbench.show_message(f"Copied {ids[0]}" if len(ids) == 1 else f"Copied {len(ids)} ids")


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
    if isinstance(widget, QTabBar) and isinstance(tabs := widget.parentWidget(), QTabWidget):
        shown = tabs.currentWidget().findChildren(QWidget)
        widget = next((child for child in shown if hasattr(child, "start_search")), tabs)
    while widget is not None and not hasattr(widget, "start_search"):
        widget = widget.parentWidget()
    return widget


def open_dialog(dialog: QDialog) -> None:
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.open()
