"""What of runs is at W&B."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import NotAllowed
from mosaic.contracts.trainer_pb2_handlers import Handlers
from mosaic.contracts.views import WandbStatus
from mosaic.features.tracking.sidecar import sync_state
from mosaic.trainer.services import Services


def read_wandb(services: Services, request: pb.RunRequest) -> Iterator[WandbStatus]:
    records = services.records
    for record, folder in records.runs_with("wandb", records.resolve(request.run) if request.run else ""):
        state = sync_state.read(folder)
        with suppress(NotAllowed):  # a config that cannot be read
            # A run that asked to be tracked and has no recording yet can still be recorded.
            if state is None and records.read_payload(folder.run_id).artifacts.wandb.enabled:
                state = sync_state.SyncState(folder.run_id)
        if state is not None:
            yield WandbStatus.model_validate(dict(record) | state.to_json())


HANDLERS: Handlers = {"ReadWandb": read_wandb}
