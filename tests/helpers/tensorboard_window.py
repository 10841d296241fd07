"""A window with a run's TensorBoard tab in a process of its own: prints what the page says, then ends as users do.

    python tensorboard_window.py WORKSPACE SETTINGS RUN_ID WORD...

Exits with 0 once all words stand in the page, 77 where WebEngine cannot be loaded.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from PySide6.QtWidgets import QApplication

from mosaic.contracts.folder import Workspace
from mosaic.features.tracking.window_tensorboard import TensorBoardTab
from mosaic.window import web
from mosaic.window.app import Application

PATIENCE_S = 60.0
READ = """
(function () {
    const found = [];
    function walk(node) {
        if (node.nodeType === Node.TEXT_NODE) { found.push(node.textContent.trim()); return; }
        if (node.nodeName === "STYLE" || node.nodeName === "SCRIPT") return;
        if (node.shadowRoot) walk(node.shadowRoot);
        node.childNodes.forEach(walk);
    }
    if (document.body) walk(document.body);
    return found.join("");
})()
"""
"""TensorBoard is made of web components: what is seen stands in their shadow roots."""


def is_shown(tab: TensorBoardTab) -> bool:
    return tab.web is not None and tab.web.isVisible()


def describe_native_window(program: Application) -> str:
    """Changes when Qt replaces the window of the system by another one."""
    return f"{program.window.winId()} {program.window.windowHandle().surfaceType().name}"


def main(workspace: str, settings: str, run_id: str, *words: str) -> int:
    try:
        web.preload()
    except ImportError as error:
        print(error, file=sys.stderr)
        return 77
    app = QApplication(["tensorboard-window"])
    program = Application(app, Workspace(workspace), Path(settings))
    program.start()
    program.window.resize(1600, 1800)  # cards outside of the view are not made
    deadline = time.monotonic() + PATIENCE_S

    def pump(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            app.processEvents()
            time.sleep(0.01)

    while program.workbench.runs.get(run_id) is None and time.monotonic() < deadline:
        pump(0.05)
    window_before = describe_native_window(program)
    program.workbench.select(run_id, "tensorboard")
    said: list[str] = [""]
    while (tab := program.window.findChild(TensorBoardTab)) is None:
        pump(0.05)
    while time.monotonic() < deadline and not (is_shown(tab) and all(word in said[0] for word in words)):
        pump(0.2)
        if tab.web is not None:
            tab.web.page().runJavaScript(READ, 0, lambda text: said.__setitem__(0, str(text)))
    text = said[0]
    windows = [window_before, describe_native_window(program)]
    print(json.dumps({"state": tab.board.state, "problem": tab.board.problem, "text": text, "windows": windows}))
    program.stop()
    return 0 if all(word in text for word in words) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
