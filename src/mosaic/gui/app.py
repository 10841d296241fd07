"""Makes things and hands them over."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

# Before Qt is loaded: Chromium's sandbox refuses to work for root and would take the window with it.
if hasattr(os, "geteuid") and os.geteuid() == 0:
    os.environ.setdefault("QTWEBENGINE_DISABLE_SANDBOX", "1")

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication

from mosaic.contracts.folder import Workspace
from mosaic.gui import theme
from mosaic.gui.actions import ACTIONS
from mosaic.gui.bridge import Bridge
from mosaic.gui.panels import DOCKS, PAGES
from mosaic.gui.settings import Settings
from mosaic.gui.window import Window
from mosaic.gui.workbench import Workbench


class Application:
    """The whole program, ready to be shown; tests make one too."""

    def __init__(self, app: QApplication, workspace: Workspace, settings_path: Path | None = None) -> None:
        self.settings = Settings(workspace, settings_path)
        theme.apply(app, self.settings.get("theme", "system"))
        self.bridge = Bridge(workspace)
        self.workbench = Workbench(workspace, self.bridge, self.settings)
        self.window = Window(self.workbench, PAGES, DOCKS, ACTIONS)

    def start(self, run_id: str | None = None) -> None:
        """Shows the window first; everything else comes to it."""
        self.window.show()
        selection = run_id or self.settings.get_here("selection")
        if selection:
            self.workbench.select(selection)
        self.bridge.start()

    def stop(self) -> None:
        self.window.remember()
        self.window.close()
        self.bridge.stop()


def main(workspace: Workspace, run_id: str | None = None, arguments: Sequence[str] = ()) -> int:
    app = QApplication([sys.argv[0], *arguments])
    app.setApplicationName("MOSAIC")
    program = Application(app, workspace)
    program.start(run_id)
    # Python's signal handlers run only when Python does: let it, now and then, so that Ctrl-C works.
    signal.signal(signal.SIGINT, lambda *_: app.quit())
    beat = QTimer()
    beat.start(200)
    beat.timeout.connect(lambda: None)
    code = app.exec()
    program.stop()
    return code
