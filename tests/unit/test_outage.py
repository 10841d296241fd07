"""What is said while a trainer cannot be reached, and when a command gives up."""

from __future__ import annotations

import sys

import pytest

from mosaic.cli.context import CliContext, Outage
from mosaic.contracts.errors import IdentityFailed, NoDaemon
from mosaic.trainer.client.connect import ReconnectingClient
from mosaic.trainer.client.remote_trainer import RemoteTrainer


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outage(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Outage:
    context = CliContext()
    context.trainer_option = "gpu"
    monkeypatch.setattr(context, "remote_trainer", lambda: RemoteTrainer("10.0.0.4:50055", "token", "pem", "gpu"))
    return Outage(context, "mosaic show -f ABC", clock)


def test_an_outage_is_told_once_and_so_is_its_end(outage: Outage, clock: Clock) -> None:
    assert outage.note_success() is None
    told = outage.note_failure(NoDaemon("x"))
    assert told is not None
    assert told.startswith("The connection to the trainer gpu (10.0.0.4:50055) broke. What it runs continues;")
    clock.now = 59.0
    assert outage.note_failure(NoDaemon("x")) is None
    assert outage.note_success() == "Connected again."
    assert outage.note_success() is None
    clock.now = 118.0
    assert outage.note_failure(NoDaemon("x")) is not None, "the minute begins again"


def test_after_a_minute_the_command_that_attaches_again_is_named(outage: Outage, clock: Clock) -> None:
    outage.note_failure(NoDaemon("x"))
    clock.now = 61.0
    words = r"not be reached for 60 s\. What it runs continues there\. Attach again: mosaic show -f ABC --trainer gpu"
    with pytest.raises(NoDaemon, match=words):
        outage.note_failure(NoDaemon("x"))


def test_a_trainer_that_turns_out_to_be_another_is_not_tried_again(outage: Outage) -> None:
    with pytest.raises(IdentityFailed):
        outage.note_failure(IdentityFailed("another certificate"))


class FakeClient:
    def close(self) -> None:
        pass


def test_a_trainer_elsewhere_is_tried_again_only_after_it_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["mosaic.trainer.client.connect"], "RECONNECT_PAUSE_S", 0.0)
    failures = [NoDaemon("first")]
    opened = 0

    def open_client() -> FakeClient:
        nonlocal opened
        opened += 1
        if failures:
            raise failures.pop()
        return FakeClient()

    connection = ReconnectingClient(open_client, lambda: None, retry_s=60.0)  # type: ignore[arg-type]
    with pytest.raises(NoDaemon, match="first"):
        connection.call(lambda _: "answer")
    assert opened == 1
    assert connection.call(lambda _: "answer") == "answer"
    failures += [NoDaemon("cut")] * 3
    broken = [NoDaemon("cut")]

    def call(_: object) -> str:
        if broken:
            raise broken.pop()
        return "answer"

    assert connection.call(call) == "answer"
    assert opened == 6
    broken += [NoDaemon("cut")]
    failures += [IdentityFailed("another")] * 2
    with pytest.raises(IdentityFailed):
        connection.call(call)
    broken, failures[:] = [NoDaemon("cut")], [NoDaemon("cut")] * 9
    connection.close()
    with pytest.raises(NoDaemon):
        connection.call(call, retry_s=0.0)
    assert len(failures) == 8, "never reached: not tried again"
