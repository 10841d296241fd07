"""`python -m mosaic.sidecar go RUN_FOLDER`, started by the keeper; `record RUN_FOLDER` for a run that is over."""

import argparse
import os
import signal
import sys
import time

from mosaic.contracts.folder import RunFolder
from mosaic.sidecar.run_monitor import RunMonitor

START_DELAY_S = 30.0
"""A run that is over sooner is recorded when it is over, so that it has the machine for itself."""
NICENESS = 19
"""The run comes first, on every core."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="mosaic.sidecar", description=__doc__)
    parser.add_argument("what", choices=("go", "record"))
    parser.add_argument("folder")
    parser.add_argument("--journal-from", type=int, default=0)
    parser.add_argument("--keeper-from", type=int, default=0)
    parser.add_argument("--upload-only", action="store_true")
    parser.add_argument("--after", type=float, default=START_DELAY_S, help="seconds to leave the run alone")
    parser.add_argument("--push", metavar="REPO", help="send the policy to the Hugging Face Hub at the end")
    parser.add_argument("--push-only", action="store_true")
    told = parser.parse_args(argv)
    folder = RunFolder(told.folder)
    if told.what == "record":
        from mosaic.sidecar.process import record_finished_run

        record_finished_run(folder)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    began = time.monotonic()
    watch = RunMonitor(folder, told.keeper_from)
    if not (told.upload_only or told.push_only):
        watch.wait_for(lambda: time.monotonic() - began > told.after)
    # Most scripts never touch W&B: until one does, nothing but the standard library is imported here.
    if told.upload_only and not watch.wait_for(lambda: any(folder.wandb.glob("*run-*"))):
        return 0
    if told.push_only:
        watch.wait_for(lambda: False)
    os.nice(NICENESS)
    from mosaic.sidecar.process import SidecarProcess

    sidecar = SidecarProcess(folder, watch, told.journal_from, told.upload_only)
    if told.push_only:
        sidecar.push(told.push)
    else:
        sidecar.run(told.push)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
