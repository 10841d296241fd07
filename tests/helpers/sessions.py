"""Play sessions in tests: their daemon, their state and their recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from tests.helpers.daemons import ended, running_daemon, wait_for

from mosaic.contracts.folder import Workspace
from mosaic.contracts.views import SessionState
from mosaic.trainer.client.trainer_client import TrainerClient

Start = Callable[..., str]
"""Starts a session and returns its run."""


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainerClient]:
    folder = tmp_path_factory.mktemp("play")
    with running_daemon(Workspace(folder / "var"), folder / "plugins", "--max-runs", "4") as (_, client):
        # They would otherwise start during a test, which would take them for processes of its own.
        client.ask_worker("cleanrl", {"ask": "ping"})
        client.ask_worker("play", {"ask": "ping"})
        yield client


def cancel_sessions(trainer: TrainerClient, run_ids: Iterable[str]) -> None:
    """End those that are still running."""
    for run_id in run_ids:
        if trainer.get_run(run_id).is_active:
            trainer.cancel_run(run_id)
            ended(trainer, run_id)


def state_of(trainer: TrainerClient, run_id: str) -> SessionState | None:
    path = Path(trainer.get_run(run_id).run_dir) / "session.json"
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
    return Path(trainer.get_run(run_id).run_dir) / "recording.bin"
