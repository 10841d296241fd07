"""Calls to a daemon without the client's conveniences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from mosaic.client import read_daemon_address
from mosaic.common.auth_proof import TOKEN_KEY
from mosaic.contracts.folder import Workspace
from mosaic.contracts.trainer_pb2_grpc import TrainerStub


@contextmanager
def raw_stub(workspace: Workspace) -> Iterator[tuple[Any, Any]]:
    """The stub, and the metadata that its calls need. Little is buffered for a caller that stops reading."""
    address = read_daemon_address(workspace)
    assert address is not None
    with grpc.insecure_channel(address.address, options=(("grpc.http2.bdp_probe", 0),)) as channel:
        yield TrainerStub(channel), ((TOKEN_KEY, address.token),)
