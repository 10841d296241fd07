"""`python -m bdi_worker.cli`: runs a config, checks a config, or serves as the daemon's checker.

Exit codes: 0 finished or stopped on request; 2 config refused; 1 failed.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
from collections.abc import Sequence

# Read when numpy is imported: nothing here is faster with more threads.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")


def main(argv: Sequence[str] | None = None) -> int:
    from mosaic.contracts.errors import BadInput, MissingExtra, MosaicError
    from mosaic.worker.checker_loop import refuse_requests

    parser = argparse.ArgumentParser(prog="python -m bdi_worker.cli", description="MOSAIC's worker for BDI agents.")
    parser.add_argument("--config", metavar="PATH", help="a trainer payload or a bare worker config, as JSON")
    parser.add_argument("--dry-run", action="store_true", help="check everything and print what a run would use")
    parser.add_argument("--resume", action="store_true", help="resume from the last good checkpoint of the run folder")
    parser.add_argument("--checker", action="store_true", help="answer requests on stdin until it is closed")
    args, _ = parser.parse_known_args(argv)  # the daemon also passes its address
    faulthandler.enable()
    if args.checker:
        try:
            from bdi_worker.checker import serve
        except (MissingExtra, ModuleNotFoundError) as error:
            return refuse_requests("bdi", error, "mosaic-rl[train,bdi]")
        return serve()
    if args.config is None:
        parser.error("--config is missing: the path of a trainer payload or of a bare worker config.")
    try:
        return _run(args)
    except MosaicError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1


def _run(args: argparse.Namespace) -> int:
    from ulid import ULID

    from bdi_worker import WORKER_NAME, launcher
    from bdi_worker.worker_config import read_request
    from mosaic.base.workspace_trust import claim_if_new
    from mosaic.contracts.errors import BadInput
    from mosaic.contracts.folder import RUN_DIR_VARIABLE, RunFolder, Workspace
    from mosaic.worker.worker_run import require_free_folder, run_folder, write_rejection

    if args.dry_run:
        from bdi_worker.checker import check_request

        print(json.dumps(check_request(read_request(args.config), args.config).to_json()))
        return 0
    try:
        request = read_request(args.config)
        folder = run_folder(request.config.run_id or str(ULID()))
        if not os.environ.get(RUN_DIR_VARIABLE):
            require_free_folder(folder, args.resume)
        job = launcher.build_job(request, folder, args.resume)
    except BadInput as error:
        if run_dir := os.environ.get(RUN_DIR_VARIABLE):
            write_rejection(WORKER_NAME, RunFolder(run_dir), str(error))
        raise
    if not os.environ.get(RUN_DIR_VARIABLE):
        claim_if_new(Workspace.containing(folder))
    job()
    return 0


if __name__ == "__main__":
    sys.exit(main())
