"""What panels and actions receive: models, background calls, and signals for navigation and messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QUrl, Signal
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QApplication, QWidget

from mosaic.contracts.folder import Workspace
from mosaic.contracts.views import DaemonStatus, RunView
from mosaic.gui import theme
from mosaic.gui.bridge import Bridge
from mosaic.gui.gui_settings import GuiSettings
from mosaic.gui.models.environment_choices import WorkerEnvironments
from mosaic.gui.models.event_log import EventLog
from mosaic.gui.models.runs_model import Notes, RunsModel
from mosaic.gui.models.series import RunSeries
from mosaic.gui.models.training import Training

MAX_CACHED_SERIES = 64


class Workbench(QObject):
    page_requested = Signal(str)
    """Show the page with this id: welcome, train, run, compare, trainer, settings."""
    tab_requested = Signal(str)
    """Show this tab of the run page."""
    selection_changed = Signal(object)
    """The selected run has changed: its id, or None."""
    marks_changed = Signal(list)
    """The runs that are marked in the list (several may be), newest first."""
    form_requested = Signal(object)
    """Open the train form, filled from this payload; None: as it was left."""
    comparison_requested = Signal(list)
    """Put these runs together on the compare page."""
    message_posted = Signal(str, str)
    """A passing message and its kind: info, good, warning or bad."""
    action_offered = Signal(str, str, object)
    """A passing message with a button: the text, the button's title, and what it does."""
    dialog_requested = Signal(str)
    """Open this dialog: palette, help, shortcuts, about."""
    theme_changed = Signal()
    """Colors or sizes have changed: custom-painted widgets must repaint."""
    closing = Signal()
    """The window is closing: everything started for it must end now."""

    def __init__(
        self, workspace: Workspace, bridge: Bridge, settings: GuiSettings, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self.workspace = workspace
        self.bridge = bridge
        self.settings = settings
        self.runs = RunsModel(bridge, self)
        self.events = EventLog(bridge, self)
        self.notes = Notes(bridge, self)
        self.training = Training(settings, self)
        self.environments = WorkerEnvironments(bridge, self)
        self.status: DaemonStatus | None = None
        """The daemon's last status; None while there is no connection."""
        self.selection: str | None = None
        self.marks: list[str] = []
        self.window: QWidget | None = None
        """The main window, the parent of dialogs."""
        self.is_remote = False
        """Whether the trainer is on another machine: its folders and shared memory are not accessible here."""
        self.trainer_name = ""
        """Of that trainer: its profile's, or its address."""
        self._series: dict[str, RunSeries] = {}
        self.runs.removed.connect(self._on_runs_removed)
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

    def mark(self, run_ids: list[str]) -> None:
        self.marks = run_ids
        self.marks_changed.emit(run_ids)

    def target_runs(self) -> list[RunView]:
        """The runs that an action applies to: the marked ones, else the selected one."""
        ids = self.marks or ([self.selection] if self.selection else [])
        return [view for view in map(self.runs.get, ids) if view is not None]

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

    def apply_theme(self) -> None:
        """Applies the theme and the size of the text that are in the settings."""
        app = QApplication.instance()
        assert isinstance(app, QApplication)
        theme.apply(app, self.settings.get("theme", "system"), self.settings.get("font_pt", 10.0))
        self.theme_changed.emit()

    def show_message(self, text: str, kind: str = "info") -> None:
        self.message_posted.emit(text, kind)

    def offer_action(self, text: str, title: str, act: Callable[[], None]) -> None:
        """Shows a message with a button."""
        self.action_offered.emit(text, title, act)

    def open_path(self, path: Path) -> None:
        """Opens a file or a folder in the user's program for it."""
        if not QDesktopServices.openUrl(QUrl.fromLocalFile(str(path))):
            self.show_message(f"No program is set to open {path}.", "warning")

    def show_error(self, error: Exception) -> None:
        """For `failed=` of the bridge."""
        self.events.add_error(error)
        self.show_message(str(error), "bad")

    def ask(
        self, call: Callable[[Any], Any], then: Callable[[Any], None] | None = None, owner: QObject | None = None
    ) -> None:
        """`bridge.ask`, with errors shown to the user."""
        self.bridge.ask(call, then, self.show_error, owner)
