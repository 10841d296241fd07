"""What a user has configured to play."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PlayRequest:
    """The arguments of `build_play_payload`."""

    env_id: str
    actors: Mapping[str, str]
    """By agent, such as `policy:RUN`."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Those of the actors, by agent."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `PlayConfig`."""
