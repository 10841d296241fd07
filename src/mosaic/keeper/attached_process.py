"""Waits for a process that produces a run itself, such as a notebook, and exits as that run ended.

`python -I -S …/keeper/__main__.py PID START BOOT_ID`. The keeper supervises this program in place of a worker, so that
a run that a notebook produces starts and ends like any other.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from mosaic.base.journal import Follower
from mosaic.base.processes import is_alive, start_time
from mosaic.contracts.folder import RUN_DIR_VARIABLE, RunFolder
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.keeper.launch_spec import keeper_command

POLL_S = 0.1
SUCCESSFUL_OUTCOMES = ("succeeded", "stopped")


def attached_command(process: ProcessIdentity) -> list[str]:
    """Return the command that waits for `process` to finish its run."""
    return [*keeper_command(), str(process["pid"]), process["start"], process["boot_id"]]


def wait_for_attached(arguments: list[str]) -> int:
    """Return the exit code: 0 if the run succeeded or was stopped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that produces the run
    pid, start, boot_id = arguments
    process: ProcessIdentity = {"pid": int(pid), "start": start, "boot_id": boot_id}
    folder = RunFolder.hold(os.environ[RUN_DIR_VARIABLE])
    journal = Follower(folder.journal)
    while True:
        folder.reopen_if_deleted()
        was_alive = is_alive(process)
        for line in journal.read():
            if line.body["kind"] == "finished":
                return 0 if line.body.get("outcome") in SUCCESSFUL_OUTCOMES else 1
        if not was_alive:
            end = f"Process {pid}, which produced this run, ended without finishing it."
            print(f"{end} {describe_further_processes(folder)}".strip(), file=sys.stderr)
            return 1
        time.sleep(POLL_S)


def describe_further_processes(folder: RunFolder) -> str:
    """Return a sentence that names the further processes that still log into the run; empty without any."""
    journals = {path.name.split(".")[1]: Follower(path) for path in folder.journals()[1:]}
    alive = [pid for pid in journals if pid.isdecimal() and start_time(int(pid))]
    left = [pid for pid in alive if "finished" not in (line.body["kind"] for line in journals[pid].read_rest())]
    return f"Processes still log into it ({', '.join(left)}); what they log from now on is lost." if left else ""
