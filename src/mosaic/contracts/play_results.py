"""The result of a play session: every complete episode, and statistics by agent."""

from __future__ import annotations

from typing import Any

from mosaic.contracts.views import PlayedEpisode, ReturnStatistics, View


class AgentSummary(ReturnStatistics):
    """The returns of one agent."""

    actor: str
    """Who acted, such as `policy:RUN`."""
    totals: dict[str, dict[str, Any]] = {}
    """By actor, what it counted, such as tokens."""


class PlaySummary(View):
    env_id: str
    episodes: tuple[PlayedEpisode, ...]
    agents: dict[str, AgentSummary]
    """By agent, in the order of the environment; an environment without named agents has one, `*`."""
