"""The buttons of a sweep page: continue, stop, its runs, its figure, and the command that continues it."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QToolButton, QWidget

from mosaic.common.processes import is_alive
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.gui.models.sweep_commands import SweepCommands
from mosaic.gui.models.sweep_state import SweepState, SweepStatus
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.button_row import ButtonRow
from mosaic.gui.workbench import Workbench

FIGURE_FILTER = "PDF (*.pdf);;SVG (*.svg);;PNG (*.png)"
START_CHECK_MS = 500


class SweepActions(QWidget):
    def __init__(self, workbench: Workbench, commands: SweepCommands) -> None:
        super().__init__()
        self._workbench = workbench
        self._commands = commands
        self._state: SweepState | None = None
        self._started: tuple[str, ProcessIdentity] | None = None
        """The sweep that was started here and its process, until it runs."""
        self._is_stopping = False
        self._continue = self._button("continue", "mdi6.play", "Continue", self.start)
        self._stop = self._button("stop", "mdi6.stop", "Stop", self._ask_stop)
        self._runs = self._button("runs", "mdi6.folder-multiple-outline", "Show runs", self._show_runs)
        self._figure = self._button("figure", "mdi6.file-image-outline", "Export figure", self._ask_figure_path)
        self._command = self._button("command", "mdi6.console", "", self._copy_command)
        self._runs.setToolTip("All runs of this sweep as a group: curves by trial, cancel, archive")
        buttons = (self._continue, self._stop, self._runs, self._figure, self._command)
        ui.column(ButtonRow(buttons), parent=self)
        self._check_timer = ui.create_timer(self, START_CHECK_MS, self._check_started)

    def _button(self, name: str, icon: str, text: str, on_click: ui.Call) -> QToolButton:
        return ui.tool_button(f"sweep.{name}", icon, "", on_click, text, is_flat=False)

    def show_state(self, state: SweepState) -> None:
        """Show what is possible now."""
        self._state = state
        status, running = state.status, state.count("running")
        is_starting = self._started is not None and self._started[0] == state.name
        if is_starting and status is SweepStatus.RUNNING:
            self._started, is_starting = None, False
            self._check_timer.stop()
        can_continue = status in (SweepStatus.DETACHED, SweepStatus.STOPPED) and not is_starting
        self._continue.setEnabled(can_continue and not self._is_stopping)
        self._continue.setText("Starting…" if is_starting else "Continue")
        self._continue.setToolTip(
            "Start a process that runs the trials that are left; it continues when the window is closed"
            if can_continue
            else state.describe_status()
        )
        self._stop.setEnabled((status is SweepStatus.RUNNING or running > 0) and not self._is_stopping)
        self._stop.setText("Stopping…" if self._is_stopping else "Stop")
        self._stop.setToolTip("End the process that runs this sweep, and cancel its running trials; the study is kept")
        self._figure.setEnabled(state.best is not None)
        self._figure.setToolTip("Draw history, importance and trials by setting into a PDF, SVG or PNG file")
        self._command.setToolTip(f"Copy the command that continues it in a terminal:\n{self._shown_command()}")

    # --- starting and stopping

    def start(self) -> None:
        """Start a process that continues the sweep and does not end with the window."""
        if self._state is None:
            return
        try:
            self._started = self._state.name, self._commands.start(self._state.name)
        except MosaicError as error:
            self._workbench.show_error(error)
            return
        self._check_timer.start()
        self.show_state(self._state)

    def _check_started(self) -> None:
        """Report why the process has ended, if it has before it could run the sweep."""
        if self._started is None or is_alive(self._started[1]):
            return
        name, _ = self._started
        self._started = None
        self._check_timer.stop()
        self._workbench.bridge.run_in_background(
            lambda: self._commands.read_log(name),
            lambda text: self._workbench.show_message(text or f"The sweep {name} ended at once.", "warning"),
            self._workbench.show_error,
            self,
        )
        if self._state is not None:
            self.show_state(self._state)

    def _ask_stop(self) -> None:
        if self._state is None:
            return
        name = self._state.name
        ui.confirm(
            self._workbench.window,
            "sweep.stop.question",
            "Stop sweep",
            f"Stop the sweep {name}?",
            "Its process is ended and its running trials are cancelled, which cannot be undone. Trials that have ended "
            "are kept; Continue starts others in place of those that were cancelled.",
            "Stop sweep",
            lambda: self.stop(name),
            "Keep running",
        )

    def stop(self, name: str) -> None:
        self._is_stopping = True
        if self._state is not None:
            self.show_state(self._state)
        self._workbench.bridge.run_in_background(
            lambda: self._commands.cancel(name), self._on_stopped, self._on_stop_failed, self
        )

    def _on_stopped(self, text: str) -> None:
        self._end_stopping()
        self._workbench.show_message(text, "good")

    def _on_stop_failed(self, error: Exception) -> None:
        self._end_stopping()
        self._workbench.show_error(error)

    def _end_stopping(self) -> None:
        self._is_stopping = False
        if self._state is not None:
            self.show_state(self._state)

    # --- the rest

    def _show_runs(self) -> None:
        if self._state is not None:
            name = self._state.name
            if any(view.group == name for view in self._workbench.runs.all()):
                self._workbench.group_requested.emit(name)
            else:
                self._workbench.show_message(f"This trainer has no runs of the sweep {name}.", "warning")

    def _shown_command(self) -> str:
        return "" if self._state is None else self._commands.shown_command(self._state.name)

    def _copy_command(self) -> None:
        QGuiApplication.clipboard().setText(self._shown_command())
        self._workbench.show_message(f"Copied: {self._shown_command()}")

    def _ask_figure_path(self) -> None:
        if self._state is None:
            return
        folder = Path(self._workbench.settings.get("export.folder", str(Path.home())))
        ui.open_save_dialog(
            self._workbench.window,
            "sweep.figure.file",
            f"Export figure of {self._state.name}",
            folder / f"{self._state.name}.pdf",
            FIGURE_FILTER,
            self.write_figure,
        )

    def write_figure(self, path: Path) -> None:
        if self._state is None:
            return
        name = self._state.name
        self._workbench.settings.put("export.folder", str(path.parent))
        self._workbench.bridge.run_in_background(
            lambda: self._commands.plot(name, path),
            lambda text: self._workbench.show_message(text, "good"),
            self._workbench.show_error,
            self,
        )
