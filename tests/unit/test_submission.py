from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.helpers.cli_trainer import FakeTrainer

from mosaic.contracts.errors import IdentityFailed, NoDaemon
from mosaic.trainer.client.connect import ReconnectingClient
from mosaic.trainer.client.trainer_client import SubmissionUncertain, submit_once

PAYLOAD: dict[str, Any] = {"metadata": {"worker": {"id": "cleanrl", "config": {}}}}


class BreakingTrainer(FakeTrainer):
    """Its answers to submissions are lost."""

    def submit(self, payload: Any, environment: Any = None, is_trusted: bool = False, key: str = "") -> Any:
        self.submitted.append(payload)
        raise SubmissionUncertain(NoDaemon("The connection broke."))


def connection(*answers: FakeTrainer | NoDaemon, retry_s: float = 60.0) -> ReconnectingClient:
    """Connect to one after the other, or fail to."""
    left = list(answers)

    def connect() -> Any:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, NoDaemon):
            raise answer
        return answer

    return ReconnectingClient(connect, lambda: None, retry_s)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["mosaic.trainer.client.connect"]  # a function of its package has the same name
    monkeypatch.setattr(module, "RECONNECT_PAUSE_S", 0.0)


def test_a_trainer_that_is_not_reached_again_leaves_it_open_whether_the_run_exists() -> None:
    lost = connection(BreakingTrainer(), NoDaemon("Nobody listens. Check the network."), retry_s=0.0)
    with pytest.raises(SubmissionUncertain, match=r"Check the network\. Whether the run was accepted is not known"):
        submit_once(lost.call, PAYLOAD)


def test_a_trainer_that_was_never_reached_has_accepted_nothing() -> None:
    with pytest.raises(NoDaemon) as caught:
        submit_once(connection(NoDaemon("Nobody listens.")).call, PAYLOAD)
    assert str(caught.value) == "Nobody listens."


def test_another_certificate_is_not_tried_again() -> None:
    with pytest.raises(IdentityFailed):
        submit_once(connection(BreakingTrainer(), IdentityFailed("It has changed.")).call, PAYLOAD)


def test_an_interrupt_ends_the_attempts() -> None:
    trainer = BreakingTrainer()
    lost = connection(trainer)

    def call(make: Callable[[Any], Any]) -> Any:
        return lost.call(make, is_interrupted=lambda: len(trainer.submitted) > 2)

    with pytest.raises(SubmissionUncertain):
        submit_once(call, PAYLOAD)
    assert len(trainer.submitted) == 3
