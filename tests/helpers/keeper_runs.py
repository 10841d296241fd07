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

from mosaic.contracts.events import EVENT_TYPES, Event
from mosaic.contracts.folder import RunFolder
from mosaic.journal import Journal, read_all
from mosaic.keeper.launch_spec import keeper_command

PATIENCE_S = 30.0
_MARK = "MOSAIC_TEST_MARK"


def until(is_so: Callable[[], Any], what: str) -> Any:
    """Waits for something that will happen, as long as it needs within reason."""
    end = time.monotonic() + PATIENCE_S
    while not (found := is_so()):
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.01)
    return found


class KeptRun:
    """One run folder; every `start` is a further attempt in it."""

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
            "grace_s": {"stop": PATIENCE_S, "term": PATIENCE_S},
            **changes,
        }

    def spawn(self) -> subprocess.Popen[bytes]:
        """A keeper that still waits for its launch."""
        with open(self.folder.path / "keeper.log", "ab") as log:
            keeper = subprocess.Popen(
                keeper_command(), stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        self.keepers.append(keeper)
        return keeper

    def start(self, code: str = "", argv: list[str] | None = None, **changes: Any) -> subprocess.Popen[bytes]:
        keeper = self.spawn()
        give(keeper, self.launch(argv or python(code), **changes))
        return keeper

    def tell(self, kind: str, **facts: Any) -> None:
        inbox = Journal(self.folder.inbox)
        inbox.append(kind, **facts)
        inbox.close()

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Each is checked against its contract."""
        events = read_all(self.folder.keeper) if self.folder.keeper.exists() else []
        for event in events:
            EVENT_TYPES.get(event["kind"], Event).model_validate(event)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        return [event for event in events if kind in (None, event["kind"])]

    def wait_event(self, kind: str, count: int = 1) -> dict[str, Any]:
        event: dict[str, Any] = until(lambda: self.events(kind)[count - 1 : count], f"{kind} number {count}")[0]
        return event

    def wait_file(self, name: str) -> str:
        """A worker says by a file that it has come so far."""
        path = self.folder.path / name
        text: str = until(lambda: path.exists() and path.read_text(), f"file {name}")
        return text

    def wait_end(self) -> dict[str, Any]:
        """The `exited` event of the newest attempt, after its keeper has gone, silently."""
        assert self.keepers[-1].wait(PATIENCE_S) == 0
        assert (self.folder.path / "keeper.log").read_text() == ""
        return self.events()[-1]

    def members(self) -> list[int]:
        """Whoever of this run still lives, found by environment, in whatever session it hides."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
            except psutil.Error:
                continue
        return found

    def close(self) -> list[int]:
        """Ends what a failed test left and returns it."""
        left = self.members()
        for keeper in self.keepers:
            if keeper.poll() is None:
                left.append(keeper.pid)
        for pid in left:
            psutil.Process(pid).kill()
        for keeper in self.keepers:
            keeper.wait()
        return left


def give(keeper: subprocess.Popen[bytes], launch: dict[str, Any]) -> None:
    assert keeper.stdin is not None
    keeper.stdin.write(json.dumps(launch).encode())
    keeper.stdin.close()


def python(code: str) -> list[str]:
    prelude = "import os, signal, sys, time; RUN = os.environ['RUN']\n"
    prelude += "def say(name):\n    with open(os.path.join(RUN, name), 'w') as f: f.write(str(os.getpid()))\n"
    return [sys.executable, "-I", "-S", "-c", prelude + textwrap.dedent(code)]


SLEEPER = """
    say("ready")
    time.sleep(600)
"""

DEAF = """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    say("ready")
    time.sleep(600)
"""

OBEDIENT = """
    say("ready")
    inbox = os.path.join(RUN, "inbox.jsonl")
    while not (os.path.exists(inbox) and '"stop"' in open(inbox).read()):
        time.sleep(0.02)
    sys.exit(0)
"""

DAEMONISED = """
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            say("daemonised")
            time.sleep(600)
        os._exit(0)
    os.wait()
    while not os.path.exists(os.path.join(RUN, "daemonised")):
        time.sleep(0.01)
"""
