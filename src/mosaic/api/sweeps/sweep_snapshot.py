"""The state of a sweep as the process that reads its study reports it to the window."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mosaic.api.sweeps.trial_row import TrialRow
from mosaic.contracts.errors import StorageFailed


@dataclass(frozen=True)
class SweepSnapshot:
    name: str
    config: dict[str, Any]
    """The sweep's file."""
    study_id: str = ""
    """Of the study, from which the keys of its runs follow; empty before it was created."""
    trials: tuple[TrialRow, ...] = ()
    importances: dict[str, float] | None = None
    """By setting, the most important first; empty where too few trials are done."""
    runner_pid: int | None = None
    """The process that runs the sweep; 0 where its id is not known, None where there is none."""
    problem: str = ""
    """Why it cannot be read."""


@dataclass(frozen=True)
class SweepReport:
    """One message: what has changed since the last one."""

    names: tuple[str, ...] = ()
    """All sweeps, the one changed last first."""
    changed: tuple[SweepSnapshot, ...] = ()
    problem: str = ""
    """Why no sweep can be read, such as a missing package."""


def encode_report(report: SweepReport) -> str:
    return json.dumps(asdict(report))


def decode_report(line: bytes) -> SweepReport:
    try:
        return _adapter().validate_json(line)
    except ValidationError as error:
        raise StorageFailed(f"The reader of sweeps sent what cannot be read: {error.errors()[0]['msg']}.") from None


@cache
def _adapter() -> TypeAdapter[SweepReport]:
    return TypeAdapter(SweepReport)
