"""Creates the parts of the window and connects them."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from pathlib import Path

# Before Qt is loaded: Chromium's sandbox refuses to work for root and would take the window with it.
if hasattr(os, "geteuid") and os.geteuid() == 0:
    os.environ.setdefault("QTWEBENGINE_DISABLE_SANDBOX", "1")
# Chromium forks before it starts its helper processes, which gRPC's fork handlers do not survive.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from PySide6.QtCore import QCoreApplication, QEvent, QMessageLogContext, Qt, QTimer, QtMsgType, qInstallMessageHandler
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication

from mosaic.contracts.errors import BadInput
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.remote_trainer import RemoteTrainer, connect_remote
from mosaic.window import theme
from mosaic.window.actions import ACTIONS
from mosaic.window.bridge import Bridge
from mosaic.window.dialogs import DIALOGS
from mosaic.window.main_window import MainWindow
from mosaic.window.notifications import RunNotifier
from mosaic.window.panels import DOCKS, PAGES
from mosaic.window.settings import GuiSettings
from mosaic.window.workbench import Workbench

# WebEngine, which is loaded when it is first needed, requires this before the application is created.
QCoreApplication.setAttribute(Qt.ApplicationAttribute.AA_ShareOpenGLContexts)

THREAD_SWITCH_INTERVAL_S = 0.0005
"""How long a busy thread may hold the interpreter while the window waits; Python's default is ten times as long."""


class Application:
    """The whole program, ready to be shown."""

    def __init__(
        self,
        app: QApplication,
        workspace: Workspace,
        settings_path: Path | None = None,
        remote: RemoteTrainer | None = None,
    ) -> None:
        """`remote` is a trainer on another machine."""
        self.settings = GuiSettings(workspace, settings_path, workspace_key=remote.address if remote else "")
        theme.apply(app, self.settings.get("theme", "system"), self.settings.get("font_pt", theme.DEFAULT_PT))
        self.bridge = Bridge(workspace, functools.partial(connect_remote, remote) if remote else None)
        self.workbench = Workbench(workspace, self.bridge, self.settings)
        self.workbench.is_remote = remote is not None
        self.workbench.trainer_name = remote.option if remote else ""
        with theme.without_style_sheet(app):  # a third of the time
            self.window = MainWindow(self.workbench, PAGES, DOCKS, ACTIONS, DIALOGS)
        self.notifier = RunNotifier(self.workbench)
        self.next_workspace: Workspace | None = None
        """The workspace to open when this window has closed."""
        if remote is None:
            self.settings.add_recent_workspace(workspace.root)
        self.workbench.workspace_requested.connect(self._on_workspace_requested)
        QGuiApplication.styleHints().colorSchemeChanged.connect(self._on_color_scheme_changed)

    def start(self, run: str | None = None) -> None:
        """Shows the window, then connects. `run` is an id, a prefix of one, or `last`."""
        page = self.settings.get_for_workspace("page", "welcome")
        if selection := self.settings.get_for_workspace("selection"):
            self.workbench.select(selection)
        self.window.show_page(page if page in (row.id for row in PAGES) else "welcome")
        self.window.show()
        self.workbench.runs.reset.connect(self._on_runs_loaded, Qt.ConnectionType.SingleShotConnection)
        if run:
            self.workbench.ask(
                lambda trainer: trainer.get_run(run), lambda view: self.workbench.select(view.run_id), self.window
            )
        sys.setswitchinterval(THREAD_SWITCH_INTERVAL_S)
        gc.freeze()  # widgets and runs stay: visiting them at each collection would block the window
        self.bridge.start()
        self.window.start_saving_layout()

    def _on_runs_loaded(self) -> None:
        """Shows the welcome page for a workspace without runs, else the last selected run."""
        gc.freeze()
        runs = self.workbench.runs
        if len(runs) == 0 and self.window.current_page == "run":
            self.window.show_page("welcome")
        elif len(runs) > 0 and self.window.current_page == "welcome":
            self.workbench.select(self.workbench.selection or runs.ids()[0])
            self.window.show_page("run")

    def _on_color_scheme_changed(self) -> None:
        if self.settings.get("theme", "system") == "system":
            self.workbench.apply_theme()

    def _on_workspace_requested(self, root: Path) -> None:
        self.next_workspace = Workspace(root)
        QCoreApplication.quit()

    def stop(self) -> None:
        QGuiApplication.styleHints().colorSchemeChanged.disconnect(self._on_color_scheme_changed)
        self.window.close()
        self.bridge.stop()

    def delete(self) -> None:
        """Free everything, as another window is opened in this process."""
        for part in (self.window, self.workbench, self.bridge):
            part.deleteLater()
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
        gc.unfreeze()


def main(workspace: Workspace, run: str | None = None, remote: RemoteTrainer | None = None) -> int:
    qInstallMessageHandler(_handle_qt_message)
    app = QApplication(sys.argv[:1])
    app.setApplicationName("MOSAIC")
    app.setWindowIcon(theme.icon("mdi6.view-grid-outline", "accent"))
    # Python's signal handlers run only between Python instructions: a timer runs some, so that Ctrl-C works.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: app.quit())
    timer = QTimer(interval=200)
    timer.timeout.connect(lambda: None)
    timer.start()
    return show_windows(app, workspace, run, remote)


def show_windows(
    app: QApplication,
    workspace: Workspace,
    run: str | None = None,
    remote: RemoteTrainer | None = None,
    settings_path: Path | None = None,
) -> int:
    """Show the window until it is closed; then one on the workspace that was chosen in it, if there is one."""
    while True:
        program = Application(app, workspace, settings_path, remote)
        program.start(run)
        code = app.exec()
        program.stop()
        program.delete()
        if program.next_workspace is None:
            return code
        workspace, run, remote = program.next_workspace, None, None


def _handle_qt_message(message_type: QtMsgType, _: QMessageLogContext, text: str) -> None:
    """Prints Qt's messages; exits at a fatal one, where Qt would abort with a core dump."""
    if message_type is QtMsgType.QtFatalMsg:
        reason = text.strip().splitlines()[0] if text.strip() else "no reason given"
        print(
            f"Qt cannot open a window: {reason} Check DISPLAY or WAYLAND_DISPLAY, or use a virtual display: "
            "xvfb-run mosaic gui",
            file=sys.stderr,
            flush=True,
        )
        os._exit(BadInput.exit_code)
    if message_type is not QtMsgType.QtDebugMsg:
        print(text, file=sys.stderr)
