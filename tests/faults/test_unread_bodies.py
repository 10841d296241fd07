"""F28: the body of a call without the token is not read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.helpers.daemons import LiveDaemon

from mosaic.base.handshake import NONCE_KEY, PROOF_KEY
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.folder import Workspace
from mosaic.contracts.trainer_pb2_grpc import TrainerStub
from mosaic.trainer.client.connect import read_daemon_address
from mosaic.trainer.client.trainer_client import TrainerClient

BODY_MB = 60


def peak_mb(pid: int) -> float:
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    assert peak is not None
    return int(peak.group(1)) / 1024


@pytest.mark.may_log("call_refused")
def test_a_large_call_without_the_token_costs_no_memory(
    daemon: LiveDaemon, trainer: TrainerClient, workspace: Workspace
) -> None:
    """F28: refused before its payload is in memory, also where it pretends to know the token."""
    address = read_daemon_address(workspace)
    assert address is not None
    body = "x" * (BODY_MB << 20)
    false_proof = ((NONCE_KEY, "0" * 32), (PROOF_KEY, "0" * 64))
    with grpc.insecure_channel(address.address) as channel:
        stub = TrainerStub(channel)
        with pytest.raises(grpc.RpcError):  # what a refusal loads is not part of the body
            stub.SubmitRun(pb.PayloadRequest(payload_json="x"), timeout=60, metadata=false_proof)
        before = peak_mb(address.process["pid"])
        calls: list[tuple[Any, Any]] = [
            (stub.SubmitRun, pb.PayloadRequest(payload_json=body)),
            (stub.Identify, pb.IdentifyRequest(nonce=body)),
        ]
        for call, request in calls * 2:
            with pytest.raises(grpc.RpcError) as refusal:
                call(request, timeout=60, metadata=false_proof)
            assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert peak_mb(address.process["pid"]) - before < BODY_MB / 2
