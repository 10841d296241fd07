"""Real keepers with small Python workers, for the integration tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from mosaic.base.journal import Journal, read_all
from mosaic.contracts.events import EVENT_TYPES, Event
from mosaic.contracts.folder import RunFolder
from mosaic.keeper.launch_spec import keeper_command

TIMEOUT_S = 60.0
EXIT_S = 5.0
_MARK = "MOSAIC_TEST_MARK"


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until the condition holds and return its value; fail after TIMEOUT_S."""
    end = time.monotonic() + TIMEOUT_S
    while not (value := condition()):
        assert time.monotonic() < end, f"timed out waiting for: {what}"
        time.sleep(0.01)
    return value


class KeeperRun:
    """A run folder in which every `start` is another attempt."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self.folder = RunFolder(path)
        self.mark = uuid4().hex
        self.keepers: list[subprocess.Popen[bytes]] = []

    def launch(self, argv: list[str], **changes: Any) -> dict[str, Any]:
        return {
            "folder": str(self.folder.path),
            "argv": argv,
            "cwd": str(self.folder.path),
            "env": {"PATH": os.environ["PATH"], "RUN": str(self.folder.path), _MARK: self.mark},
            "log_name": "scripted",
            "limits": {"seconds": None, "memory_mb": None},
            "inbox_offset": 0,
            "grace_s": {"stop": TIMEOUT_S, "term": TIMEOUT_S},
            **changes,
        }

    def spawn(self, **variables: str) -> subprocess.Popen[bytes]:
        """Start a keeper that waits for its launch spec."""
        with open(self.folder.path / "keeper.log", "ab") as log:
            keeper = subprocess.Popen(
                keeper_command(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **variables},
            )
        self.keepers.append(keeper)
        return keeper

    def start(self, code: str = "", argv: list[str] | None = None, **changes: Any) -> subprocess.Popen[bytes]:
        keeper = self.spawn()
        send_launch(keeper, self.launch(argv or python(code), **changes))
        return keeper

    def send(self, kind: str, **fields: Any) -> None:
        inbox = Journal(self.folder.inbox)
        inbox.append(kind, **fields)
        inbox.close()

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the keeper's events, each checked against its contract."""
        events = read_all(self.folder.keeper) if self.folder.keeper.exists() else []
        for event in events:
            EVENT_TYPES.get(event["kind"], Event).model_validate(event)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        return [event for event in events if kind in (None, event["kind"])]

    def wait_event(self, kind: str, count: int = 1) -> dict[str, Any]:
        event: dict[str, Any] = until(lambda: self.events(kind)[count - 1 : count], f"{kind} number {count}")[0]
        return event

    def wait_file(self, name: str) -> str:
        """Wait for a file that the worker writes to report its progress."""
        path = self.folder.path / name
        text: str = until(lambda: path.exists() and path.read_text(), f"file {name}")
        return text

    def run_to_time_limit(self, code: str, seconds: float = 1.0, **changes: Any) -> dict[str, Any]:
        """Return the `exited` event of a worker whose limit does not elapse before it announces `ready`.

        Time spent paused does not count, so the worker's start may take as long as the machine needs.
        """
        self.send("pause")
        self.start(code, limits={"seconds": seconds, "memory_mb": None}, **changes)
        self.wait_file("ready")
        self.send("resume")
        return self.wait_end()

    def wait_end(self) -> dict[str, Any]:
        """Return the last event of the newest attempt, after its keeper has exited without output."""
        assert self.keepers[-1].wait(TIMEOUT_S) == 0
        assert (self.folder.path / "keeper.log").read_text() == ""
        return self.events()[-1]

    def members(self) -> list[int]:
        """Return the living processes of this run in any session, identified by their environment."""
        pids = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    pids.append(process.pid)
            except psutil.Error:
                continue
        return pids

    def close(self) -> list[int]:
        """Kill what a failed test left running and return the pids.

        A process that was killed, or has done its last work, may take a moment to be gone.
        """
        end = time.monotonic() + EXIT_S
        while (left := self._running()) and time.monotonic() < end:
            time.sleep(0.01)
        for pid in left:
            psutil.Process(pid).kill()
        for keeper in self.keepers:
            keeper.wait()
        return left

    def _running(self) -> list[int]:
        return self.members() + [keeper.pid for keeper in self.keepers if keeper.poll() is None]


def send_launch(keeper: subprocess.Popen[bytes], launch: dict[str, Any]) -> None:
    assert keeper.stdin is not None
    keeper.stdin.write(json.dumps(launch).encode())
    keeper.stdin.close()


def python(code: str) -> list[str]:
    prelude = "import os, signal, sys, time; RUN = os.environ['RUN']\n"
    prelude += "def announce(name):\n    with open(os.path.join(RUN, name), 'w') as f: f.write(str(os.getpid()))\n"
    return [sys.executable, "-I", "-S", "-c", prelude + textwrap.dedent(code)]


SLEEPER = """
    announce("ready")
    time.sleep(600)
"""

IGNORES_SIGNALS = """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    announce("ready")
    time.sleep(600)
"""

OBEYS_STOP = """
    announce("ready")
    inbox = os.path.join(RUN, "inbox.jsonl")
    while not (os.path.exists(inbox) and '"stop"' in open(inbox).read()):
        time.sleep(0.02)
    sys.exit(0)
"""

DAEMONIZED = """
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            announce("daemonized")
            time.sleep(600)
        os._exit(0)
    os.wait()
    while not os.path.exists(os.path.join(RUN, "daemonized")):
        time.sleep(0.01)
"""
