"""`python -m cleanrl_worker.cli`: runs a config, checks a config, or serves as the daemon's checker.

Exit codes: 0 finished or stopped on request; 2 config refused; 1 failed.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

# Read when numpy is imported. Small networks are slower with more threads, and far slower next to another run.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cleanrl_worker.cli", description="MOSAIC's CleanRL worker.")
    parser.add_argument("--config", metavar="PATH", help="a trainer payload or a bare worker config, as JSON")
    parser.add_argument("--dry-run", action="store_true", help="check everything and start nothing")
    parser.add_argument("--emit-summary", action="store_true", help="print the resolved config as one JSON object")
    parser.add_argument("--resume", action="store_true", help="resume from the last good checkpoint of the run folder")
    parser.add_argument("--extras", metavar="JSON", help="additional extras; they override those of the config")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--total-timesteps", type=int, metavar="N")
    parser.add_argument("--worker-id", metavar="NAME")
    parser.add_argument("--grpc", action="store_true", help="register with the daemon if it can be reached")
    parser.add_argument("--grpc-target", metavar="HOST:PORT", default="127.0.0.1:50055")
    parser.add_argument("--checker", action="store_true", help="answer requests on stdin until it is closed")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = _build_parser()
    args = parser.parse_args(argv)
    faulthandler.enable()
    if args.checker:
        try:
            from cleanrl_worker.shell.checker import serve

            return serve()
        except ModuleNotFoundError as error:
            from mosaic.worker.checker_loop import refuse_requests

            return refuse_requests("cleanrl", error, "mosaic-rl[train]")
    if args.config is None:
        parser.error("--config is missing: the path of a trainer payload or of a bare worker config.")
    from mosaic.contracts.errors import BadInput, MosaicError

    try:
        return _run_dry_run(args) if args.dry_run else _run_worker(args)
    except MosaicError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1


def _parse_request(args: argparse.Namespace) -> Any:
    from cleanrl_worker.shell.worker_config import parse_json, parse_request, read_config_file, require_object

    overrides: dict[str, Any] = {
        "seed": args.seed,
        "total_timesteps": args.total_timesteps,
        "worker_id": args.worker_id,
    }
    if args.extras is not None:
        overrides["extras"] = require_object(parse_json(args.extras, "--extras"), "--extras")
    return parse_request(read_config_file(args.config), overrides)


def _run_dry_run(args: argparse.Namespace) -> int:
    from cleanrl_worker.shell import launcher
    from cleanrl_worker.shell.checker import check_request, format_summary
    from mosaic.contracts.folder import RUN_DIR_VARIABLE
    from mosaic.worker.worker_run import run_folder

    request = _parse_request(args)
    if not os.environ.get(RUN_DIR_VARIABLE):
        request = launcher.complete_request(request, run_folder(request.config.run_id or "<run>"))
    summary = check_request(request, args.config)
    print(json.dumps(summary.to_json()) if args.emit_summary else format_summary(summary))
    return 0


def _run_worker(args: argparse.Namespace) -> int:
    from ulid import ULID

    from cleanrl_worker.shell import launcher
    from cleanrl_worker.shell.worker_config import WORKER_NAME
    from mosaic.base.workspace_trust import claim_if_new
    from mosaic.contracts.errors import BadInput
    from mosaic.contracts.folder import RUN_DIR_VARIABLE, RunFolder, Workspace
    from mosaic.worker.worker_run import TRAINING_CAPABILITIES, require_free_folder, run_folder, write_rejection

    run_dir = os.environ.get(RUN_DIR_VARIABLE)
    try:
        request = _parse_request(args)
        folder = run_folder(request.config.run_id or str(ULID()))
        if not run_dir:
            require_free_folder(folder, args.resume)
            request = launcher.complete_request(request, folder)
        run_job = launcher.build_job(request)
    except BadInput as error:
        if run_dir:
            write_rejection(WORKER_NAME, RunFolder(run_dir), str(error))
        raise
    if not run_dir:
        claim_if_new(Workspace.containing(folder))
        launcher.write_config(request, folder)
    registration = None
    if args.grpc:
        from cleanrl_worker.shell.registration import schedule_registration

        registration = schedule_registration(args.grpc_target, folder.run_id, TRAINING_CAPABILITIES)
    run_job(folder, args.resume)
    if registration is not None:
        registration.cancel()
    return 0


def _exit_immediately(code: int) -> None:
    """Exit without interpreter shutdown, which takes time and would wait for the threads of libraries."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _exit_immediately(main())
