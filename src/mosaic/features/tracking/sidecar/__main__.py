"""`python -m mosaic.features.tracking.sidecar go RUN_FOLDER`, started by the keeper; `record` for a finished run.

`sync` uploads the runs listed on stdin, `check` checks the connection to W&B.
"""

import argparse
import os
import signal
import sys
import time

from mosaic.contracts.folder import RunFolder
from mosaic.features.tracking.sidecar.run_monitor import RunMonitor

START_DELAY_S = 30.0
"""A shorter run is recorded after it has finished, so that it has the machine for itself."""
NICENESS = 19
"""The run has priority on every core."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="mosaic.features.tracking.sidecar", description=__doc__)
    parser.add_argument("command", choices=("go", "record", "sync", "check"))
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--journal-from", type=int, default=0)
    parser.add_argument("--keeper-from", type=int, default=0)
    parser.add_argument("--upload-only", action="store_true")
    parser.add_argument("--after", type=float, default=START_DELAY_S, help="seconds to wait before recording")
    parser.add_argument("--push", metavar="REPO", help="push the policy to the Hugging Face Hub at the end")
    parser.add_argument("--push-only", action="store_true")
    options = parser.parse_args(argv)
    if options.command == "sync":
        from mosaic.features.tracking.sidecar.wandb_sync import sync_from_stdin

        sync_from_stdin()
        return 0
    if options.command == "check":
        from mosaic.features.tracking.sidecar.wandb_connection import check_from_stdin

        check_from_stdin()
        return 0
    folder = RunFolder(options.folder)
    if options.command == "record":
        from mosaic.features.tracking.sidecar.process import record_finished_run

        record_finished_run(folder)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    started_at = time.monotonic()
    monitor = RunMonitor(folder, options.keeper_from)
    if not (options.upload_only or options.push_only):
        monitor.wait_for(lambda: time.monotonic() - started_at > options.after)
    # Most scripts never use W&B: until one does, only the standard library is imported here.
    if options.upload_only and not monitor.wait_for(lambda: any(folder.wandb.glob("*run-*"))):
        return 0
    if options.push_only:
        monitor.wait_for(lambda: False)
    os.nice(NICENESS)
    from mosaic.features.tracking.sidecar.process import SidecarProcess

    try:
        sidecar = SidecarProcess(folder, monitor, options.journal_from, options.upload_only)
        if options.push_only:
            sidecar.push(options.push)
        else:
            sidecar.run(options.push)
    except FileNotFoundError:
        if folder.path.is_dir():
            raise
        # The run was deleted: everything that is not recorded yet is in its journal, in the trash.
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
