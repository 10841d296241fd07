"""Runs the connection checks in a process of its own: a name server may block where no time limit of ours applies.

`python -m mosaic.sidecar.wandb_diagnostics` prints one JSON line per check; `run_diagnostics()` starts it and yields
what it prints.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mosaic.contracts.errors import MosaicError
from mosaic.secrets.proxies import wandb_environment
from mosaic.sidecar.wandb_connection import CheckFailed, ConnectionChecks

TOTAL_TIMEOUT_S = 60.0
OK, FAIL, SKIPPED = "ok", "fail", "skipped"
CHECK_NAMES = ("package", "server", "proxy", "DNS", "TLS", "key")


@dataclass(frozen=True)
class Finding:
    name: str
    state: str
    """ok, fail or skipped."""
    found: str
    todo: str = ""


def diagnostics_command() -> list[str]:
    return [sys.executable, "-P", "-m", "mosaic.sidecar.wandb_diagnostics"]


def format_request(root: Path, wandb: Mapping[str, Any]) -> str:
    """For the standard input of the command: `artifacts.wandb` of a payload, with references, never secrets."""
    return json.dumps({"root": str(root), "wandb": dict(wandb)})


def run_diagnostics(root: Path, wandb: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields one finding for each of CHECK_NAMES, as soon as it is known."""
    process = subprocess.Popen(
        diagnostics_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    timer = threading.Timer(TOTAL_TIMEOUT_S, process.kill)
    timer.start()
    missing = list(CHECK_NAMES)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin as stdin:
            stdin.write(format_request(root, wandb))
        with process.stdout as stdout:
            for line in stdout:
                finding = Finding(**json.loads(line))
                missing.remove(finding.name)
                yield finding
    finally:
        timer.cancel()
        timer.join()
        process.kill()
        process.wait()
    for name in missing:
        yield Finding(name, FAIL, f"no answer within {TOTAL_TIMEOUT_S:g} s", "Try again, or check the network.")


def run_checks(env: Mapping[str, str], problems: list[str]) -> Iterator[Finding]:
    """Yields a finding for each of CHECK_NAMES; after a failure, the rest is skipped."""
    with closing(ConnectionChecks(env, problems)) as checks:
        steps = (
            *(checks.check_package, checks.check_server, checks.check_proxy),
            *(checks.check_dns, checks.check_tls, checks.check_key),
        )
        has_failed = False
        for name, step in zip(CHECK_NAMES, steps, strict=True):
            if has_failed and (name != "key" or checks.has_key):
                yield Finding(name, SKIPPED, "a key is stored; it was not tried" if name == "key" else "not checked")
                continue
            try:
                yield Finding(name, OK, step())
            except CheckFailed as failure:
                # Without the package the rest can still be checked where the server is known.
                has_failed = name != "package"
                yield Finding(name, FAIL, failure.found, failure.advice)


def main() -> None:
    from mosaic.contracts.payload import WandbArtifacts

    request = json.load(sys.stdin)
    problems: list[str] = []
    try:
        variables, problems = wandb_environment(WandbArtifacts.model_validate(request["wandb"]), Path(request["root"]))
        os.environ.update(variables)
    except MosaicError as error:
        problems = [str(error)]
    for finding in run_checks(os.environ, problems):
        print(json.dumps(asdict(finding)), flush=True)
    os._exit(0)  # a thread may still wait for a name server


if __name__ == "__main__":
    main()
