"""Submits a run once, though the connection may break before the answer arrives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from mosaic.client.trainer_client import SubmissionUncertain, TrainerClient
from mosaic.contracts.errors import IdentityFailed, NoDaemon
from mosaic.contracts.views import RunView

Call = Callable[[Callable[[TrainerClient], RunView]], RunView]
"""Makes a call that may safely be made twice, again where the connection broke."""


def new_submission_key() -> str:
    """A name for one run that is submitted: with it, the request can be repeated."""
    return uuid4().hex


def submit_once(
    call: Call, payload: Mapping[str, Any], environment: Mapping[str, str] | None = None, is_trusted: bool = False
) -> RunView:
    """Submit a run through a connection that is opened again where it breaks; the run is created once."""
    key, is_sent = new_submission_key(), False

    def submit(trainer: TrainerClient) -> RunView:
        nonlocal is_sent
        try:
            return trainer.submit(payload, environment, is_trusted, key)
        except NoDaemon:
            is_sent = True
            raise

    try:
        return call(submit)
    except (IdentityFailed, SubmissionUncertain):
        raise
    except NoDaemon as error:  # of a later attempt to connect
        if not is_sent:
            raise
        raise SubmissionUncertain(error) from None
