"""How runs stand with W&B: what lies in their folders, and what of it is on the server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from mosaic.contracts.folder import RunFolder
from mosaic.sidecar import ledger
from mosaic.sidecar.wishes import wishes
from mosaic.trainer.records import Records

FACTS = ("run_name", "algo", "env_id", "seed", "stage", "outcome")


def wandb_states(records: Records, run_id: str = "") -> Iterator[dict[str, Any]]:
    """The newest first; without runs that have nothing of W&B's."""
    for record, _ in records.index.listing(run_id=run_id):
        folder = records.folder(record["run_id"])
        # Most runs have none, and one look tells.
        state = _state(records, folder) if os.path.isdir(folder.wandb) else None
        if state is not None:
            yield {**state.to_json(), **{name: record[name] for name in FACTS}}


def _state(records: Records, folder: RunFolder) -> ledger.SyncState | None:
    """Also of a run that was to be tracked and of which nothing is recorded yet: that can be made up for."""
    found = ledger.read(folder)
    if found is None and wishes(records.payload(folder.run_id), folder.run_id).wandb is not None:
        return ledger.SyncState(folder.run_id)
    return found
