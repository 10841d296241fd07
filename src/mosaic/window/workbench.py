"""What panels and actions receive: models, background calls, and signals for navigation and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QTimer, QUrl, Signal
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QApplication, QWidget

from mosaic.base import user_presets
from mosaic.base.user_presets import Preset
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import Workspace
from mosaic.contracts.views import DaemonStatus, RunView
from mosaic.features.disk.window_model import Trash
from mosaic.features.train.window_model import Training
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import theme
from mosaic.window.bridge import Bridge
from mosaic.window.curves import RunSeries
from mosaic.window.environments import WorkerEnvironments
from mosaic.window.events import EventLog
from mosaic.window.lanes import Recordings
from mosaic.window.runs import MAX_TICKED, Notes, RunsModel, Ticks
from mosaic.window.settings import GuiSettings

# --- What was changed last in the window and how to take it back.


MAX_CHANGES = 20


@dataclass(frozen=True, eq=False)
class Change:
    """Something that can be taken back."""

    title: str
    """As in `Undo: delete 3 runs`."""
    undo: Callable[[], None]
    key: str = ""
    """Of a change in several steps, such as a note that is saved while it is typed; empty: it has one step."""


class UndoStack(QObject):
    changed = Signal()
    """What would be taken back next has changed."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._changes: list[Change] = []

    @property
    def title(self) -> str:
        """Of the last change; empty where there is none."""
        return self._changes[-1].title if self._changes else ""

    def push(self, title: str, undo: Callable[[], None], key: str = "") -> Change:
        """Add a change; a further step of the last one is taken back together with it."""
        last = self._changes[-1] if self._changes else None
        if last is not None and key and last.key == key:
            return last
        change = Change(title, undo, key)
        self._changes = [*self._changes[1 - MAX_CHANGES :], change]
        self.changed.emit()
        return change

    def take_back(self, change: Change) -> None:
        """Take a change back, once."""
        if change in self._changes:
            self._changes.remove(change)
            self.changed.emit()
            change.undo()

    def undo(self) -> None:
        """Take the last change back."""
        if self._changes:
            self.take_back(self._changes[-1])


# --- What panels and actions receive: models, background calls, and signals for navigation and messages.


MAX_CACHED_SERIES = 64
THEME_DELAY_MS = 40


class Workbench(QObject):
    page_requested = Signal(str)
    """Show the page with this id, such as `train` or `trash`: see `panels/__init__.py`."""
    tab_requested = Signal(str)
    """Show this tab of the run page."""
    selection_changed = Signal(object)
    """The selected run has changed: its id, or None."""
    marks_changed = Signal(list)
    """The runs that are marked in the list (several may be), newest first."""
    form_requested = Signal(object)
    """Open the train form, filled from this payload; None: as it was left."""
    edit_requested = Signal(str, object)
    """Open the form with the settings of this run, whose payload it is."""
    runs_submitted = Signal(list)
    """These runs were submitted in this window: the list shows them, whatever is searched for."""
    rename_requested = Signal(str)
    """Edit the name of this run in the list."""
    comparison_requested = Signal(list)
    """Put these runs together on the compare page."""
    group_requested = Signal(str)
    """Show the group of runs with this name."""
    sweep_requested = Signal(str)
    """Show the sweep with this name."""
    full_page_requested = Signal()
    """Give the page the room of all panels, or bring the panels back."""
    message_posted = Signal(str, str)
    """A passing message and its kind: info, good, warning or bad."""
    request_posted = Signal(object)
    """A passing message that follows the runs: a function that returns its text of now; empty: nothing to show."""
    action_offered = Signal(str, str, object)
    """A passing message with a button: the text, the button's title, and what it does."""
    dialog_requested = Signal(str)
    """Open this dialog: palette, help, shortcuts, about."""
    theme_changed = Signal()
    """Colors or sizes have changed: custom-painted widgets must repaint."""
    run_colors_changed = Signal()
    """Runs got other colors, as they are shown together."""
    evaluation_requested = Signal(list)
    """Open the form that evaluates the policies of these runs."""
    workspace_requested = Signal(object)
    """Close this window and open one on the workspace in this folder."""
    closing = Signal()
    """The window is closing: everything started for it must end now."""

    def __init__(
        self, workspace: Workspace, bridge: Bridge, settings: GuiSettings, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self.workspace = workspace
        self.bridge = bridge
        self.settings = settings
        theme.run_colors.load(settings.get_for_workspace("colors"))
        self.runs = RunsModel(bridge, self)
        self.ticks = Ticks(self.runs, settings, self)
        self.events = EventLog(bridge, self)
        self.notes = Notes(bridge, self)
        self.recordings = Recordings(bridge, self)
        self.training = Training(settings, self)
        self.trash = Trash(bridge, self.runs, self)
        self.undo = UndoStack(self)
        self.environments = WorkerEnvironments(bridge, self)
        self.status: DaemonStatus | None = None
        """The daemon's last status; None while there is no connection."""
        self.selection: str | None = None
        self.marks: list[str] = []
        self.marked_groups: list[str] = []
        """The groups whose rows are selected in the list: their runs are among the marked ones."""
        self.window: QWidget | None = None
        """The main window, the parent of dialogs."""
        self.is_remote = False
        """Whether the trainer is on another machine: its folders and shared memory are not accessible here."""
        self.trainer_name = ""
        """Of that trainer: its profile's, or its address."""
        self._theme_timer = QTimer(self, interval=THEME_DELAY_MS, singleShot=True)
        self._theme_timer.timeout.connect(self.apply_theme)
        self._series: dict[str, RunSeries] = {}
        self.runs.removed.connect(self._on_runs_removed)
        self.closing.connect(self.training.save)
        self.closing.connect(lambda: settings.put_for_workspace("colors", theme.run_colors.save()))
        bridge.connected.connect(self._connected)
        bridge.status_polled.connect(lambda _, status: self._connected(status))
        bridge.connection_lost.connect(lambda _: self._connected(None))

    def _connected(self, status: DaemonStatus | None) -> None:
        self.status = status

    def _on_runs_removed(self, run_ids: set[str]) -> None:
        """Drop removed runs from the selection and the marks."""
        if self.selection in run_ids:
            self.mark([])
            self.select(None)
        elif not run_ids.isdisjoint(self.marks):
            self.mark([run_id for run_id in self.marks if run_id not in run_ids])

    def select(self, run_id: str | None, tab: str | None = None) -> None:
        """Select this run."""
        if run_id != self.selection:
            self.selection = run_id
            self.selection_changed.emit(run_id)
        if run_id is not None:
            self.page_requested.emit("run")
            if tab is not None:
                self.tab_requested.emit(tab)

    def mark(self, run_ids: list[str], groups: Sequence[str] = ()) -> None:
        """Mark runs; `groups` are those that were selected as a whole."""
        self.marks, self.marked_groups = run_ids, list(groups)
        self.marks_changed.emit(run_ids)

    def toggle_ticks(self, run_ids: Sequence[str]) -> None:
        """Tick these runs, or untick them where all of them are, or as many as a chart can show."""
        left_out = self.ticks.toggle(run_ids)
        if left_out:
            text = f"A chart shows at most {MAX_TICKED + 1} runs: {left_out:,} of these were not ticked."
            self.show_message(text, "warning")

    def separate_colors(self, run_ids: Sequence[str]) -> None:
        """Give runs that are shown together different colors."""
        if theme.run_colors.separate(run_ids):
            self.run_colors_changed.emit()

    def target_runs(self) -> list[RunView]:
        """The runs that an action applies to: the marked ones, else the selected one."""
        ids = self.marks or ([self.selection] if self.selection else [])
        return [view for view in map(self.runs.get, ids) if view is not None]

    def runs_to_compare(self) -> list[RunView]:
        """The marked runs where several are, else the ticked ones, else the selected one."""
        ticked = [view for view in map(self.runs.get, self.ticks.ids) if view is not None]
        return ticked if ticked and len(self.marks) < 2 else self.target_runs()

    def target_run_id(self) -> str | None:
        """The run that an action on one run applies to: the selected one, unless only others are marked."""
        marked = self.marks[0] if self.marks else None
        return self.selection if self.selection in self.marks else marked or self.selection

    def series(self, run_id: str) -> RunSeries:
        """Return the run's points; they are loaded at the first call and cached."""
        if run_id not in self._series:
            unused = [each for each, series in self._series.items() if not series.viewers()]
            if len(self._series) >= MAX_CACHED_SERIES and unused:
                self._series.pop(unused[0]).deleteLater()
            self._series[run_id] = RunSeries(run_id, self.bridge, self)
        return self._series[run_id]

    def apply_theme_soon(self) -> None:
        """The same once for several keys that follow each other, as every widget is restyled."""
        self._theme_timer.start()

    def apply_theme(self) -> None:
        """Applies the theme and the size of the text that are in the settings."""
        app = QApplication.instance()
        assert isinstance(app, QApplication)
        theme.apply(app, self.settings.get("theme", "system"), self.settings.get("font_pt", theme.DEFAULT_PT))
        self.theme_changed.emit()

    def show_message(self, text: str, kind: str = "info") -> None:
        self.message_posted.emit(text, kind)

    def offer_action(self, text: str, title: str, act: Callable[[], None]) -> None:
        """Shows a message with a button."""
        self.action_offered.emit(text, title, act)

    def offer_undo(self, text: str, title: str, undo: Callable[[], None]) -> None:
        """Shows what was changed, with a button that takes it back; so does the menu, which names it by its title."""
        change = self.undo.push(title, undo)
        self.offer_action(text, "Undo", lambda: self.undo.take_back(change))

    def replace_form(self, text: str, title: str, change: Callable[[], None]) -> None:
        """Change the train form as a whole, and offer to bring back what was changed in it before."""
        before = self.training.draft
        change()
        if before != self.training.draft and (before.texts or before.seeds is not None or before.rest):
            self.offer_undo(text, title, lambda: self.training.replace(before))

    def save_preset(self, name: str, preset: Preset, text: str) -> None:
        """Save a preset; the one that it replaces can be brought back."""
        with self.errors_shown():
            replaced = user_presets.read_presets().get(name)
            user_presets.save_preset(name, preset)
            if replaced is None:
                self.show_message(text, "good")
            else:
                put_back = partial(self._restore_preset, name, replaced)
                self.offer_undo(f"{text} It replaced another one.", f"replace preset {name!r}", put_back)

    def delete_preset(self, name: str) -> None:
        """Delete a preset; it can be brought back."""
        with self.errors_shown():
            deleted = user_presets.read_presets().get(name)
            user_presets.delete_preset(name)
            if deleted is not None:
                put_back = partial(self._restore_preset, name, deleted)
                self.offer_undo(f"Deleted the preset {name!r}.", f"delete preset {name!r}", put_back)

    def _restore_preset(self, name: str, preset: Preset) -> None:
        with self.errors_shown():
            user_presets.save_preset(name, preset)

    def open_path(self, path: Path) -> None:
        """Opens a file or a folder in the user's program for it."""
        if not QDesktopServices.openUrl(QUrl.fromLocalFile(str(path))):
            self.show_message(f"No program is set to open {path}.", "warning")

    def show_error(self, error: Exception) -> None:
        """For `failed=` of the bridge."""
        self.events.add_error(error)
        self.show_message(str(error), "bad")

    @contextmanager
    def errors_shown(self) -> Iterator[None]:
        """What the user can act on is shown instead of raised."""
        try:
            yield
        except MosaicError as error:
            self.show_error(error)

    def ask(
        self,
        call: Callable[[TrainerClient], Any],
        then: Callable[[Any], None] | None = None,
        owner: QObject | None = None,
    ) -> None:
        """`bridge.ask`, with errors shown to the user."""
        self.bridge.ask(call, then, self.show_error, owner)
