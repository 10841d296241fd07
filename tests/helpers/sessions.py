"""Play sessions in tests: their state and their recording."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.helpers.daemons import wait_for

from mosaic.client import TrainerClient
from mosaic.contracts.views import SessionState


def state_of(trainer: TrainerClient, run_id: str) -> SessionState | None:
    path = Path(trainer.get(run_id).run_dir) / "session.json"
    return SessionState.model_validate_json(path.read_bytes()) if path.exists() else None


def wait_for_state(
    trainer: TrainerClient, run_id: str, fits: Callable[[SessionState], bool], what: str
) -> SessionState:
    def read() -> SessionState | None:
        state = state_of(trainer, run_id)
        return state if state is not None and fits(state) else None

    found: SessionState = wait_for(read, what)
    return found


def recording_of(trainer: TrainerClient, run_id: str) -> Path:
    return Path(trainer.get(run_id).run_dir) / "recording.bin"
