"""A TensorBoard process: started for one folder, and ended with all its children."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QObject, QProcess, QTimer, Signal

from mosaic.contracts.folder import to_file_name
from mosaic.gui.models.child_process import ChildProcess

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
