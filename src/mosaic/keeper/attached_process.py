"""Waits for a process that produces a run itself, such as a notebook, and exits as that run ended.

`python -I -S …/attached_process.py PID START BOOT_ID`. The keeper supervises this program in place of a worker, so that
a run that a notebook produces starts and ends like any other. Standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    # At the end: modules installed next to `mosaic` must not hide those of the standard library.
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from mosaic.common.processes import is_alive
from mosaic.contracts.folder import RUN_DIR_VARIABLE, RunFolder
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.journal import Follower

POLL_S = 0.1
SUCCESSFUL_OUTCOMES = ("succeeded", "stopped")


def attached_command(process: ProcessIdentity) -> list[str]:
    """Return the command that waits for `process` to finish its run."""
    identity = (str(process["pid"]), process["start"], process["boot_id"])
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), *identity]


def wait_for_end(journal: Follower, process: ProcessIdentity) -> int:
    """Return the exit code: 0 if the run succeeded or was stopped."""
    while True:
        was_alive = is_alive(process)
        for line in journal.read():
            if line.body["kind"] == "finished":
                return 0 if line.body.get("outcome") in SUCCESSFUL_OUTCOMES else 1
        if not was_alive:
            print(f"Process {process['pid']}, which produced this run, ended without finishing it.", file=sys.stderr)
            return 1
        time.sleep(POLL_S)


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that produces the run
    pid, start, boot_id = arguments
    journal = Follower(RunFolder(os.environ[RUN_DIR_VARIABLE]).journal)
    return wait_for_end(journal, {"pid": int(pid), "start": start, "boot_id": boot_id})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
