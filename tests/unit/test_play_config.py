"""The config of a play session."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from mosaic.contracts.play import PlayConfig

HUMAN, RANDOM = {"kind": "human"}, {"kind": "random"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"actors": {}}, "no actor is given"),
        ({"alternate_steps": 5}, "alternate_steps needs a standby"),
        ({"standby": RANDOM}, "a standby needs a human"),
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        PlayConfig(env_id="FrozenLake-v1", **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"actors": {"*": HUMAN}, "standby": RANDOM},
        {"actors": {"*": RANDOM}, "standby": HUMAN},
        {"actors": {"*": RANDOM}, "standby": RANDOM, "alternate_steps": 5},
    ],
)
def test_a_standby_that_can_act_is_accepted(settings: dict[str, Any]) -> None:
    assert PlayConfig(env_id="FrozenLake-v1", **settings).standby is not None
