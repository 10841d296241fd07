"""What no run on the machines of a cluster can do."""

from __future__ import annotations

from mosaic.contracts.errors import refuse_key
from mosaic.contracts.payload import Payload


def refuse_unsupported(payload: Payload, cluster: str) -> None:
    """Refuse tracking and uploads while a run trains, and a GPU by its number. `cluster`: its name in a sentence."""
    artifacts = payload.artifacts
    if artifacts.wandb.enabled or artifacts.trackio.enabled or artifacts.model.upload:
        raise refuse_key(
            "resources.executor",
            f"a run on {cluster} is not tracked or uploaded while it trains. Leave out the tracking, and send the run "
            "when it has ended: mosaic wandb sync RUN, mosaic push RUN.",
        )
    if payload.resources.gpus.device is not None:
        raise refuse_key("resources.gpus.device", f"{cluster} chooses the GPU of a run. Leave it out: --gpus 1")
