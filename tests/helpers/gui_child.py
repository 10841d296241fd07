"""The workbench in a process of its own, for tests that kill it: gui_child.py WORKSPACE SETTINGS RUN TAB.

Chooses the run and the tab as a user would, says so, and goes on until it is ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PySide6.QtWidgets import QApplication
from tests.helpers.gui import pump

from mosaic.contracts.folder import Workspace
from mosaic.window.app import Application


def main() -> int:
    workspace, settings, run_id, tab = sys.argv[1:]
    app = QApplication(sys.argv[:1])
    program = Application(app, Workspace(workspace), Path(settings))
    program.start()
    pump(lambda: program.workbench.runs.get(run_id), "the run")
    program.window.resize(1300, 765)
    program.workbench.select(run_id, tab)
    print("chosen", flush=True)
    return app.exec()


if __name__ == "__main__":
    sys.exit(main())
