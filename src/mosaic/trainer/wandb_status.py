"""How runs stand with W&B: what lies in their folders, and what of it is on the server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from mosaic.contracts.folder import RunFolder
from mosaic.sidecar import sync_state
from mosaic.sidecar.tracking_request import parse_tracking_request
from mosaic.trainer.records import Records

RECORD_FIELDS = ("run_name", "algo", "env_id", "seed", "stage", "outcome")


def wandb_states(records: Records, run_id: str = "") -> Iterator[dict[str, Any]]:
    """The newest first; without runs that have nothing of W&B's."""
    for record, _ in records.index.list_runs(run_id=run_id):
        folder = records.folder(record["run_id"])
        # Most runs have none, and one look tells.
        state = _sync_state(records, folder) if os.path.isdir(folder.wandb) else None
        if state is not None:
            yield {**state.to_json(), **{name: record[name] for name in RECORD_FIELDS}}


def _sync_state(records: Records, folder: RunFolder) -> sync_state.SyncState | None:
    """Also of a run that was to be tracked and of which nothing is recorded yet: that can be made up for."""
    found = sync_state.read(folder)
    if found is None and parse_tracking_request(records.read_payload(folder.run_id), folder.run_id).wandb is not None:
        return sync_state.SyncState(folder.run_id)
    return found
