"""The TensorBoard tab: a TensorBoard process for the selected run, while the tab is shown."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QProcess, QSize, Qt, QTimer, QUrl, Signal
from PySide6.QtGui import QDesktopServices, QHideEvent, QShowEvent
from PySide6.QtWidgets import QProgressBar, QWidget

from mosaic.base.formatting import run_title
from mosaic.contracts.errors import MissingExtra
from mosaic.contracts.folder import RunFolder, to_file_name
from mosaic.contracts.options import RunKind
from mosaic.contracts.views import RunView
from mosaic.trainer.client.file_transfer import copy_event_files
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import theme, web
from mosaic.window import widgets as ui
from mosaic.window.child_process import ChildProcess
from mosaic.window.runs import empty_text
from mosaic.window.web import WebTab
from mosaic.window.workbench import Workbench

# --- A TensorBoard process: started for one folder, and ended with all its children.


START_TIMEOUT_MS = 30_000
MAX_OUTPUT_CHARS = 4_000

STOPPED, STARTING, READY, FAILED = "stopped", "starting", "ready", "failed"

_URL_PATTERN = re.compile(r"\bat (http://127\.0\.0\.1:\d+/\S*)")
_LAUNCH_SCRIPT = """
import atexit, os, secrets, shutil, sys, tempfile, threading

os.umask(0o077)  # it writes its address, which is secret, to a file in the temporary folder
name, folder = sys.argv[1:]
place = tempfile.mkdtemp(prefix="mosaic-tensorboard-")
os.symlink(folder, os.path.join(place, name))
atexit.register(shutil.rmtree, place, True)

def follow():
    while os.read(0, 100):
        pass
    shutil.rmtree(place, True)
    os.killpg(0, 9)

threading.Thread(target=follow, daemon=True).start()

from tensorboard import default, main_lib, program

class Server(program.WerkzeugServer):
    def __init__(self, application, flags):
        def answer(environ, start_response):
            if environ.get("HTTP_HOST") not in hosts:
                start_response("403 Forbidden", [("Content-Type", "text/plain")])
                return [b"This page is served to this machine only."]
            return application(environ, start_response)
        super().__init__(answer, flags)
        hosts = {f"{host}:{self.server_port}" for host in ("127.0.0.1", "localhost")}

main_lib.global_init()
board = program.TensorBoard(plugins=default.get_plugins(), server_class=Server)
options = {"logdir": place, "host": "127.0.0.1", "port": 0, "path_prefix": "/" + secrets.token_urlsafe(24)}
board.configure(["tensorboard", *(f"--{key}={value}" for key, value in options.items()), "--load_fast=false"])
sys.exit(board.main())
"""
"""Its standard input ends when the window dies, however it dies; then it ends itself and its children.

TensorBoard names a run by the folders between the one that it is given and the files; the run's own would be called
".". So it is given a folder with nothing but a link that has the name we want. (`--logdir_spec` names runs, too, but
takes no path with a comma or a colon.)

Other users of the machine reach a loopback port, and so does a web page whose name is made to point here. The page's
path is therefore secret: it is created in the process, so that no list of processes shows it, and printed to the
window. Requests for another host are refused. TensorBoard's faster reader is a server of its own, without either."""


def is_installed() -> bool:
    return importlib.util.find_spec("tensorboard") is not None


def launch_command(logdir: Path, name: str) -> list[str]:
    """The command that shows one folder under a name, at a loopback address that it prints when it serves."""
    return [sys.executable, "-P", "-c", _LAUNCH_SCRIPT, to_file_name(name), str(logdir)]


class TensorBoardProcess(ChildProcess):
    changed = Signal()
    CLOSE_TIMEOUT_MS = 500

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._output = ""
        self._start_timer = QTimer(self, singleShot=True, interval=START_TIMEOUT_MS)
        self._start_timer.timeout.connect(lambda: self._fail("TensorBoard did not start within 30 seconds."))
        self._reset()

    def _reset(self, state: str = STOPPED, problem: str = "") -> None:
        self._start_timer.stop()
        self.state = state
        self.url = ""
        """While it serves."""
        self.problem = problem
        """Why it does not."""
        self.pid = 0

    def start(self, argv: Sequence[str]) -> None:
        """`argv`: as `launch_command` returns it."""
        self.stop()
        self._output = ""
        self._reset(STARTING)
        self._start_timer.start()
        process = self._launch(argv, QProcess.ProcessChannelMode.MergedChannels)
        self.pid = process.processId()
        self.changed.emit()

    def stop(self) -> None:
        was_running = self.is_running
        super().stop()
        self._reset()
        if was_running:
            self.changed.emit()

    def close(self) -> None:
        super().close()
        self._reset()

    def _on_output(self, output: bytes) -> None:
        self._output = (self._output + output.decode("utf-8", "replace"))[-MAX_OUTPUT_CHARS:]
        match = _URL_PATTERN.search(self._output)
        if match and self.state == STARTING:
            self._start_timer.stop()
            self.state, self.url = READY, match.group(1)
            self.changed.emit()

    def _on_exit(self, how: str) -> None:
        self._fail(f"TensorBoard has ended unexpectedly ({how}). {self._last_output_line()}".strip())

    def _on_failed_start(self, reason: str) -> None:
        self._fail(f"TensorBoard cannot be started: {reason}.")

    def _fail(self, reason: str) -> None:
        super().stop()
        self._reset(FAILED, reason)
        self.changed.emit()

    def _last_output_line(self) -> str:
        lines = [line.strip() for line in self._output.splitlines() if line.strip()]
        # What it prints when all is well explains nothing.
        lines = [
            line for line in lines if "TensorFlow installation not found" not in line and "(Press CTRL" not in line
        ]
        return f"Last output: {lines[-1][:200]}" if lines else ""


# --- The TensorBoard tab: a TensorBoard process for the selected run, while the tab is shown.


STOP_DELAY_MS = 60_000
"""How long it keeps running while another tab is shown."""
COPY_INTERVAL_MS = 15_000
"""How often the files of a trainer on another machine are copied; TensorBoard reads them every 30 s."""
STATE_ICONS = {
    READY: ("mdi6.check-circle", "good"),
    STARTING: ("mdi6.progress-clock", "accent"),
    FAILED: ("mdi6.close-circle", "bad"),
    STOPPED: ("mdi6.circle-outline", "muted"),
}
STARTUP_SCRIPT = """
if (!localStorage.getItem("_tb_global_settings.timeseries"))
    localStorage.setItem("_tb_global_settings.timeseries",
        JSON.stringify({autoReload: true, timeSeriesSettingsPaneOpened: false}));
if (location.search.includes("darkMode=true"))
    addEventListener("DOMContentLoaded", () => { document.documentElement.style.colorScheme = "dark"; });
"""
"""Reads the files again every half minute, unless the user has set it otherwise; makes scroll bars follow the theme."""


def find_logdir(view: RunView, payload: dict[str, Any]) -> Path:
    """Where the run's event files are."""
    folder = RunFolder(view.run_dir)
    directory = payload.get("artifacts", {}).get("tensorboard", {}).get("directory")
    if isinstance(directory, str):
        return folder.path / directory
    return folder.tensorboard_eval if view.kind == RunKind.POLICY_EVAL else folder.tensorboard


def _copy_from_trainer(trainer: TrainerClient, view: RunView) -> Path:
    logdir = find_logdir(view, trainer.config(view.run_id))
    return copy_event_files(trainer, view.run_id, os.path.relpath(logdir, view.run_dir))


class TensorBoardTab(WebTab):
    def __init__(
        self,
        workbench: Workbench,
        command: Callable[[Path, str], list[str]] = launch_command,
        is_installed: Callable[[], bool] = is_installed,
        has_web: Callable[[], bool] = web.is_installed,
    ) -> None:
        super().__init__(workbench, "tensorboard", self._build_placeholder(workbench), has_web)
        self._command = command
        self._is_installed = is_installed
        self._logdir: Path | None = None
        self._is_complete = False
        """Whether the copies of a remote run's files have everything."""
        self._is_queued = False
        """Whether the run was queued when it was looked at last."""
        self._open_browser_when_ready = False
        self.board = TensorBoardProcess(self)
        self._reload.setToolTip("Read the files again")
        self._stop_timer = ui.create_timer(self, STOP_DELAY_MS, self.board.stop, is_single_shot=True)
        self._copy_timer = ui.VisibleTimer(self, COPY_INTERVAL_MS, self._update_copies)
        self.board.changed.connect(self._on_state_changed)
        workbench.runs.changed.connect(self._on_runs_changed)
        self._refresh()

    def _build_placeholder(self, workbench: Workbench) -> QWidget:
        self._text = ui.muted_label("", "tensorboard.hint")
        self._text.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._progress = QProgressBar()
        self._progress.setRange(0, 0)
        self._progress.setFixedSize(QSize(200, 6))
        self._progress.setTextVisible(False)
        self._restart = ui.button("Restart", "tensorboard.restart", lambda: self._start())
        self._analytics = ui.button(
            "Show Analytics", "tensorboard.analytics", lambda: workbench.tab_requested.emit("analytics")
        )
        buttons = ui.row(ui.Stretch(), self._restart, self._analytics, ui.Stretch())
        busy = (self._progress, Qt.AlignmentFlag.AlignHCenter)
        return ui.widget_column(ui.Stretch(), self._text, busy, buttons, ui.Stretch(2))

    def _apply_theme(self) -> None:
        super()._apply_theme()
        self._load()

    # --- which run

    def show_run(self, run_id: str) -> None:
        if run_id == self._run_id:
            return
        self.board.stop()
        self._run_id = run_id
        self._logdir = None
        self._is_complete = False
        self._open_browser_when_ready = False
        if self.isVisible():
            self._find_logdir_and_start()

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        """A run that was queued may have started, or may have been cancelled."""
        if self._run_id in run_ids and self._is_queued and self.isVisible():
            self._find_logdir_and_start()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._stop_timer.stop()
        if self.board.state == STOPPED:
            self._find_logdir_and_start()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        if self.board.state in (STARTING, READY):
            self._stop_timer.start()

    def _find_logdir_and_start(self) -> None:
        """Finds the folder, then starts."""
        run_id = self._run_id
        view = self._workbench.runs.get(run_id)
        if view is None:
            return
        self._is_queued = view.stage == "queued"
        if not self._is_installed():
            self._show_text(
                "TensorBoard is not installed: pip install 'mosaic-rl[tensorboard]'. The same curves are in Analytics."
            )
        elif self._is_queued:
            self._show_text(empty_text("tensorboard", view).as_line())
        elif self._workbench.is_remote:
            self._show_text("Copying the event files from the trainer…", is_busy=True)
            self._copy_and_start(view)
        elif not Path(view.run_dir).is_dir():
            self._show_text("The run's folder is gone. The same curves are in Analytics.")
        else:
            self._show_text("Starting TensorBoard…", is_busy=True)
            if self._has_web():
                self._workbench.bridge.run_in_background(web.preload, lambda _: self._preload_page(), owner=self)
            self._workbench.bridge.ask(
                lambda trainer: trainer.config(run_id),
                lambda payload: self._on_logdir_found(run_id, find_logdir(view, payload)),
                lambda _: self._on_logdir_found(run_id, find_logdir(view, {})),
                owner=self,
            )

    def _copy_and_start(self, view: RunView) -> None:
        """Starts with copies of the files, which are brought up to date while the tab is shown."""
        self._workbench.bridge.ask(
            lambda trainer: _copy_from_trainer(trainer, view),
            lambda logdir: self._on_logdir_found(view.run_id, logdir),
            lambda error: self._show_text(f"{error} The same curves are in Analytics."),
            owner=self,
        )

    def _update_copies(self) -> None:
        view = self._workbench.runs.get(self._run_id)
        if self._workbench.is_remote and view is not None and self._logdir is not None and not self._is_complete:
            is_finished = view.stage == "finished"
            self._workbench.bridge.ask(
                lambda trainer: _copy_from_trainer(trainer, view),
                lambda _: self._on_copies_updated(view.run_id, is_finished),
                lambda _: None,  # the window says that the connection is lost
                owner=self,
            )

    def _on_copies_updated(self, run_id: str, is_complete: bool) -> None:
        if run_id == self._run_id:
            self._is_complete = is_complete

    def _on_logdir_found(self, run_id: str, logdir: Path) -> None:
        view = self._workbench.runs.get(run_id)
        if run_id != self._run_id or view is None or not self.isVisible():
            return
        if view.stage == "finished" and not (logdir.is_dir() and any(logdir.iterdir())):
            self._show_text(empty_text("tensorboard", view).as_line())
            return
        self._logdir = logdir
        if self._has_web() or self._open_browser_when_ready:
            self._start()
        else:
            self._show_no_web("PySide6-Addons is not installed")

    def _start(self) -> None:
        if self._logdir is not None:
            view = self._workbench.runs.get(self._run_id)
            self.board.start(self._command(self._logdir, run_title(view) if view else "run"))

    # --- its state

    def _refresh(self) -> None:
        board = self.board
        self._icon.set_icon(theme.icon(*STATE_ICONS[board.state]))
        where = f" at {board.url}" if board.url else ""
        self._state.setText(f"{board.state}{where}")
        self._state.setToolTip(f"Reads {self._logdir}" if self._logdir else "")
        self._reload.setEnabled(board.state == READY and self.web is not None)
        self._browser.setEnabled(board.state == READY or (self._logdir is not None and board.state == STOPPED))

    def _on_state_changed(self) -> None:
        self._refresh()
        if self.board.state == STARTING:
            self._show_text("Starting TensorBoard…", is_busy=True)
        elif self.board.state == FAILED:
            self._show_text(self.board.problem, can_restart=True)
        elif self.board.state == READY:
            self._on_ready()

    def _show_text(self, text: str, is_busy: bool = False, can_restart: bool = False) -> None:
        self._text.setText(text)
        self._progress.setVisible(is_busy)
        self._restart.setVisible(can_restart)
        self._analytics.setVisible(not is_busy)
        self._stack.setCurrentIndex(0)

    def _show_no_web(self, reason: str) -> None:
        self._show_text(
            f"TensorBoard cannot be shown inside the window ({reason}): pip install 'mosaic-rl[gui]'. "
            "It can be opened in the browser, and the same curves are in Analytics."
        )
        self._refresh()

    def _on_ready(self) -> None:
        """Called when it has started to serve."""
        if self._open_browser_when_ready:
            self._open_browser_when_ready = False
            QDesktopServices.openUrl(QUrl(self.board.url))
        if not self._has_web():
            self._show_text("TensorBoard is open in the browser, and keeps running while this tab is shown.")
            return
        try:
            self._ensure_page()
        except MissingExtra as error:
            self._show_no_web(str(error))
            return
        self._load()

    def _preload_page(self) -> None:
        """Starts Chromium while TensorBoard starts."""
        if self.isVisible() and self.board.state == STARTING:
            with suppress(MissingExtra):
                self._ensure_page()

    def _ensure_page(self) -> None:
        if self.web is None:
            view = self._create_page(
                lambda url: url.host() == "127.0.0.1" or url.scheme() in ("about", "data", "blob"), STARTUP_SCRIPT
            )
            view.page().renderProcessTerminated.connect(
                lambda status, code: self._show_text(f"The page has crashed ({status.name}, {code}).", can_restart=True)
            )

    def _load(self) -> None:
        if self.web is not None and self.board.state == READY:
            self._show_text("Loading TensorBoard…", is_busy=True)
            dark = "?darkMode=true" if theme.is_dark() else ""
            self.web.load(QUrl(self.board.url + dark + "#timeseries"))
            self._reload.setEnabled(True)

    def _on_load_finished(self, is_ok: bool) -> None:
        if self.board.state != READY or self.web is None:
            return
        if is_ok:
            self._stack.setCurrentWidget(self.web)
        else:
            self._show_text("TensorBoard's page could not be loaded.", can_restart=True)

    def _open_in_browser(self) -> None:
        if self.board.state == READY:
            QDesktopServices.openUrl(QUrl(self.board.url))
        else:
            self._open_browser_when_ready = True
            self._start()

    def _on_closing(self) -> None:
        self._stop_timer.stop()
        self.board.close()
        super()._on_closing()
