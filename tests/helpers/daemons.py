"""A real daemon in a temporary workspace, with the scripted worker beside MOSAIC's own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.helpers.command_server import DAEMON, ForkedProcess, can_fork, command_server

import mosaic
from mosaic.contracts.folder import Workspace
from mosaic.contracts.views import RunView
from mosaic.trainer.client.connect import connect, read_daemon_address
from mosaic.trainer.client.trainer_client import TrainerClient

SOURCE = Path(mosaic.__file__).parents[1]


def install_scripted_worker(place: Path) -> None:
    """As pip would: a module and its entry point."""
    place.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("scripted_worker.py"), place / "scripted_worker.py")
    info = place / "scripted_worker-1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scripted-worker\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[mosaic.workers]\nscripted = scripted_worker:describe\n")


def environment(place: Path) -> dict[str, str]:
    install_scripted_worker(place)
    path = os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "SCRIPTED_SOURCE": str(SOURCE)}


class LiveDaemon:
    """Started and ended by the test; `kill` is as rude as it gets."""

    def __init__(self, workspace: Workspace, plugins: Path, *options: str, **variables: str) -> None:
        self.workspace = workspace
        self._plugins = str(plugins)
        self._environment = {**environment(plugins), **variables}
        self._options = options
        self.command = DAEMON
        """Replaced by tests that change a constant of the daemon."""
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None

    def start(self) -> TrainerClient:
        self.launch()
        wait_for(lambda: self._is_up(), "the daemon to start")
        return connect(self.workspace, may_start=False)

    def launch(self) -> None:
        """Without waiting for it."""
        self.workspace.root.mkdir(parents=True, exist_ok=True)
        command = [*self.command, "--var", str(self.workspace.root), "--port", "0", *self._options]
        with open(self.workspace.root / "daemon.out", "ab") as output:
            outputs = output.fileno(), output.fileno()
            if self.command == DAEMON and can_fork(self._environment, self._plugins):
                self.process = command_server().start(command, self._environment, *outputs, self._plugins)
            else:
                self.process = subprocess.Popen(command, env=self._environment, stderr=output, stdout=output)

    def _is_up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError((self.workspace.root / "daemon.out").read_text())
        address = read_daemon_address(self.workspace)
        return address is not None and address.process["pid"] == self.process.pid

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Cancels what still runs, then ends the daemon."""
        if self.process is None or self.process.poll() is not None:
            self.start().close()
        with connect(self.workspace, may_start=False) as trainer:
            trainer.stop_daemon(cancel_runs=True)
        assert self.process is not None
        self.process.wait(timeout=90)

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=90)


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"Waited {seconds:g} s for {what}.")


def ended(trainer: TrainerClient, run_id: str, seconds: float = 100.0) -> RunView:
    """The run's view once it has finished."""

    def view() -> RunView | None:
        seen = trainer.get_run(run_id)
        return seen if seen.stage == "finished" else None

    found: RunView = wait_for(view, f"run {run_id} to end", seconds)
    return found


def scripted(**config: Any) -> dict[str, Any]:
    """A payload for the scripted worker."""
    return {"metadata": {"worker": {"id": "scripted", "config": config}}, "artifacts": {}}


@contextmanager
def running_daemon(workspace: Workspace, plugins: Path, *options: str) -> Iterator[tuple[LiveDaemon, TrainerClient]]:
    daemon = LiveDaemon(workspace, plugins, *options)
    trainer = daemon.start()
    try:
        yield daemon, trainer
    finally:
        trainer.close()
        daemon.end()
