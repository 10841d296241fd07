"""The process that uploads runs to W&B because somebody asked for it.

It is told the folders by its standard input and says each change of a run's state as one JSON line. Keys and proxies it
finds by itself, so that nobody has to hand them over.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import RunFolder
from mosaic.sidecar.sync import sync_run, upload_environment
from mosaic.sidecar.sync_state import SyncState


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through `finally`: what was started is ended, too
    for path in json.load(sys.stdin):
        folder = RunFolder(path)
        try:
            environment, problems = upload_environment(folder)
            _print_state(sync_run(folder, environment, _print_state), is_last=True, said=problems)
        except (MosaicError, OSError, ValueError) as error:
            _print_json({"run_id": folder.run_id, "state": "failed", "error": str(error), "is_last": True})
    return 0


def _print_state(state: SyncState, **more: Any) -> None:
    _print_json({**state.to_json(), **more})


def _print_json(body: dict[str, Any]) -> None:
    print(json.dumps(body), flush=True)


if __name__ == "__main__":
    sys.exit(main())
