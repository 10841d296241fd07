"""What is done with the runs that are chosen. Answers come back to the list; errors are told as they stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices, QGuiApplication
from PySide6.QtWidgets import QApplication, QFileDialog, QMessageBox, QTabWidget, QWidget

from mosaic.client import Trainer
from mosaic.gui.exports import GivenUp, Task
from mosaic.gui.views.made import named
from mosaic.gui.views.run_dialogs import ResumeDialog, SettingsDiff, TagsDialog
from mosaic.gui.views.task import TaskDialog
from mosaic.gui.views.words import run_title, short_id
from mosaic.gui.workbench import Json, Workbench
from mosaic.plugins.settings import settings_of

NAMED_MOST = 8
"""Runs that a question names one by one."""
CAN_STOP = ("queued", "starting", "running", "paused")


# --- steering


def _each(
    workbench: Workbench, views: Sequence[Json], verb: Callable[[Trainer, str], Json], said: str, kind: str = "info"
) -> None:
    """Asks for each run; the answers are shown at once, and one sentence about them when all are there."""
    done: list[Json] = []

    def then(view: Json) -> None:
        workbench.runs.update([view])
        done.append(view)
        if len(done) == len(views):
            workbench.say(said.format(runs=_named(done)), kind)

    for view in views:
        workbench.ask(partial(_call, verb, view["run_id"]), then, workbench)


def _call(verb: Callable[[Trainer, str], Json], run_id: str, trainer: Trainer) -> Json:
    return verb(trainer, run_id)


def _named(views: Sequence[Json]) -> str:
    return f"Run {short_id(views[0]['run_id'])}" if len(views) == 1 else f"{len(views)} runs"


def cancel(workbench: Workbench) -> None:
    views = [view for view in workbench.chosen() if view["stage"] in CAN_STOP]
    said = "{runs}: stopping, with a checkpoint where it can."
    _each(workbench, views, lambda trainer, run: trainer.cancel(run), said)


def toggle_pause(workbench: Workbench) -> None:
    """Pauses what runs; where nothing does, lets what is paused go on."""
    chosen = workbench.chosen()
    running = [view for view in chosen if view["stage"] == "running"]
    if running:
        _each(workbench, running, lambda trainer, run: trainer.pause(run), "{runs}: pausing. Space lets it go on.")
    else:
        paused = [view for view in chosen if view["stage"] == "paused"]
        _each(workbench, paused, lambda trainer, run: trainer.resume(run), "{runs}: going on.")


def resume(workbench: Workbench) -> None:
    view = workbench.chosen()[0]
    dialog = ResumeDialog(view, _window())
    dialog.wanted.connect(
        lambda steps: _each(
            workbench, [view], lambda trainer, run: trainer.resume(run, int(steps) or None), "{runs}: goes on.", "good"
        )
    )
    _open(dialog)


def resubmit(workbench: Workbench) -> None:
    views = workbench.chosen()

    def again(trainer: Trainer, run_id: str) -> Json:
        return trainer.submit(trainer.config(run_id))

    def then(view: Json) -> None:
        workbench.runs.update([view])
        workbench.say(f"Submitted again as {short_id(view['run_id'])}.", "good")
        if len(views) == 1:
            workbench.select(view["run_id"])

    for view in views:
        workbench.ask(partial(_call, again, view["run_id"]), then, workbench)


def edit(workbench: Workbench) -> None:
    run_id = workbench.chosen()[0]["run_id"]
    workbench.ask(lambda trainer: trainer.config(run_id), workbench.form_wanted.emit, workbench)


def diff(workbench: Workbench) -> None:
    views = workbench.chosen()
    window = _window()

    def read(trainer: Trainer) -> list[Json]:
        return [settings_of(trainer.config(view["run_id"])) for view in views]

    workbench.ask(read, lambda found: _open(SettingsDiff(views, found, window)), window)


def compare(workbench: Workbench) -> None:
    workbench.compare_wanted.emit([view["run_id"] for view in workbench.chosen()])


# --- labels


def edit_tags(workbench: Workbench) -> None:
    views = workbench.chosen()
    known = {tag for view in workbench.runs.all() for tag in view.get("tags") or ()}
    dialog = TagsDialog(views, sorted(known), _window())

    def change(added: list[str], removed: list[str]) -> None:
        _each(
            workbench,
            views,
            lambda trainer, run: trainer.annotate(run, add_tags=added, remove_tags=removed),
            "{runs}: tags changed.",
            "good",
        )

    dialog.wanted.connect(change)
    _open(dialog)


def write_note(workbench: Workbench) -> None:
    """Goes to the note of the run that is looked at."""
    view = workbench.chosen()[0]
    workbench.select(view["run_id"])
    window = _window()
    dock = window.findChild(QWidget, "dock.notes") if window else None
    field = window.findChild(QWidget, "notes.run") if window else None
    tabs = window.findChild(QTabWidget, "notes.tabs") if window else None
    if dock is not None and field is not None and tabs is not None:
        dock.show()
        dock.raise_()
        tabs.setCurrentWidget(field)
        field.setFocus(Qt.FocusReason.ShortcutFocusReason)


def archive(workbench: Workbench, is_archived: bool = True) -> None:
    views = [view for view in workbench.chosen() if bool(view.get("is_archived")) is not is_archived]
    _each(
        workbench,
        views,
        lambda trainer, run: trainer.annotate(run, is_archived=is_archived),
        "{runs}: archived; the box symbol above the list shows such runs."
        if is_archived
        else "{runs}: in the list again.",
        "good",
    )


def unarchive(workbench: Workbench) -> None:
    archive(workbench, is_archived=False)


def delete(workbench: Workbench) -> None:
    """Asks, naming what goes; it can be brought back from the trash for 30 days."""
    views = [view for view in workbench.chosen() if view["stage"] == "finished"]
    names = [run_title(view) for view in views[:NAMED_MOST]]
    if len(views) > NAMED_MOST:
        names.append(f"and {len(views) - NAMED_MOST} more")
    what = "this run" if len(views) == 1 else f"these {len(views)} runs"
    question = named(QMessageBox(_window()), "delete.question")
    question.setWindowTitle("Delete runs")
    question.setText(f"Move {what} to the trash?")
    question.setInformativeText("\n".join(names) + "\n\nThe trash keeps it for 30 days.")
    yes = named(question.addButton("Move to trash", QMessageBox.ButtonRole.DestructiveRole), "delete.yes")
    no = question.addButton("Keep", QMessageBox.ButtonRole.RejectRole)
    question.setDefaultButton(no)
    question.setEscapeButton(no)
    yes.clicked.connect(lambda: _delete(workbench, [view["run_id"] for view in views]))
    _open(question)


def _delete(workbench: Workbench, run_ids: list[str]) -> None:
    def call(trainer: Trainer) -> list[Json]:
        return [trainer.delete(run_id) for run_id in run_ids]

    def then(gone: list[Json]) -> None:
        workbench.runs.forget(set(run_ids))
        workbench.settings.put_here("trashed", [view["run_dir"] for view in gone])
        workbench.offer(f"{_named(gone)}: in the trash.", "Undo", lambda: bring_back(workbench))

    workbench.ask(call, then, workbench)


def bring_back(workbench: Workbench) -> None:
    """What was deleted last comes back from the trash."""
    paths = workbench.settings.get_here("trashed", [])
    workbench.settings.put_here("trashed", [])

    def then(views: list[Json]) -> None:
        workbench.runs.update(views)
        workbench.say(f"{_named(views)}: back in the list.", "good")
        if len(views) == 1:
            workbench.select(views[0]["run_id"])

    workbench.ask(lambda trainer: [trainer.import_run(path) for path in paths], then, workbench)


# --- files


def open_folder(workbench: Workbench) -> None:
    _show_path(workbench, Path(workbench.chosen()[0]["run_dir"]))


def open_config(workbench: Workbench) -> None:
    _show_path(workbench, workbench.workspace.run(workbench.chosen()[0]["run_id"]).config)


def _show_path(workbench: Workbench, path: Path) -> None:
    if not QDesktopServices.openUrl(QUrl.fromLocalFile(str(path))):
        workbench.say(f"No program is set to open {path}.", "warning")


def copy_id(workbench: Workbench) -> None:
    ids = [view["run_id"] for view in workbench.chosen()]
    QGuiApplication.clipboard().setText("\n".join(ids))
    workbench.say(f"Copied {ids[0]}" if len(ids) == 1 else f"Copied {len(ids)} ids")


def export(workbench: Workbench, write: Callable[[Trainer, Json, Path, Task], None], ending: str, kind: str) -> None:
    view = workbench.chosen()[0]
    folder = Path(workbench.settings.get("export.folder", str(Path.home())))
    name = f"{view.get('algo') or view['worker']}-{short_id(view['run_id'])}{ending}"
    dialog = named(QFileDialog(_window(), f"Export {run_title(view)}", str(folder / name), kind), "export.file")
    dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
    dialog.setDefaultSuffix(ending.rpartition(".")[2])
    dialog.fileSelected.connect(lambda path: write_export(workbench, write, view, Path(path)))
    _open(dialog)


def write_export(
    workbench: Workbench, write: Callable[[Trainer, Json, Path, Task], None], view: Json, path: Path
) -> None:
    workbench.settings.put("export.folder", str(path.parent))
    task = Task(f"Writing {path.name}")
    progress = TaskDialog(task, _window())

    def then(_: Any) -> None:
        progress.end()
        workbench.say(f"Wrote {path}", "good")

    def failed(error: Exception) -> None:
        progress.end()
        workbench.say(str(error), "info" if isinstance(error, GivenUp) else "bad")

    workbench.bridge.ask(lambda trainer: write(trainer, view, path, task), then, failed, progress)


# --- windows


def search(_: Workbench) -> None:
    """Whatever is in focus searches itself where it can, else the list of runs."""
    widget: Any = QApplication.focusWidget()
    while widget is not None and not hasattr(widget, "start_search"):
        widget = widget.parentWidget()
    if widget is None and (window := _window()) is not None:
        dock = window.findChild(QWidget, "dock.runs")
        if dock is not None:
            dock.show()
        field = window.findChild(QWidget, "runs.search")
        widget = field
        while widget is not None and not hasattr(widget, "start_search"):
            widget = widget.parentWidget()
    if widget is not None:
        widget.start_search()


def _window() -> QWidget | None:
    """The one that questions stand before."""
    active = QApplication.activeWindow()
    if active is not None and active.objectName() == "window":
        return active
    return next((widget for widget in QApplication.topLevelWidgets() if widget.objectName() == "window"), None)


def _open(dialog: Any) -> None:
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.open()
