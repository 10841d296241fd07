"""What of each run is on the W&B server, read from the run folders."""

from __future__ import annotations

import os
from collections.abc import Iterator

from mosaic.contracts.folder import RunFolder
from mosaic.contracts.views import WandbStatus
from mosaic.sidecar import sync_state
from mosaic.sidecar.tracking_request import parse_tracking_request
from mosaic.trainer.records import Records


def wandb_states(records: Records, run_id: str = "") -> Iterator[WandbStatus]:
    """Newest first, without runs that W&B has nothing of."""
    for record, _ in records.index.list_runs(run_id=run_id):
        folder = records.folder(record.run_id)
        # Most runs have no such folder, and one stat call tells.
        state = _read_state(records, folder) if os.path.isdir(folder.wandb) else None
        if state is not None:
            yield WandbStatus(
                **state.to_json(),
                run_name=record.run_name,
                algo=record.algo,
                env_id=record.env_id,
                seed=record.seed,
                stage=record.stage,
                outcome=record.outcome,
            )


def _read_state(records: Records, folder: RunFolder) -> sync_state.SyncState | None:
    """Also for a run that asked to be tracked and has no recording yet: it can still be recorded."""
    state = sync_state.read(folder)
    if state is None and parse_tracking_request(records.read_payload(folder.run_id), folder.run_id).wandb is not None:
        return sync_state.SyncState(folder.run_id)
    return state
