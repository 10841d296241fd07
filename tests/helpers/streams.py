"""Calls to a daemon for which the client has no method of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc

from mosaic.base.handshake import TOKEN_KEY
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.folder import Workspace
from mosaic.contracts.trainer_pb2_grpc import TrainerStub
from mosaic.trainer.client.connect import read_daemon_address
from mosaic.trainer.client.trainer_client import TrainerClient, WatchBatch


@contextmanager
def raw_stub(workspace: Workspace) -> Iterator[tuple[Any, Any]]:
    """The stub, and the metadata that its calls need. Little is buffered for a caller that stops reading."""
    address = read_daemon_address(workspace)
    assert address is not None
    with grpc.insecure_channel(address.address, options=(("grpc.http2.bdp_probe", 0),)) as channel:
        yield TrainerStub(channel), ((TOKEN_KEY, address.token),)


def telemetry(trainer: TrainerClient, run: str, kinds: Sequence[str] = (), after: int = 0) -> Iterator[WatchBatch]:
    """A run's events of the kinds `step`, `episodes` and `metrics` with their content."""
    request = pb.TelemetryFilter(run=run, kinds=kinds, after=after)
    for reply in trainer.stream("StreamTelemetry", request, is_endless=True):
        yield trainer._parse_batch(reply)
