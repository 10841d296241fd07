"""What the workspace holds, and what can be removed of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.disk_views import DiskUsage, PrunePart, TrashedRun
from mosaic.trainer import disk_usage, trash
from mosaic.trainer.pruning import Pruner
from mosaic.trainer.services import Services

if TYPE_CHECKING:
    from mosaic.contracts.trainer_pb2_verbs import Handlers


def list_trash(services: Services, request: pb.TrashRequest) -> Iterator[TrashedRun]:
    return trash.list_trash(services.records.workspace, request.has_sizes)


def read_disk_usage(services: Services, request: pb.DiskRequest) -> Iterator[DiskUsage]:
    run_ids = [services.records.resolve(run) for run in request.runs]
    return disk_usage.read_disk_usage(services.records, run_ids, request.largest)


def prune_runs(services: Services, request: pb.PruneRequest) -> Iterator[PrunePart]:
    return Pruner(services.records, request).run()


HANDLERS: Handlers = {"ListTrash": list_trash, "PruneRuns": prune_runs, "ReadDiskUsage": read_disk_usage}
