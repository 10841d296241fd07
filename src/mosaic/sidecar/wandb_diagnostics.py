"""Runs the connection checks one by one, for `mosaic wandb probe`.

`python -m mosaic.sidecar.wandb_diagnostics` prints one JSON line per check, for the window.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mosaic.contracts.errors import MosaicError
from mosaic.sidecar.wandb_connection import CheckFailed, ConnectionChecks
from mosaic.sidecar.wandb_environment import wandb_environment

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


def run_diagnostics(root: Path, wandb: Mapping[str, Any]) -> Iterator[Finding]:
    """Runs the checks with the key and the proxies of a payload's `artifacts.wandb` in the workspace at `root`."""
    from mosaic.contracts.payload import WandbArtifacts

    variables: dict[str, str] = {}
    try:
        variables, problems = wandb_environment(WandbArtifacts.model_validate(wandb), root)
    except MosaicError as error:
        problems = [str(error)]
    yield from run_checks({**os.environ, **variables}, problems)


def main() -> None:
    request = json.load(sys.stdin)
    for finding in run_diagnostics(Path(request["root"]), request["wandb"]):
        print(json.dumps(asdict(finding)), flush=True)
    os._exit(0)  # a thread may still wait for a name server


if __name__ == "__main__":
    main()
