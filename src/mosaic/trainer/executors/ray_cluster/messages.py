"""What the daemon and its bridge to a cluster write to each other: JSON lines over the bridge's stdin and stdout."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from mosaic.contracts.model import Contract


class AttemptMessage(Contract):
    run_id: str
    attempt: int
    """Its number. What concerns an earlier attempt than the run's last one is dropped."""


# --- from the daemon


class StartAttempt(AttemptMessage):
    kind: Literal["start"] = "start"
    folder: str
    worker: str
    config: dict[str, Any]
    """The payload for the worker."""
    is_resume: bool
    cpus: int
    gpus: float
    max_seconds: float | None
    memory_mb: int | None
    inbox_offset: int
    end_key: str


class FollowAttempt(AttemptMessage):
    """Of an attempt that an earlier bridge has started."""

    kind: Literal["follow"] = "follow"
    folder: str


class ActiveAttempts(Contract):
    """All attempts that the daemon has on the cluster: actors of others are left over, and are ended."""

    kind: Literal["active"] = "active"
    attempts: tuple[tuple[str, int], ...]
    """Runs and numbers."""


# --- from the bridge


class ClusterNode(Contract):
    address: str
    cpus: float
    gpus: float


class ClusterReport(Contract):
    kind: Literal["cluster"] = "cluster"
    address: str
    """Of the cluster."""
    nodes: tuple[ClusterNode, ...]
    """Those that are alive."""
    free_cpus: float
    free_gpus: float


class ClusterUnavailable(Contract):
    kind: Literal["unavailable"] = "unavailable"
    reason: str


class AttemptPlaced(AttemptMessage):
    kind: Literal["placed"] = "placed"
    node: str


class AttemptRefused(AttemptMessage):
    """It could not be started, and would not be elsewhere."""

    kind: Literal["refused"] = "refused"
    reason: str


class AttemptNotStarted(AttemptMessage):
    """Nothing of it was started."""

    kind: Literal["not_started"] = "not_started"


class AttemptLost(AttemptMessage):
    """Its node, or its actor there, is gone."""

    kind: Literal["lost"] = "lost"
    reason: str


class AttemptEnded(AttemptMessage):
    """Its keeper has ended, and all of its files are here."""

    kind: Literal["ended"] = "ended"


AttemptReport = AttemptPlaced | AttemptRefused | AttemptNotStarted | AttemptLost | AttemptEnded
BridgeMessage = ClusterReport | ClusterUnavailable | AttemptReport
DaemonMessage = StartAttempt | FollowAttempt | ActiveAttempts

_FROM_DAEMON: TypeAdapter[DaemonMessage] = TypeAdapter(Annotated[DaemonMessage, Field(discriminator="kind")])
_FROM_BRIDGE: TypeAdapter[BridgeMessage] = TypeAdapter(Annotated[BridgeMessage, Field(discriminator="kind")])


def encode_message(message: Contract) -> bytes:
    return message.model_dump_json().encode() + b"\n"


def decode_from_daemon(line: bytes) -> DaemonMessage:
    """Raises ValueError."""
    return _FROM_DAEMON.validate_json(line)


def decode_from_bridge(line: bytes) -> BridgeMessage:
    """Raises ValueError."""
    return _FROM_BRIDGE.validate_json(line)
